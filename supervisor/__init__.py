"""Configuration, processes, administration: the top layer.

    bootstrap.py      from a checkout to a running broker or its tests, with nothing but Python
    main.py           the `geminga` command
    processes/        the supervisor process and its children
    configuration/    files, environment and command line -> options
    host/             memory, limits and settings of the host
    tasks/            the nightly job, backups, imports, debug bundles
    pulsar_client/    a small client of Pulsar's protocols
    wording/          words for people: values, and why subscriptions stand still
    messages/         messages as applications see them: decoded, filtered, printed
    tables/           Parquet tables as messages
    replication/      `geminga-replicator`: entries go to other clusters
    admin/            HTTP: administration, lookup, metrics, health
    standby/          a broker and its standby, over the network
    cli/              `geminga admin` and the other commands

Imports: workers, storage, proto.  Start with `processes/serve.py`.
"""

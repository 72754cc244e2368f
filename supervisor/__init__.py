"""Configuration, processes, administration: the top layer.

    bootstrap.py      from a checkout to a running broker or its tests, with nothing but Python
    main.py           the `geminga` command
    processes/        the supervisor process and its children
    configuration/    files, environment and command line -> options
    host/             memory, limits and settings of the host
    tasks/            the nightly job, backups, imports, debug bundles
    wording/          words for people: values, and why subscriptions stand still
    tables/           Parquet tables as messages
    admin/            HTTP: administration, lookup, metrics, health
    standby/          a broker and its standby, over the network
    cli/              `geminga admin` and the other commands

Imports: workers, storage, proto.  Start with `processes/serve.py`.
"""

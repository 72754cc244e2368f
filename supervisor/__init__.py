"""Configuration, processes, administration: the top layer.

    bootstrap.py      from a checkout to a running broker or its tests, with nothing but Python
    main.py           the `geminga` command
    processes/        the supervisor process and its children
    configuration/    files, environment and command line -> options
    host/             what the host gives
    tasks/            the night, backups, imports, debug bundles
    pulsar_client/    a small client of the binary protocol
    admin/            HTTP: administration, lookup, metrics, health
    cli/              the commands of `geminga admin` and their like

Imports: workers, storage, proto.  Start with `processes/serve.py`.
"""

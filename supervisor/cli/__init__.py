"""The commands of `geminga`, except `serve`, `publish`, `read` and `why`, which are in `main.py`.

    admin/            `geminga admin`
    nightly.py, backup.py, verify.py, upgrade.py, ledger.py   the data folder: compaction, backups, damage, formats
    configuration.py, operations.py, debug.py, installed.py   the running broker: configuration, log, status, bundles
    moving.py, reading.py, definitions.py, tokens.py          import and export, read, definitions, keys and tokens
    show.py           answers as tables for people

A command imports only the modules that it needs, when it runs: imports (numpy, protobuf, aiohttp) take most of its
time.

Imports: all rooms of the supervisor; of `admin/`, only the table `policy_routes.py`.  Start with `admin/verbs.py`.
"""

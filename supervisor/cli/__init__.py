"""The commands of `geminga`, except `serve`, which is in `main.py`.

    admin/            `geminga admin`
    messages/         publish, consume, find and move messages
    views/            tables of what a broker does, and why it does not
    access/           named brokers, certificates, keys
    folder/           a data folder: the night, backups, damage, formats
    configuration.py, operations.py, debug.py   the running broker: configuration, log, status, bundles
    moving.py, definitions.py       import and export of messages and of definitions
    table_import.py                 import of tables
    running.py        coroutines that talk to a broker, and errors of the connection
    grammar.py        groups of commands that suggest the nearest name
    completion.py     names that a shell completes, as a broker knows them
    missing_names.py  names that a broker does not have, and those that are like them
    options.py        options of several commands, and the configuration that they name
    output.py, progress.py, show.py   forms of answers, errors that end a command, bars

A command that cannot go on raises output.Failed, or another error with an exit status: main.py prints it, and ends so.

A command imports only the modules that it needs, when it runs: imports (numpy, protobuf, aiohttp) take most of its
time.

Imports: all rooms of the supervisor but `admin/`.  Start with `admin/verbs.py`.
"""

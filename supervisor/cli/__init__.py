"""`geminga admin`: pulsar-admin's groups, verbs and options over a broker's HTTP port.

    verbs.py      the verbs, a few lines each: method, path, options, example
    policies.py   those that set, get and remove policies, out of the table of policies
    admin.py      rows of these tables -> commands; runs one
    tokens.py     keys and tokens, without a broker
    credentials.py who a command is to its broker
    reasons.py    why an address does not answer
    rest.py       one question to a broker, and how it can go wrong
    units.py      times and sizes as pulsar-admin reads them, and moments
    messages.py   entries with their metadata -> messages
    show.py       answers for people

`geminga nightly` is nightly.py, backup and restore are backup.py, status, log and tune operations.py, read is reading.py, import and export
moving.py; definitions and debug have their own; installed.py finds the broker of a package.
Nothing here imports what a broker needs (numpy, protobuf, aiohttp) before it is needed, and each command only what it needs itself: most of
what a command costs is imports.
"""

"""Workers: network processes that accept clients, read their commands, route them to owners, and write owners' answers.

    options.py     what can be configured of a worker
    addresses.py   where clients are to connect
    failures.py    an unexpected error ends one client's connection only
    identity/      who a client is, and what it may do
    ports/         a connection's first bytes, and the number of connections
    owners/        the links to the owners, and commands that wait for them
    directory/     answers from the catalogue: lookup, lists of topics, schemas
    clients/       one connection: its bytes, its producers and consumers, its deliveries
    process/       the process: listeners, the worker, its start and end

Each folder may import those above it, `geminga.storage` and `geminga.proto`; never `geminga.supervisor`.
Start with clients/__init__.py, which follows a SEND, an ACK and a delivery.
"""

"""Processes that talk to the network: clients' commands go to owners, and owners' answers to clients.

    options.py     what can be configured of a worker
    addresses.py   where clients are to connect
    failures.py    an unexpected error ends one client's connection only
    identity/      who a client is, and what it may do
    ports/         a connection's first bytes, and the number of connections
    owners/        the links to the owners, and commands that wait for them
    directory/     answers from the catalogue: lookup, lists of topics, schemas
    clients/       one connection: its bytes, its producers and consumers, its deliveries
    process/       the process: listeners, the worker, its start and end
    pulsar_client/    a client of Pulsar's protocols, for the rooms below and for commands
    messages/         messages as applications see them: decoded, filtered, printed
    dead_letters/     `geminga-replicator`: dead letters go to other topics
    replication/      `geminga-replicator`: entries go to other clusters
    web/              `geminga-web`: WebSocket
    http_messages/    `geminga-web`: messages over plain HTTP

Each folder may import those above it, `geminga.storage` and `geminga.proto`; never `geminga.supervisor`.
Start with clients/__init__.py, which follows a SEND, an ACK and a delivery.
"""

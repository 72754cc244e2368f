"""A small client of Pulsar's binary protocol and of its REST, for the health check, commands and tasks.

    connection.py    one connection: requests, handshake, keep-alive, end, for WebSocket and replication too
    client.py        the binary protocol: connect, publish, read
    entries.py       an entry as it is stored, with its position
    producers.py     producers with many entries under way
    consumers.py     consumers of several topics on one connection, acknowledgements
    rest.py          HTTP: one question to a broker, and how it can fail
    credentials.py   credentials of a command
    reasons.py       errors of connections in one line
    key_hashing.py   the partition that each client library chooses for a key

Imports: `identity/`, storage/runtime, proto.  Start with `client.py`.
"""

"""A small client of Pulsar's binary protocol and of its REST, for the health check, commands and tasks.

    client.py        the binary protocol: connect, publish, read
    rest.py          HTTP: one question to a broker, and how it can fail
    credentials.py   credentials of a command, from options, the environment or client.conf
    reasons.py       errors of connections in one line
    key_hashing.py   the partition that each client library chooses for a key

Imports: `configuration/`, proto.  Start with `client.py`.
"""

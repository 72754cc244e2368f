"""A small client of both protocols, for the health check, commands and tasks.

    client.py        the binary protocol: connect, publish, read
    rest.py          HTTP: one question to a broker, and how it can fail
    credentials.py   who a command is to its broker, by option, environment or client.conf
    reasons.py       why an address does not answer
    key_hashing.py   which partition a client library chooses for a key

Imports: `configuration/`, proto.  Start with `client.py`.
"""

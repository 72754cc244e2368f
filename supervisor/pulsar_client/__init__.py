"""A small client of the binary protocol, for the health check and for commands.

    client.py        connect, publish, read
    key_hashing.py   which partition a client library chooses for a key

Imports: proto.
"""

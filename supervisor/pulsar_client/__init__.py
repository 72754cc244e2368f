"""A small client of Pulsar's binary protocol and of its REST, for the health check, commands and tasks.

    client.py        the binary protocol: connect, publish, read
    requests.py      requests of one connection, many under way
    questions.py     partitions and schemas of a topic
    greetings.py     CONNECT, and the answer to it
    answers.py       the answers of a broker, and the errors in them
    entries.py       an entry as it is stored, with its position
    producers.py     producers with many entries under way
    consumers.py     consumers of several topics on one connection, acknowledgements
    rest.py          HTTP: one question to a broker, and how it can fail
    target.py        the broker that a command means: options, and where their defaults come from
    contexts.py      named brokers of a user
    credentials.py   credentials of a command
    reasons.py       errors of connections in one line
    key_hashing.py   the partition that each client library chooses for a key

Imports: `configuration/`, `host/`, proto.  Start with `client.py`.
"""

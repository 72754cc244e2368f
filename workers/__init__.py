"""The network's side: accept, read, route, write.

    options.py   what a worker can be told
    worker.py    the process: its loop, its clients, its links to the owners
    listeners.py where a process accepts clients; addresses.py, where those are told to go
    client.py    one connection's events turned into envelopes, and back
    turns.py     whose turn it is, and how much memory clients that are slow may take
    joins.py     how many producers and consumers an owner is asked for at a time, and whose turn it is
    requests.py  what a worker answers by itself: lookup, partition metadata
    schemas.py   what is done to schemas, in a thread
    patterns.py  topics chosen by a pattern
    watchers.py  clients that discover topics
    rights.py    what each command demands, and who has lost the right to what it has
    identity/    who somebody is, and what they may do
    links.py     the way to one owner, and which owner has what
    egress.py    runs of entries -> bytes, from the mapped ledgers
"""

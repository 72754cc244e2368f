"""A broker and its standby, over the network.

    feed.py        the process of a broker that feeds its standby
    following.py   the standby's connection to its broker
    serve.py       a standby: it follows, answers over HTTP how far it is, and is promoted

Imports: processes and all below.  Start with serve.py.
"""

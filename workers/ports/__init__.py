"""Ports: what is decided about a connection before any of its commands is read.

    gate.py           looks at first bytes: takes the PROXY header off, sends other protocols away
    proxy_header.py   PROXY protocol, versions 1 and 2
    within_tls.py     looks at the first bytes within TLS: another protocol, a PROXY header
    protocols.py      which protocol came, and the answer to the wrong one
    admission.py      how many connections are open, of all workers and of one address
    connections.py    which connections are open, for the admin process to list
    throttled_log.py  one line a minute about each kind of stranger

May import identity, storage and proto, and nothing else in workers.  Start with gate.py.
"""

"""Identity: who is at the other end of a connection or request, and what they may do.

    options.py           what can be configured of it
    certificates.py      TLS: contexts for listeners, certificates that change while they are used
    pem.py               certificates and keys in files
    authentication.py    what somebody shows -> Identity
    authorization.py     (Identity, action, resource) -> allowed or not, and why
"""

"""Identity: who is at the other end of a connection or request, and what they may do.

    options.py           what can be configured of it
    certificates.py      TLS: contexts for listeners, certificates that change while they are used
    pem.py               certificates and keys in files
    authentication.py    what somebody shows -> Identity
    shown.py             what that is, and how it is refused
    tokens.py            JSON Web Tokens
    basic.py             users and passwords
    sources.py           keys and password files, which change while they are used
    attempts.py          those that fail: counted, told, slowed down
    hashes.py            the thread for what is slow, shared out by address
    handshakes.py        the same over the binary protocol, and again when a token expires
    authorization.py     (Identity, action, resource) -> allowed or not, and why
"""

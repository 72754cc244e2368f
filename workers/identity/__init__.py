"""Identity: who is at the other end of a connection or of an HTTP request, and what they may do.

    options.py           what can be configured of it
    credentials.py       what a client authenticates with, and the error for what is not accepted
    authentication.py    Credentials -> Identity, by the methods of the configuration
    tokens.py            JSON Web Tokens
    keys.py              keys that check their signatures
    issuers.py           keys of issuers of OpenID Connect: when they are fetched, and how long they are kept
    issuer_documents.py  documents of an issuer, over HTTP
    basic.py             users and passwords
    certificates.py      TLS: contexts for listeners, certificates that change while they are used
    pem.py               certificates and keys in files
    sources.py           keys and password files, which change while they are used
    attempts.py          failed attempts: counted, logged, slowed down
    hashes.py            a thread for slow checks, shared out by address
    local.py             users of the host, by the sockets in the data folder
    handshakes.py        authentication over the binary protocol, and again when a token expires
    authorization.py     (Identity, action, resource) -> allowed or not, and why

May import storage and proto, and nothing else in workers.  Start with authentication.py and authorization.py.
"""

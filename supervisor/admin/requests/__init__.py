"""Processing of every request before its route: its parts, authentication, authorization, and the audit log.

    request_parts.py    the catalogue, path, query and body of a request, and the topics that it names
    owners.py           questions to the owner processes, which alone may change a topic
    replicator.py       questions to the replicator, which sends messages to other clusters
    authentication.py   finds out who sends a request
    sessions.py         cookies of those who signed in to the console
    rights.py           the rights that routes demand, said where a route is declared
    authorization.py    refuses requests of roles without the right
    origins.py          refuses requests that a web page of another site makes
    jobs.py             starts processes of this program for requests
    handing_over.py     connections that other processes take over
    audit.py            a line for each change
    audit_reading.py    the newest of these lines, over HTTP

Imports: `configuration/`, `replication/`, workers, storage.  Start with `request_parts.py`.
"""

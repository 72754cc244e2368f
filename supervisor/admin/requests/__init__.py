"""Every request before its route: parts of it, who asks, what that role may do, and a record of changes.

    request_parts.py    the catalogue, path, query and body of a request, and the topics that it names
    owners.py           questions to the owner processes, which alone may change a topic
    authentication.py   who asks
    authorization.py    what each route demands of a role
    origins.py          refuses requests that a web page of another site makes
    audit.py            a line for each change

Imports: `configuration/`, workers, storage.  Start with `request_parts.py`.
"""

"""Messages over plain HTTP: `geminga-web` processes serve requests that the admin process has checked.

    calls.py        what is said about a request, and the sockets between the processes
    server.py       a `geminga-web` process: calls, their bounds and their errors
    bodies.py       bodies of requests, of bounded size
    producing.py    a body -> messages to publish
    encoding.py     texts -> keys and payloads by a schema
    publisher.py    a producer that calls share
    receiving.py    parameters and bodies of calls that consume, and messages as these see them
    receiver.py     a consumer that calls share
    events.py       messages as server-sent events
    pool.py         sessions that calls share, which end when nobody uses them

Imports: `web/`, `messages/`, `pulsar_client/`, `identity/`, storage, proto.
Start with `server.py`.
"""

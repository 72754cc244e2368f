"""WebSocket: `geminga-web` processes serve Pulsar's WebSocket API to connections that the admin process hands over.

    doors.py          the admin process: paths, rights, and the hand-over of a connection
    visits.py         what is handed over with a connection, and the socket between the processes
    process.py        a `geminga-web` process: visits become sessions; reload, drain, stop
    connection.py     one WebSocket: its frames, its buffers, keep-alive, the end
    frames.py         WebSocket frames -> messages, and back
    parameters.py     parameters of a door's address
    session.py        what producers, consumers and readers share: their client of the workers, and its reconnecting
    inner.py          a client of the workers with many requests under way
    producer.py       a producer: texts -> entries, receipts -> texts
    publishing.py     one text -> a message to publish
    consumer.py       consumers and readers: the window, acknowledgements, redelivery
    subscribing.py    consumers' topics: which ones, and SUBSCRIBE
    acknowledging.py  acknowledgements, gathered into few commands
    delivered.py      entries -> texts, and message ids
    dead_letters.py   messages that were redelivered too often go to another topic

Imports: `admin/`, `messages/`, `pulsar_client/`, `configuration/`, `host/`, workers, storage, proto.
Start with `process.py`.
"""

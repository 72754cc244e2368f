"""WebSocket: `geminga-web` processes serve Pulsar's WebSocket API to connections that the admin process hands over.

    handovers.py         what is handed over with a connection, and the socket between the processes
    process.py           a `geminga-web` process: handovers become sessions; reload, drain, stop
    connection.py     one WebSocket: its frames, its buffers, keep-alive, the end
    frames.py         WebSocket frames -> messages, and back
    parameters.py     parameters of a door's address
    session.py        what producers, consumers and readers share: their client of the workers, and its reconnecting
    worker_links.py   connections to the workers, of one session each or shared
    producer.py       a producer: texts -> entries, receipts -> texts
    publishing.py     one text -> a message to publish
    consumer.py       consumers and readers: the window, acknowledgements, redelivery
    subscribing.py    consumers' topics: which ones, and SUBSCRIBE
    acknowledging.py  acknowledgements, gathered into few commands
    delivered.py      entries -> texts, and message ids
    dead_letters.py   messages that were redelivered too often go to another topic

Imports: `messages/`, `pulsar_client/`, `owners/`, `identity/`, storage, proto.
Start with `process.py`.
"""

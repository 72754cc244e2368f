"""One client: the bytes of its connection, what it asks, its producers and consumers, and what is delivered to it.

    stream.py             bytes: reads frames in turns, writes as fast as the client reads
    turns.py              bounds over all clients: time, unfinished frames, unread answers
    client.py             the client: identity, version, and the parts below
    routes.py             its producers and consumers, and which owner has them
    pending_requests.py   its requests that owners have not answered
    messages.py           SEND, ACK, FLOW -> owners; receipts -> the client
    commands.py           all other commands, answered or passed on
    transactions.py       commands about transactions
    sealed_producers.py   its producers of sealed segments, which it closes itself
    registrations.py      its stream consumers, which owners keep; stream_consumers.py, the commands about them
    forwarding.py         commands -> owners
    replies.py            owners' answers, and the end of an owner
    delivery_queue.py     entries to be written to it
    egress.py             the ledgers they are read from, mapped
    rights.py             the rights it must have, and keep

    SEND       stream -> messages -> owners/links  ...  owners/links -> messages -> stream
    ACK        stream -> commands -> messages -> owners/links  ...  owners/links -> replies -> stream
    delivery   owners/links -> delivery_queue -> egress -> stream

May import workers/owners, workers/directory, workers/identity and storage.  Start with client.py, then stream.py.
"""

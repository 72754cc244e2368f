"""Bytes of the Pulsar protocol and their meaning: no I/O, no clock, no process.

It imports the standard library, numpy and the codecs' libraries, and nothing else of geminga.  Start with frames.py
(a frame's layout), connection.py (bytes -> events of a connection) and envelope.py (messages between processes).

    pulsar_api.proto   every command and field; pulsar_api_pb2.py and .pyi are generated from it
    errors.py          errors that a peer causes
    names.py           topic names, ids of transactions, names of replicators, positions in other clusters
    layouts.py         segments of topics, for clients of Pulsar 5
    frames.py          frames and commands -> bytes
    rows.py            a row's layout, for numpy and for struct
    varints.py         columns of protobuf varints, both ways
    checksums.py       CRC32-C of many entries at once
    sends.py           SEND frames -> rows
    mixed_sends.py     SEND frames of differing sizes -> rows, many at once
    job_properties.py  properties of messages that the broker reads
    acks.py            ACKs of many messages -> arrays
    commands.py        a row for each command of clients: its state, right, answerer and refusal
    connection.py      the state machine of a connection
    deliveries.py      receipts and messages -> bytes
    responses.py       responses and other commands of a broker -> bytes, one by one
    envelope.py        messages of ZeroMQ between workers and owners
    metadata.py        metadata of many messages -> columns
    batches.py         batches -> places of their messages
    batch_priorities.py  the highest priority of a batch's messages
    batch_parts.py     batches of which some messages are wanted, one by one
    contents.py        the contents of an entry's messages
    compression.py     payloads, compressed as clients do
"""

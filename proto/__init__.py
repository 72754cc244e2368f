"""Bytes and their meaning: no I/O, no clock, no process.

    pulsar_api.proto   the protocol; pulsar_api_pb2.py is generated from it
    errors.py          what a peer can do wrong
    names.py           topic names, and the files' names made of them
    frames.py          bytes -> frames, commands -> bytes
    rows.py            one layout of a row for numpy and for struct
    varints.py         columns of protobuf varints, both ways
    checksums.py       CRC32-C of many entries at once
    sends.py           SEND frames -> rows, as arrays
    delivery_times.py  entries -> the same with another delivery time
    acks.py            ACKs of many messages -> rows, as arrays
    metadata.py        metadata of many messages -> columns
    batches.py         batches -> where each of their messages is
    compression.py     payloads, compressed as clients do
    deliveries.py      receipts and messages -> bytes, as arrays
    commands.py        the answers a broker gives, one by one
    connection.py      one connection's state table: bytes in, events out
    envelope.py        what crosses ZeroMQ between workers and owners
"""

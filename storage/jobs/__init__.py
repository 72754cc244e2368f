"""Jobs that read ledgers without the broker: the nightly job, compaction on demand, queries in Spark.

    confirmed.py         partitions, their confirmed ledgers and views, as stretches to read
    reading.py           entries -> Arrow batches with a row per message
    entry_blocks.py      reads blocks of entries with their index rows, and compares checksums
    message_columns.py   the columns of a message, as Arrow arrays; arrays.py makes arrays of bytes and times
    one_by_one.py        reads messages with the protobuf library, for entries that clients do not usually write
    chunks.py            messages that were sent in chunks
    source.py            a data source of Spark
    typed.py             payloads -> values of their topic's schema
    shapes.py            definitions -> types of columns, and the type that holds the values of several
    avro_values.py       payloads of Avro -> values, within bounds
    json_values.py       payloads of JSON -> values, with all their digits
    compacting/          compaction: one run over many partitions, and the views that it writes or continues
    apart.py             work in a process of its own, which may crash, hang or take too much memory

Nothing here writes into a ledger.  The broker's processes import nothing from here, so neither Arrow nor Spark.
"""

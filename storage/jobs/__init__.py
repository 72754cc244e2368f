"""Jobs that read ledgers without the broker: the nightly job, compaction on demand, queries in Spark.

    confirmed.py    partitions, their confirmed ledgers and views, as stretches to read
    reading.py      entries -> Arrow batches with a row per message; arrays.py makes the Arrow arrays
    one_by_one.py   the same by the protobuf library, for entries that clients do not usually write
    chunks.py       messages that were sent in chunks
    source.py       a data source of Spark
    typed.py        payloads -> values of their topic's schema
    compaction.py   the newest message of each key, and a view with these messages
    rewriting.py    batches from which some messages are removed
    engines.py      computes a compaction in this process, or in Spark
    nightly.py      a run over many partitions: plan, progress, report

Nothing here writes into a ledger. The broker's processes import nothing from here, and so neither Arrow nor Spark.
"""

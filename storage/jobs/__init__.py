"""What reads the ledgers from beside the broker: the nightly job, compaction when it is asked for, and queries in Spark.

    confirmed.py    what there is to be read, and how far: partitions, their ledgers, their compacted views
    reading.py      entries -> Arrow batches with a row per message; arrays.py has what makes the arrays
    one_by_one.py   the same of entries that are not as clients write them, by the protobuf library
    chunks.py       messages that came in chunks
    source.py       the same as a data source of Spark
    typed.py        payloads -> values of their topic's schema
    compaction.py   the newest message of each key: which, and a view with them
    rewriting.py    batches of which some messages are gone
    engines.py      where that is computed: in this process, or by Spark
    nightly.py      a run over many partitions: plan, progress, report

Nothing here writes into a ledger, and nothing here is imported by the broker's processes, which know neither Arrow nor Spark.
"""

"""Compaction without the broker: one run over many partitions, and the views that it writes or continues.

    overtaken.py      segments that were compacted before one that has yet to follow
    nightly.py        a run over many partitions: plan, progress, report
    engines.py        runs both passes of a compaction in this process, or in Spark
    compaction.py     the compaction of one partition: sources, chunked messages, the folder of its view
    key_scan.py       first pass of a compaction: the newest message of each key
    view_writer.py    second pass of a compaction: the ledgers of a view with these messages
    rewriting.py      batches from which some messages are removed
    continuation.py   continues a view: links, masks or writes its parts anew
    key_hashes.py     hashes of keys
    part_writer.py    writes the files of a part
    spark_tasks.py    the tasks of a compaction that reads whole views in Spark

The files' layout is in `../../ledgers/view_files.py`.  Imports: the files of `jobs/` itself, which read ledgers, and
what is below it.  Start with `compaction.py`.
"""

"""Parts of compacted views: how they are written, and how a compaction continues a view instead of reading all of it.

    further.py        continues a view: links, masks or writes its parts anew
    key_hashes.py     hashes of keys
    key_files.py      the hashes of a whole view: whether it can be continued
    part_writer.py    writes the files of a part
    spark_tasks.py    the tasks of a compaction that reads whole views in Spark

The files' layout is in `../../ledgers/view_files.py`.
"""

"""A standby's copy of a broker's data folder, kept by shipping the journals' records.

    standing.py      the file `standby`: who follows whom, and which history a folder has
    journal_tail.py  records of a journal, as its owner writes them
    frames.py        frames between a broker and its standby
    sources.py       files, views, amendments, catalogue: what a feed sends beside records
    feeding.py       a feed: what is sent, in which order
    copy.py          the copy: what is written, and when it is synced
    applying.py      the process that puts records of the copy in place

Imports: owner, offline and all below.  Start with feeding.py, then copy.py.
"""

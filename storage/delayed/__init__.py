"""The index of delayed messages (PIP-26): which entries wait, and when each falls due.

    index.py             which positions wait, which are due: one index for all subscriptions of a partition
    window_files.py      due times, one file for each window of time
    waiting_bitmaps.py   one bit for each entry that waits
    amendments.py        messages that operators cancelled or rescheduled
    snapshot_file.py     the part of the index that is saved

Imports: `ledgers/`, `disk/`, `format.py`.  Start with `index.py`.
"""

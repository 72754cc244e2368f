"""The index of delayed messages (PIP-26): which entries wait, and when each falls due.

    index.py             which positions wait, which are due: one index for all subscriptions of a partition
    reports.py           how many entries wait in which window, and which are due next, for administration
    persistence.py       saving the index, and restoring it at a start
    row_store.py         delivery times and positions, from memory into files and back
    rows.py              delivery times and positions in memory, as arrays
    window_files.py      delivery times and positions on disk, one file for each window of time
    window_counts.py     numbers of entries by window
    waiting_bitmaps.py   one bit for each entry that waits
    amendments.py        messages that operators cancelled or rescheduled
    snapshot_file.py     the bytes of a saved index

Imports: `ledgers/`, `cursors/`, `disk/`, `format.py`.  Start with `index.py`.
"""

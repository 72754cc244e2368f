"""Positions: entries that a subscription has acknowledged, entries pending at consumers, sequence ids of producers.

    cursor.py               the mark-delete position and individually acknowledged entries
    batch_acks.py           batches that are acknowledged in part
    entry_counts.py         redeliveries and deaths by entry
    pending_acks.py         entries that consumers have and have not acknowledged
    producer_sequences.py   last sequence id of each producer name, for deduplication
    state_file.py           cursors and sequences of a partition as one file
    state_v1.py             that file as older programs wrote it

Imports: `disk/`, `format.py`, `errors.py`.  Start with `cursor.py`.
"""

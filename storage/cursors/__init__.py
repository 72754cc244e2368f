"""Positions: entries that a subscription has acknowledged, entries pending at consumers, sequence ids of producers.

    cursor.py               the mark-delete position and individually acknowledged entries
    batch_acks.py           batches that are acknowledged in part
    entry_counts.py         redeliveries and deaths by entry
    dead_entries.py         entries that go to the dead letter topic
    pending_acks.py         entries that consumers have and have not acknowledged
    open_transactions.py    what open transactions of a partition have published and acknowledged
    transaction_acks.py     acknowledgements that wait for a commit
    withheld.py             entries that no consumer of a subscription gets because of these
    snapshots.py            positions of the same place in several clusters
    producer_sequences.py   last sequence id of each producer name, for deduplication
    inherited_messages.py   messages of a producer that segments before a segment have stored
    state_file.py           cursors and sequences of a partition as one file
    state_v1.py             that file as older programs wrote it

Imports: `disk/`, `format.py`, `errors.py`.  Start with `cursor.py`.
"""

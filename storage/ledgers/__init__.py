"""Entries on disk: ledgers, the journal in front of them, compacted ledgers.

    readable.py            the interface of ledgers for readers: stored, compacted or transient
    cut_ledger.py          ledgers up to the first entry of an open transaction
    ledger.py              entries and their index, mapped into memory
    ledger_files.py        creates ledgers, and opens existing ones
    ledger_headers.py      headers of both files, and which ledgers a folder has
    managed_ledger.py      the chain of ledgers of one partition
    position.py            ledger id and entry id
    bit_errors.py          finds a single wrong bit from a CRC
    index_repair.py        rebuilds damaged rows of an index from the entries
    journal.py             segments that hold the decisions of passes, synced once per pass
    checkpoints.py         how changes get from the journal to their own files
    journal_ops.py         builds the operations of records, a function for each kind
    journal_reader.py      reads the records of segments back
    journal_segments.py    files of segments: made, retired, used again
    compacted_ledgers.py   compacted views: the newest message of each key, as jobs/ writes them
    view_files.py          hashes of a view's keys, and masks of messages that it has no more

Imports: `disk/`, `runtime/`, `cursors/` data types.  Start with `ledger.py`; every byte is in `../format.py`.
"""

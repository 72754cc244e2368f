"""Entries on disk: ledgers, the journal in front of them, compacted ledgers.

    readable.py            what readers ask of a ledger, stored, compacted or passing
    ledger.py              entries and their index, mapped into memory
    ledger_files.py        ledgers created, and opened as they lie on disk
    ledger_headers.py      headers of both files, and which ledgers a folder has
    managed_ledger.py      the chain of ledgers of one partition
    position.py            ledger id and entry id
    bit_errors.py          which bit is wrong
    index_repair.py        an index made anew from the entries it describes
    journal.py             segments that hold what a pass decided, synced once per pass
    checkpoints.py         how changes get from the journal to their own files
    journal_ops.py         the operations of its records, a function for each kind
    journal_reader.py      the records of segments, read back
    compacted_ledgers.py   the newest message of each key, as jobs/ writes them

Imports: `disk/`, `runtime/`, `cursors/` data types.  Start with `ledger.py`; every byte is in `../format.py`.
"""

"""Work on a data folder without a broker: verify, repair, dump, search, back up, restore.

    verify.py              finds damage in a whole folder; verify_*.py each check one part of it
    rehearsal.py           the state after the next start, computed without a write
    findings.py            one finding: place, damage, cost
    repair.py              copies damaged bytes aside and rebuilds what has a second source
    dump.py                prints one file, line by line; dump_views.py files of compacted views
    search.py              finds messages in ledgers by key, text, time and other fields
    upgrade.py             the formats of a folder, and the changes that a start would make
    backup.py, restore.py  make a backup; restore one into an empty folder
    backup_items.py        one file of a backup: its size, checksum, and copy

Imports: `disk/`, `ledgers/`, `cursors/`, `catalogue/`, `schemas/`, the reading of `jobs/`, the recovery of
`owner/`. Start with `verify.py`.
"""

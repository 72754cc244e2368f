"""Work on a data folder without a broker: verify, repair, dump, back up, restore.

    verify.py              finds damage in a whole folder; verify_*.py each check one part of it
    rehearsal.py           the state after the next start, computed without a write
    findings.py            one finding: place, damage, cost
    repair.py              copies damaged bytes aside and rebuilds what has a second source
    dump.py                prints one file, line by line
    upgrade.py             the formats of a folder, and the changes that a start would make
    backup.py, restore.py  make a backup; restore one into an empty folder

Imports: `disk/`, `ledgers/`, `cursors/`, `catalogue/`, `schemas/`, and the recovery of `owner/`. Start with
`verify.py`.
"""

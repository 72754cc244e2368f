"""A data folder without a broker: verify, repair, dump, back up, restore.

    verify.py              finds damage in a whole folder; verify_ledger.py and its kin, in one part
    findings.py            what is damaged, where, and what that costs
    repair.py              puts damaged bytes aside
    dump.py                one file, line by line
    upgrade.py             the formats of a folder, and what a start would change
    backup.py, restore.py  make a backup, put one in place

Imports: `disk/`, `ledgers/`, `cursors/`, `catalogue/`, `schemas/`, never `owner/`.  Start with `verify.py`.
"""

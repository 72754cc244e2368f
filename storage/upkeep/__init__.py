"""Upkeep: the work of an owner that no policy asks for, on disk space, memory and files.

    disk_space.py          watermarks of the file system, and allocation near them
    memory_pressure.py     publishing is held while memory is short
    hole_punching.py       disk blocks of acknowledged entries are given back within ledgers
    missing_files.py       files that are removed while the broker uses them are reported
    delayed_scheduler.py   delayed indexes advance, scan, flush and are saved
    compacted_views.py     which compacted view is in force, and which readers still use an older one
    backup_snapshot.py     a consistent cut for a backup, between two passes
    discovery.py           new topics keep their messages for clients that discover topics

Imports: `topics/`, `commands/`, `ledgers/`.  Start with `disk_space.py`.
"""

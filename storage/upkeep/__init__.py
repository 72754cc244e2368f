"""What an owner does by itself, whatever policies say.

    disk_space.py          watermarks of the file system, and allocation near them
    memory_pressure.py     publishing is held while memory is short
    hole_punching.py       disk blocks of acknowledged entries, given back within ledgers
    missing_files.py       files that somebody removed while they are used
    delayed_scheduler.py   loading and saving of the delayed index between passes
    compacted_views.py     which compacted view is in force, and which readers still use an older one
    backup_snapshot.py     a consistent cut for a backup, between two passes
    discovery.py           names of new and deleted topics for clients that watch them

Imports: `topics/`, `commands/`, `ledgers/`.  Start with `disk_space.py`.
"""

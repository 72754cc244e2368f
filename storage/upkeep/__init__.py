"""Upkeep: the work of an owner that no policy asks for, on memory and files.

    memory_pressure.py     publishing is held while memory is short
    hole_punching.py       disk blocks of acknowledged entries are given back within ledgers
    trimming.py            deletes ledgers that no subscription needs
    kept_topics.py         deleted topics and cleared backlogs that are kept are given up
    missing_files.py       files that are removed while the broker uses them are reported
    delayed_scheduler.py   delayed indexes advance, scan, flush and are saved

Imports: `topics/`, `open_topics/`, `commands/`, `ledgers/`.  Start with `memory_pressure.py`.
"""

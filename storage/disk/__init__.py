"""System calls, files and locks: nothing here knows what a topic is.

    syscalls.py        calls that Python lacks: fallocate, hole punching, malloc_trim
    files.py           files allocated ahead, synced, replaced as a whole, mapped into memory
    locks.py           locks of a data folder, of a night, of a partition's views
    regular_files.py   reading in folders that others may have written: regular files only
    data_folder.py     the format number of a data folder, and which folders this program may write to

Imports: `errors.py` and `format.py` of storage.  Start with `data_folder.py`.
"""

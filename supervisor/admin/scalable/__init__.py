"""Scalable topics as they change: their segments split, merge and get other entry buckets.

    layout_changes.py   begins changes of layouts, and finishes those that were cut short
    growing.py          changes them by what they carry, and for consumers that have none
    changing.py         their routes

Imports: `admin/resources/` and what that imports.  Start with `layout_changes.py`.
"""

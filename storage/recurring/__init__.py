"""Recurring messages: schedules that publish a message at planned times, each exactly once.

    timetable.py    the planned times of a schedule, by a cron expression in a time zone, or every so many seconds
    entries.py      the entry that a schedule publishes for a planned time
    recurring.py    the schedules of one owner's topics: which is due, what is published, and what waits

Imports: `topics/`, `open_topics/`, `catalogue/`.  Start with `timetable.py`.
"""

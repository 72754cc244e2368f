"""Answers of an owner to administration: what it asks about partitions, and what it has done to them.

    queries.py            a function for each question, in one table
    topic_stats.py        stats of a topic
    positions.py          which message lies where, by id and by time
    delayed_messages.py   messages that wait for their time: list, cancel, reschedule
    housekeeping.py       what a night gives back

Imports: everything below `owner/`.  Start with `queries.py`.
"""

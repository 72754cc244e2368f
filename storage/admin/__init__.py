"""Answers of an owner to questions of administration, and changes that administration asks for.

    queries.py            a function for each question, in one table
    topic_stats.py        statistics of one topic
    compaction.py         compacted views: adopt one, which partitions are due
    positions.py          positions of messages, by id and by time
    delayed_messages.py   messages that wait for their time: list, cancel, reschedule
    housekeeping.py       space that a night gives back

Imports: everything below `owner/`. Start with `queries.py`.
"""

"""The owner process: a loop of passes.

    owner.py              a pass: receive, decide, sync, answer
    process.py            the loop around it
    outbox.py             answers of a pass, by worker
    partition_timers.py   when a partition is looked at although no command came for it
    recovery.py           journal -> ledgers and cursors, after a crash

Imports: all of storage but `offline/` and `jobs/`.  Start with `owner.py`.
"""

"""The owner process: a loop of passes.

    owner_pass.py                 a pass: receive, decide, sync, answer
    owner.py                      puts the parts together
    requests.py                   commands and questions that came in envelopes
    publishing.py                 SENDs of stored topics
    non_persistent_publishing.py  SENDs of non-persistent topics
    dispatching.py                acknowledgements, permits, and what consumers get
    durability.py                 commits and syncs
    partition_table.py            open partitions, and how they are opened, created, unloaded and deleted
    partition_timers.py           times at which topics are dispatched although no client asks
    trimming.py                   deletes ledgers that nobody needs
    process.py                    the loop of passes, and the start of an owner
    recovery.py                   journal -> ledgers and cursors, after a crash
    replayed_ops.py               what each kind of operation does then

Imports: all of storage but `offline/` and `jobs/`.  Start with `owner_pass.py`.
"""

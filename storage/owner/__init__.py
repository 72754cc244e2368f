"""The owner process: a loop of passes.

    owner_pass.py                 a pass: receive, decide, sync, answer
    owner.py                      puts the parts together
    requests.py                   commands and questions that came in envelopes
    publishing.py                 SENDs; non_persistent_publishing.py, those to topics that store nothing
    dispatching.py                acknowledgements, permits, and what consumers get
    durability.py                 commits and syncs
    partition_table.py            open partitions, and how they come, go and grow
    partition_timers.py           when a partition is dispatched although no client asks
    trimming.py                   ledgers that nobody needs
    process.py                    the loop around it
    recovery.py                   journal -> ledgers and cursors, after a crash
    replayed_ops.py               what each kind of operation does then

Imports: all of storage but `offline/` and `jobs/`.  Start with `owner_pass.py`.
"""

"""The owner process: a loop of passes.

    owner_pass.py                 a pass: receive, decide, sync, answer
    owner.py                      puts the parts together
    requests.py                   commands of clients and questions of administration
    publishing.py                 SENDs of stored topics
    replicated_publishing.py      SENDs of other clusters' replicators
    non_persistent_publishing.py  SENDs of non-persistent topics
    dispatching.py                acknowledgements, permits, and deliveries to consumers
    partition_timers.py           times at which topics are dispatched without a request of a client
    process.py                    the loop of passes, and the start of an owner
    recovery.py                   journal -> ledgers and cursors, after a crash
    replayed_ops.py               applies operations of the journal, a function for each kind

Imports: all of storage but `offline/` and `jobs/`.  Start with `owner_pass.py`.
"""

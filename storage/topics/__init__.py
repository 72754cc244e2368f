"""Topics: partitions and non-persistent topics, with their producers and subscriptions.

    subscription.py     a topic's producers and subscriptions, consumers, dispatchers; the Protocol `Topic`
    partition.py        a stored topic: a managed ledger with subscriptions and producers
    non_persistent.py   a topic that stores nothing
    producers.py        access modes: which producers may publish together
    permits.py          how far permits reach; rate_limits.py, token buckets and limits
    publish_plan.py     SENDs of a pass -> ledgers: a place for each entry
    held_sends.py       SENDs held back by a rate or for a coordinator, and connections that are not read meanwhile
    duplicates.py       SENDs that were stored before, on partitions that deduplicate
    markers.py          entries that clusters write for each other, and that no consumer gets
    addressed.py        entries for one subscription, acknowledged for all others when they are stored
    acknowledge.py      ACKs of a pass -> cursors
    decisions.py        decisions of a pass: ops, and the answers to each worker
    session.py          a client connection
    owner_context.py    the owner as commands, policies and administration see it
    exported.py         how far nights have exported a partition
    watcher.py          what the owner calls each second

Imports: `catalogue/`, `ledgers/`, `cursors/`, `delayed/`, `runtime/`.  Start with `subscription.py`.
"""

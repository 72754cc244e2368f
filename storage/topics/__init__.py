"""Topics: partitions and non-persistent topics, with their producers and subscriptions.

    subscription.py     a topic's producers and subscriptions, consumers, dispatchers; the Protocol `Topic`
    partition.py        a stored topic: a managed ledger with subscriptions and producers
    cleared_backlog.py  a backlog that was cleared, and can be taken back
    non_persistent.py   a topic that stores nothing
    producers.py        access modes: which producers may publish together
    permits.py          how far permits reach; rate_limits.py, token buckets and limits
    publish_plan.py     SENDs of a pass -> ledgers: a place for each entry
    duplicates.py       SENDs that were stored before, on partitions that deduplicate
    exported.py         how far nights have exported a partition

Imports: `catalogue/`, `ledgers/`, `cursors/`, `delayed/`, `runtime/`.  Start with `subscription.py`.
"""

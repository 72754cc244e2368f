"""Topics: partitions and non-persistent topics, with their producers and subscriptions.

    subscription.py     a subscription, its consumers, its dispatcher; `Topic`, what they see of a topic
    partition.py        a stored topic: a managed ledger with subscriptions and producers
    non_persistent.py   a topic that stores nothing
    producers.py        who may publish
    permits.py          how far permits reach; rate_limits.py, token buckets and limits
    publish_plan.py     SENDs of a pass -> ledgers: where each entry goes
    duplicates.py       SENDs that came before, on partitions that deduplicate
    acknowledge.py      ACKs of a pass -> cursors
    decisions.py        decisions of a pass: ops, and the answers to each worker
    session.py          a client connection
    owner_context.py    the owner as all rooms below it see it; watcher.py, what it calls each second

Imports: `catalogue/`, `ledgers/`, `cursors/`, `delayed/`, `runtime/`.  Start with `subscription.py`.
"""

"""One partition: its chain of ledgers, its subscriptions, its producers.

    partition.py        a partition: ledgers, subscriptions, trimming
    non_persistent.py   a topic that stores nothing
    subscription.py     a name, a cursor, a dispatcher, consumers
    producers.py        who may publish to a partition
    publish_plan.py     SENDs of a pass -> ledgers: where each entry goes
    acknowledge.py      ACKs of a pass -> cursors

Imports: `ledgers/`, `cursors/`, `delayed/`, `dispatch/`.  Start with `partition.py`.
"""

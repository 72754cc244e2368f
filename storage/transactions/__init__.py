"""Transactions: coordinators, and their part in the partitions of an owner.

    coordinator.py         transactions of this owner's clients: commands, time limits, decisions
    named.py               topics and subscriptions that clients name, and their ids
    under_way.py           what waits for participants
    deadlines.py           when open transactions are aborted
    held_commits.py        commits that wait for a backup
    coordinated.py         the transactions of all coordinators that the owner has
    transaction_table.py   open and ended transactions of one coordinator, and their file
    participant.py         ADD, COMMIT and ABORT in partitions of this owner
    admission.py           SENDs in transactions: stored, dropped or refused; questions to coordinators
    held_acks.py           ACKs in transactions that wait for a coordinator
    publishing.py          entries of a plan by transaction
    pending.py             acknowledgements of open transactions on a subscription, and their COMMIT and ABORT
    peers.py               messages to the owners of other partitions
    exchange.py            messages of other owners, and of this one to itself

A client asks a coordinator, in the owner whose index is the coordinator's number.  The coordinator adds partitions to a
transaction at their owners, decides its end in one record of its journal, and has each owner apply that.

Imports: `topics/`, `open_topics/`, `catalogue/`, `runtime/`.  Start with `coordinator.py`.
"""

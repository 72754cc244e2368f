"""Dead letters: `geminga-replicator` moves what owners have found dead to other topics of the same broker.

    mover.py      which subscriptions have dead letters, and one lane for each
    lane.py       the dead letters of one subscription: published and acknowledged in one transaction
    letters.py    an entry -> the messages that are published in its place

Imports: `pulsar_client/`, storage, proto.
Start with `mover.py`, then `lane.py`.
"""

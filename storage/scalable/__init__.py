"""Stream consumers that share the segments of topics, for clients of Pulsar 5.

    auto_scaling.py       what segments carry, and the policy -> splits, merges, more buckets
    assignment.py         segments -> the stream consumers of one subscription
    stream_consumers.py   registrations of stream consumers, and what these are told
    drained.py            sealed segments, and which subscriptions have acknowledged everything there
    inheritance.py        subscriptions that are made on a sealed segment, and on those behind it first
    recounting.py         producers that repeat sequence ids of segments before: they send again, or count anew
    notices.py            notices between owners about segments

Layouts are values of `proto/layouts.py`: workers show them to producers and consumers, and the owner of the topic's
name deals their segments.
Imports: `catalogue/`, `open_topics/`, `transactions/peers.py`.  Start with `stream_consumers.py`.
"""

"""Enforcement of policies and limits on partitions, in each pass or once a second.

    publish_gate.py              causes that close a partition to producers, and producers that wait
    rate_limiter.py              publish and dispatch rates
    throttle_log.py              log lines about throttling
    backlog_quota.py             bounds of a backlog, by size and by age
    message_ttl.py               expiry of messages that are not acknowledged in time
    retention.py                 how long acknowledged messages are kept
    replication_cursors.py       subscriptions from which messages go to other clusters
    replicated_subscriptions.py  subscriptions that other clusters follow
    inactive_topics.py           deletion of unused topics and subscriptions
    delay_policy.py              how long messages may or must be delayed
    delivery_times.py            entries -> the same entries with another delivery time
    unacknowledged_limit.py      the bound of unacknowledged messages of all shared subscriptions
    closed_partition_scan.py     the same policies for partitions that are not open

Imports: `topics/`, `catalogue/`.  Start with `message_ttl.py`, a small one.
"""

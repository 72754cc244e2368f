"""Enforcement of policies and limits on partitions, in each pass or once a second.

    admitted_producers.py        producers that are closed when encryption is required, or a topic has moved
    rate_limiter.py              publish and dispatch rates
    throttle_log.py              log lines about throttling
    backlog_quota.py             bounds of a backlog, by size and by age
    dead_letters.py              messages that go to another topic: delivered too often, or expired
    message_ttl.py               expiry of messages that are not acknowledged in time
    own_ttl.py                   expiry of single messages by a time that they name themselves
    retention.py                 how long acknowledged messages are kept
    replication_cursors.py       subscriptions from which messages go to other clusters
    replicated_subscriptions.py  subscriptions that other clusters follow
    inactive_topics.py           deletion of unused topics and subscriptions
    delay_policy.py              how long messages may or must be delayed
    batch_priorities.py          priorities and times to live of batches, by their messages'
    delivery_times.py            entries -> the same entries with another delivery time
    unacknowledged_limit.py      the bound of unacknowledged messages of all shared subscriptions
    closed_partition_scan.py     the same policies for partitions that are not open

Imports: `topics/`, `open_topics/`, `catalogue/`.  Start with `message_ttl.py`, a small one.
"""

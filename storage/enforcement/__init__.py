"""What policies and limits demand of partitions, once a second or at each pass.

    publish_gate.py            why publishing to a partition is refused now
    rate_limiter.py            publish and dispatch rates; throttle_log.py, what the log says of them
    backlog_quota.py           bounds of a backlog, by size and by age
    message_ttl.py             expiry of messages that nobody acknowledges in time
    retention.py               how long acknowledged messages are kept
    inactive_topics.py         deletion of topics and subscriptions that nobody uses
    delay_policy.py            how long messages may or must be delayed
    unacknowledged_limit.py    the bound of unacknowledged messages of all shared subscriptions
    closed_partition_scan.py   the same policies for partitions that are not open

Imports: `topics/`, `catalogue/`.  Start with `message_ttl.py`, a small one.
"""

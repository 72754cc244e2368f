"""Routes of the things that an operator creates, changes and deletes; most of their paths and answers are Pulsar's.

    topics.py          topics: create, list, delete, look up; partitions and properties
    subscriptions.py   subscriptions, and changes of topics that are in use
    clears.py          clears of backlogs that are repeated after an error
    messages.py        messages shown to an operator
    message_pages.py   messages by page, decoded; publishing of one
    message_jobs.py    searches, and dead letters sent back
    delayed.py         delayed messages
    deleted.py         deleted topics that can be taken back
    schedules.py       schedules that publish messages at planned times
    dead_letters.py    dead letters that the broker has yet to move
    transactions.py    coordinators and open transactions
    schemas.py         schemas of topics
    namespaces.py      tenants and namespaces
    permissions.py     rights of roles
    policies.py        policies of namespaces and topics
    clusters.py        clusters
    cluster_records.py     what records of clusters hold, and who sees their credentials
    cluster_lists.py   the clusters that lists of policies and tenants may name
    brokers.py         the broker, and its settings that change while it runs
    configuration.py   the configuration in force, with the source of each value
    compaction.py      compactions on demand, and the jobs that run them
    websockets.py      the WebSocket API: its paths and rights, and the hand-over of a connection
    http_messages.py   messages over plain HTTP: paths, and requests that are handed on
    standby.py         the standby of this broker: its feed, its lag, its promotion
    definitions.py     everything but messages, exported and imported

Imports: `admin/requests/`, `tasks/`, `host/`, `configuration/`, workers, storage. Start with `topics.py`.
"""

"""HTTP: what an operator and a Pulsar client ask for over it.

    app.py            the process: routes, errors, the server
    origins.py        whether a web page of another site asks
    authentication.py who asks
    authorization.py  who may ask for what: what every route demands
    audit.py          who has changed what
    topics.py         topics, partitions, properties, lookup; how requests are read
    namespaces.py     /admin/v2/tenants and /admin/v2/namespaces
    clusters.py       /admin/v2/clusters
    brokers.py        /admin/v2/brokers, and what a single host has none of
    messages.py       messages shown, and found by position and time
    delayed.py        messages that wait for their time
    schemas.py        schemas of topics
    policies.py       policies of namespaces and topics
    permissions.py    who is granted what
    subscriptions.py  what is done to topics and their subscriptions
    compaction.py     compactions on demand, and the jobs that do them
    backups.py        a backup that is asked for over HTTP
    definitions.py    everything but messages, told and brought about
    owners.py         questions to the owners
    health.py         /admin/v2/brokers/health and its kin
    alarms.py         what an operator has to know of now
    operations.py     the log's level, status
    stats.py          stats of topics and of the broker
    metrics.py        /metrics
"""

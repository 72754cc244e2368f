"""HTTP: what an operator and a Pulsar client ask for over it.

    app.py            the process: routes, errors, the server
    topics.py         /admin/v2/.../partitions and /lookup/v2
    namespaces.py     /admin/v2/tenants and /admin/v2/namespaces
    policies.py       policies of namespaces and topics
    subscriptions.py  what is done to topics and their subscriptions
    owners.py         questions to the owners
    health.py         /admin/v2/brokers/health and its kin
    metrics.py        /metrics
"""

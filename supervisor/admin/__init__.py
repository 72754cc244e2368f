"""HTTP: what an operator and a Pulsar client ask for over it.

    app.py       the process: routes, errors, the server
    topics.py    /admin/v2/.../partitions and /lookup/v2
    health.py    /admin/v2/brokers/health and its kin
    metrics.py   /metrics
"""

"""Routes by which an operator and a monitoring system watch the broker.

    health.py       /ready, and a health check that publishes a message
    alarms.py       conditions that an operator has to act on
    stats.py        stats of topics, namespaces and the broker
    topic_json.py   owners' figures of a topic as Pulsar's JSON
    metrics.py      /metrics for Prometheus
    operations.py   log levels, status, what keeps a subscription from getting more
    backups.py      a backup that is requested over HTTP

Imports: `admin/requests/`, `admin/resources/`, `tasks/`, `host/`, `pulsar_client/`, workers, storage.  Start with `stats.py`.
"""

"""Routes by which an operator and a monitoring system watch the broker.

    health.py            /ready, and a health check that publishes a message
    alarms.py            conditions that an operator has to act on
    stats.py             statistics of topics, namespaces and the broker
    topic_json.py        statistics of a topic as Pulsar's JSON
    metrics.py           /metrics for Prometheus: collector.py and series.py together
    collector.py         metrics of the broker, its processes and the host
    broker_families.py   names and help texts of the metrics in collector.py
    coordinators.py      metrics of the coordinators of transactions
    series.py            lines of the metrics of topics, subscriptions and compactions
    topic_families.py    names, help texts and source columns of the metrics in series.py
    views.py             tables of topics, subscriptions, clients and transactions
    transaction_rows.py  rows about transactions that have not ended
    hanging_transactions.py   transactions that raise an alarm
    operations.py        log levels and status
    log_tail.py          the newest lines of the log
    backups.py           a backup that is requested over HTTP, and the last one

Imports: `admin/requests/`, `admin/resources/`, `tasks/`, `host/`, `pulsar_client/`, workers, storage. Start with
`stats.py`.
"""

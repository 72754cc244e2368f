"""The admin process: administration, lookup, metrics and health over HTTP.

    app.py             the process: routes, errors, the server
    openapi.py         the description of all routes
    requests/          parts of requests, authentication, authorization, audit log
    resources/         topics, namespaces, policies, schemas, clusters ...: created, changed, deleted
    scalable/          scalable topics whose segments split and merge
    monitoring/        health, alarms, stats, /metrics, status

Imports: `configuration/`, `host/`, `tasks/`, `pulsar_client/`, workers, storage.  Start with `app.py`.
"""

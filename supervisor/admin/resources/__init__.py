"""Routes of the things that an operator creates, changes and deletes; most of their paths and answers are Pulsar's.

    topics.py, subscriptions.py, messages.py, delayed.py, schemas.py    topics and what lies in them
    namespaces.py, permissions.py, policies.py                          namespaces and tenants, rights, policies
    clusters.py, brokers.py                                             clusters, and the broker with its settings
    compaction.py                                                       compactions on demand, and the processes that run them
    definitions.py                                                      everything but messages, exported and imported

Imports: `admin/requests/`, `tasks/`, `host/`, `configuration/`, workers, storage.  Start with `topics.py`.
"""

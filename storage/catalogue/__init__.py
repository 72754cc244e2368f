"""Tenants, namespaces, topics, names of subscriptions, schemas and policies: one SQLite file.

    catalogue.py         the file, opened by every process; it holds one of each class below
    database.py          a connection and its transactions
    layout.py            the tables, and upgrades of older files
    checksums.py         the checksum of each table
    ids.py               ids of ledgers and names of producers, which are given out once
    tenants.py           tenants and namespaces
    topics.py            topics as users name them
    scalable_topics.py   topics with segments, and the layouts of these
    partitions.py        stored partitions and their durable subscriptions
    inherited_contents.py   contents of messages that segments before a segment have stored
    kept_topics.py       deleted topics and cleared backlogs that can be taken back
    stored_policies.py   policies, options and properties as they were set
    stored_schemas.py    versions of schemas
    stored_schedules.py  schedules that publish messages
    policy_table.py      every policy, declared once: its bounds, its default, its paths and verbs
    policy_declaration.py   the form of such a declaration, and the reading of values by it
    policy_checks.py     checks of values that belong together
    policy_values.py     types, choices and bounds of policies' values
    policies.py          the policies in force for a topic

Imports: `disk/`, `errors.py`, `options.py`.  Start with `policy_table.py`.
"""

"""Tenants, namespaces, topics, subscriptions' names and policies: one SQLite file.

    catalogue.py      the tables and their changes
    policy_table.py   every policy, declared once: its levels, its bounds, its default
    policies.py       which value of a policy holds for a topic

Imports: `disk/`, `errors.py`, `options.py`.  Start with `policy_table.py`.
"""

"""Counters of topics, subscriptions and their clients, and the rates made of them.

Imports: `runtime/` and `format.py`.  What administration shows of them is made in `../admin/topic_stats.py`.
"""

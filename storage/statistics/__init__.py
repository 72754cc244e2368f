"""Counters of topics, subscriptions and their clients, and the rates made of them.

    columns.py      counters, and the numbers in a row of a topic or subscription
    statistics.py   rows of all that is open, and what `measure` tells

Imports: `topics/`, `ledgers/`.  What administration shows of them is made in `../admin/topic_stats.py`.
"""

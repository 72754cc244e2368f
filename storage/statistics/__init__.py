"""Counters of topics, subscriptions and their clients, and the rates made of them.

    columns.py      counters, and the numbers in a row of a topic or subscription
    recent.py       rates over the last seconds
    statistics.py   rows of all open topics, their windows, and the answer to `measure`

Imports: `topics/`, `dispatch/`, `ledgers/`. Statistics of a single topic are made in `../admin/topic_figures.py`.
"""

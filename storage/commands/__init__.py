"""Commands of clients that change a partition, and answers to them.

    commands.py       a function for each command
    topic_lookup.py   what a name of a topic, a subscription or a policy stands for

Imports: `topics/`, `schemas/`, `catalogue/`.  Start with `commands.py`.
"""

"""Words for people, which the command and the console share.

    human.py        sizes, counts, rates, lengths of time, ages, names of topics
    sentences.py    why a subscription stands still, and what to do

Imports: `configuration/` and `pulsar_client/`, for units and texts that a terminal may show.
"""

"""Filters of subscriptions: the language, and what it says about entries.

    language.py        the text of a filter -> conditions, and whether one message meets them
    evaluation.py      the same for many messages, as arrays
    messages.py        one message, as the protobuf library reads it
    layouts.py         the bytes of metadata that messages have in common, and the values in between
    runs.py            messages of batches that resemble each other, judged in runs
    alike.py           entries that resemble each other, judged at once
    entries.py         entries of a ledger -> which of them, and which messages of batches, match
    sieve.py           the filter of one subscription: how far it has looked, and what it found

Imports: `ledgers/`.  `open_topics/filtering.py` has dispatching use it.
"""

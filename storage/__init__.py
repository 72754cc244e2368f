"""The owner process: it stores the entries of its partitions and decides which consumer gets them next.

Start with `owner/` (a pass), then `topics/` (one partition), `ledgers/` and `cursors/` (what is on disk), `dispatch/`.

    errors.py      how disk and data can fail, as far as callers treat failures differently
    format.py      every byte on disk
    options.py     what the configuration tells an owner
    disk/          system calls, locks, the data folder
    runtime/       what every process has: log, counters, control channel, ZeroMQ frames, routing
    ledgers/       entries with their index, the journal, compacted ledgers
    cursors/       what subscriptions have acknowledged, what is pending, what producers have sent
    catalogue/     tenants, namespaces, topics, policies: SQLite
    schemas/       versions of schemas and their compatibility
    delayed/       the index of messages that wait for their time
    filters/       the language of subscriptions' filters, and what it says about entries
    topics/        partitions, subscriptions, producers, and the plan of what is published
    dispatch/      one dispatcher for each subscription type
    open_topics/   tables of an owner: decisions of the pass, sessions, disk space; ACKs -> cursors
    statistics/    counters of topics and their clients, as rates
    transactions/  coordinators of transactions, and their part in partitions
    scalable/      segments of topics, and the stream consumers that share them
    commands/      PRODUCER, SUBSCRIBE, SEEK and the other commands that change a partition
    enforcement/   what policies demand: quotas, time to live, retention, rates
    recurring/     schedules that publish messages at planned times
    upkeep/        what an owner does by itself: disk space, memory, compacted views, backups
    admin/         answers to administration
    owner/         the pass, the process, recovery after a crash
    offline/       verify, repair, dump, backup, restore: without a broker
    standby/       a copy of another broker's data folder, kept by its journals' records
    jobs/          Spark: the nightly compaction, the data source

Each folder's `__init__.py` says what lives there and what it may import; tests/test_imports.py holds the arrows.
"""

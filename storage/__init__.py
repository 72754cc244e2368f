"""The owner's side: what is kept, and who gets it next.

    options.py      what an owner can be told
    errors.py       how the world can fail
    format.py       every byte on disk
    folder.py       which data folders this program may write to
    regular.py      files that somebody else may have put there
    ledger.py       entries and their index, mapped
    journal.py      what a pass decided, synced once; replayed after a crash
    cursor.py       what a subscription has acknowledged
    catalogue.py    tenants, namespaces, topics, subscriptions' names: SQLite
    policy_table.py what can be set for namespaces and topics: every policy, declared once
    policies.py     what was set for namespaces and topics, and what holds because of it
    schemas.py      what topics' messages look like, by version, and which versions get along
    avro_rules.py   Avro definitions: what they mean, and which read which
    protobuf_rules.py   whether messages of one descriptor can be read by another
    producers.py    who may publish to a partition
    parts.py        batches that are acknowledged in part, at rest
    entry_counts.py how often each entry was given back, or killed a consumer
    pending.py      which consumer has which entry
    schedule.py     what waits for its time, and what is due
    waiting.py, windows.py, amendments.py, schedule_file.py      a bit for each entry; when they fall due, a file for each window of
                    time; what operators have changed of that; what of all this is saved
    schedules.py    what an owner does for it between passes' work, and saves
    subscription.py a name, a cursor, its consumers
    dispatch/       who gets the next entries: one small file per subscription type
    live.py         a non-persistent topic: nothing is kept
    discovery.py    who finds topics as they come, and misses nothing of them
    partition.py    one partition: append, subscriptions, trimming
    commands.py     what a client's command does to a partition
    acknowledgements.py   what acknowledgements do to cursors
    expiry.py       messages that nobody acknowledges in time
    retention.py    how long what everybody has acknowledged is kept
    punching.py     space given back within ledgers
    quota.py        how much may be not acknowledged
    inactive.py     what nobody uses any more is deleted
    sweep.py        policies of partitions that are not open
    missing.py      files that somebody removes while they are used
    housekeeping.py what a night gives back of each partition
    gate.py         why nobody may publish now, and who waits for that
    delays.py       for how long messages may, or have to, be delayed
    rates.py        how much may be published and given out in a time
    throttling.py   what the log says of that
    crowding.py     how much consumers of all shared subscriptions may have unacknowledged
    compacted.py    of each key the newest message: views of a partition, made by jobs/
    locks.py        who has a data folder, a night, a partition's views to himself
    views.py        which view holds, who reads which, and when one that was replaced goes
    jobs/           what reads ledgers from beside the broker: the nightly job, Spark's data source
    queries.py      what administration asks of an owner
    delayed.py      ... about messages that wait for their time
    outbox.py       answers of a pass, by worker
    sequences.py    what a producer sends again is not stored again
    append.py       where the entries of a pass go
    wakes.py        which partition is to be looked at when, although nothing comes
    owner.py        a pass: receive, decide, sync, answer
    process.py      the process: a loop of passes
    channel.py      envelopes over ZeroMQ
    control.py      the supervisor's word to its children, and theirs to it
    replay.py       what a journal has, when it is read
    recovery.py     journal -> ledgers and cursors, after a crash
    findings.py     what is damaged, where, and what that costs
    verify.py       finds it, in all of a data folder
    verify_ledger.py, verify_compacted.py, verify_catalogue.py      in one ledger, in compacted views, in the catalogue
    repair.py       puts damaged bytes aside
    dump.py         what one file says, line by line
    upgrade.py      which formats a folder has, and what a start would make of it
    snapshot.py     what an owner tells a backup, between two passes
    backup.py       makes one; restore.py puts one in place
    libc.py         what Python has no word for
    log.py          lines for operators, and where they go
    codes.py        what warnings and errors are, each with its page in systemd/runbook/
    memory.py       nobody publishes while memory is short
    counters.py     numbers that every process shows, in shared memory
    statistics.py   what is counted of topics and who uses them
    topic_stats.py  what is told of one of them
"""

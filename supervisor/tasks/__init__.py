"""Tasks beside the running broker: the nightly job, backups, imports, debug bundles.

    job_socket.py   the socket over which such a task asks owners
    nights.py       compaction and retention by the nightly job, and its report
    night_engines.py   the engine of each part of a night: its own process, or Spark
    tables.py       topics as tables, by the nightly job
    night_progress.py   how far a night is, and how long the rest takes; told to the broker
    idle_cores.py   takes cores only while nobody else wants them
    backups.py      a backup, with or without a running broker
    standbys.py     questions between a broker and its standby: where HTTP is, who has taken over
    moving.py       copies topics between clusters
    table_import.py, import_record.py   the rows of a table to a topic, once each
    redriving.py, redrive_topics.py   dead letters back to their origin
    redrive_segments.py   the same to scalable topics, in transactions
    redriven.py     finds what redrives have sent, for taking it back
    searching.py    a search of the ledgers for a page, within bounds
    bundle.py       an archive for finding out what is wrong with a broker, without secrets

Imports: `configuration/`, `pulsar_client/`, `messages/`, `tables/`, storage.  Start with `nights.py`.
"""

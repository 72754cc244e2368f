"""Tasks beside the running broker: the night, backups, imports, debug bundles.

    job_socket.py   the socket over which such a task asks owners
    nights.py       compaction and retention of a night, and its report
    backups.py      a backup, with or without a running broker
    moving.py       copies topics between clusters
    bundle.py       an archive for finding out what is wrong with a broker, without secrets

Imports: `configuration/`, `pulsar_client/`, storage.  Start with `nights.py`.
"""

"""Replication: `geminga-replicator` sends entries of partitions to other clusters.

    process.py        the process: lanes follow the catalogue; reload, stop
    remote.py         another cluster: its channels, its link, the lanes that go there
    records.py        the record of a cluster: addresses and credentials
    lane.py           one partition's entries on their way to one cluster
    channel.py        a connection to a worker and one to a remote, side by side
    connection.py     a connection whose frames are taken as arrays
    frames.py         received bytes -> whole frames, many at once
    entries.py        MESSAGE frames -> SEND frames, many at once
    receipts.py       receipts, and the entries that have none yet
    partitioned.py    partitioned topics are made at the other cluster
    backoff.py        the time from a failure to the next try
    reports.py        how the admin process asks about lanes

Imports: `dead_letters/`, which the same process has, `pulsar_client/`, `owners/`, storage, proto.
Start with `process.py`, then `lane.py`.
"""

"""Replication: `geminga-replicator` sends entries of partitions to other clusters.

    process.py        the process: lanes follow the catalogue; reload, stop
    remote.py         another cluster: its channels, its link, the lanes that go there
    records.py        the record of a cluster: addresses and credentials
    lane.py           one partition's entries on their way to one cluster
    channel.py        a connection to a worker and one to a remote, side by side
    connection.py     a connection with requests under way
    frames.py         received bytes -> whole frames, many at once
    entries.py        MESSAGE frames -> SEND frames, many at once
    receipts.py       receipts, and the entries that have none yet
    schemas.py        schemas of this cluster, for the other one
    partitioned.py    partitioned topics are made at the other cluster
    backoff.py        the time from a failure to the next try
    reports.py        how the admin process asks about lanes

Imports: `pulsar_client/`, `configuration/`, `host/`, workers, storage, proto.
Start with `process.py`, then `lane.py`.
"""

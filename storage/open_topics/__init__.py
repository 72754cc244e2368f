"""Open topics: the tables of one owner, of which commands, policies, transactions and administration are given some.

    decisions.py          decisions of a pass: ops, and the answers to each worker
    clients.py            producers and consumers of all topics; session.py, client connections
    topic_table.py        opens, creates, unloads and deletes topics
    kept.py               deletions that keep their topic for a while; cleared_backlogs.py, clears that do
    options_in_force.py   options of the configuration, and those in the catalogue that override them
    reports.py            errors that are logged once, however often they occur
    durability.py         commits and syncs
    disk_space.py         watermarks of the file system, and allocation near them
    publish_gate.py       producers that wait; barrier.py, reasons for which a partition is closed to producers
    held_sends.py         SENDs held back by a rate or for a coordinator, and connections that are not read meanwhile
    left_out_sends.py     answers to SENDs that a plan leaves out
    discovery.py          new topics keep their messages for clients that discover topics
    compacted_views.py    which compacted view is in force, and which readers still use an older one
    backup_snapshot.py    a consistent cut for a backup, between two passes

    acknowledge.py        ACKs of a pass -> cursors
    filtering.py          filters of subscriptions: what does not match is acknowledged before it is dispatched
    dead_letters.py       entries that go to the dead letter topic, and whoever moves them there
    markers.py            entries that clusters write for each other, and that no consumer gets
    addressed.py          entries for one subscription, acknowledged for all others when they are stored
    answers.py            answers to requests of clients
    publisher.py          the publishing of SENDs that wait, as rooms below the owner's know it
    recovered.py          what a recovery has read from the journal, as backups and the topic table need it
    watcher.py            what the owner calls each second
    given.py              functions in tables are given the parts that they ask for

Imports: `topics/`, `filters/`, `dispatch/`, `catalogue/`, `ledgers/`, `cursors/`.  Start with `decisions.py`.
"""

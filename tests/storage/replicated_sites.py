"""Owners of several clusters that replicate a topic to each other, with lanes that a test moves by hand.

    sites = Sites(rigs, "west", "east")
    sites.west.publish(b"a")
    sites.settle()                  # seconds pass, and everything goes where it should

Entries are rewritten as the replicator rewrites them, and receipts are acknowledged.
"""
import itertools
import json
import struct
from collections import defaultdict

import numpy as np

from geminga.proto import envelope, names, sends
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.frames import CHECKSUM_END, SIZE, SIZES
from geminga.storage import format
from geminga.storage.catalogue.policies import CLUSTERS
from geminga.storage.catalogue.policy_declaration import read
from geminga.storage.catalogue.policy_table import TABLE
from geminga.storage.owner.owner_pass import TICK_MS
from geminga.workers.replication.entries import Rewriter

from .files import read_mapped

TOPIC = "persistent://public/default/t"
KINDS = {names.SNAPSHOT_REQUEST: api.ReplicatedSubscriptionsSnapshotRequest,
         names.SNAPSHOT_RESPONSE: api.ReplicatedSubscriptionsSnapshotResponse,
         names.SUBSCRIPTION_UPDATE: api.ReplicatedSubscriptionsUpdate}
_CONNECTIONS = itertools.count(100)


def introduce(rig, connection, **more):
    about = {"address": "/local", "version": "", "partial": False, "positions": False, "superuser": True,
             "replicator": False, "role": "", "connected_ms": 0} | more
    rig.run(rig.happened(envelope.INTRODUCED, connection=connection, data=json.dumps(about).encode()))


def parts_of(entry):
    """Return (metadata, payload) of an entry."""
    begin = CHECKSUM_END + 4
    end = begin + SIZE.unpack_from(entry, CHECKSUM_END)[0]
    return api.MessageMetadata.FromString(entry[begin:end]), entry[end:]


def replicator(rig, source, topic=TOPIC):
    """Return the producer of a replicator of another cluster, which names positions."""
    connection = next(_CONNECTIONS)
    introduce(rig, connection, positions=True)
    return rig.producer(topic, connection=connection, user_provided_producer_name=True,
                        producer_name=names.replicator_name(source, rig.options.cluster_name))


def arrival(producer, entry, *, sequence_id=0):
    """Return a section with an entry that a replicator sends."""
    metadata, _ = parts_of(entry)
    said = api.CommandSend(producer_id=producer.object_id, sequence_id=sequence_id,
                           marker=metadata.HasField("marker_type"))
    row = np.array([sends.read_one(said, entry, reads_positions=True)], sends.SEND_ROW)
    row["producer"], row["connection"] = producer.number, producer.connection
    return envelope.SENDS, row, entry


class Lane:
    """The way from one site to another."""

    def __init__(self, source, target):
        self.source, self.target = source, target
        connection = next(_CONNECTIONS)
        introduce(source.rig, connection, version=names.REPLICATOR, replicator=True)
        self.producer = replicator(target.rig, source.name)
        self.consumer = source.rig.consumer(TOPIC, names.replication_cursor(target.name), connection=connection)
        self.rewriter = Rewriter(source.name, target.name, self.producer.object_id, 5 << 20)
        self.waiting = []                   # (position, entry) taken from the source
        self.take(source.rig.run(source.rig.flow(self.consumer, 1_000_000)))

    def take(self, answers):
        for number, partition_id, ledger_id, given in answers.gifts:
            if number == self.consumer.number:
                first, last = given[0][0], given[-1][0]
                entries = read_mapped(format.partition_folder(self.source.rig.data_dir, partition_id), ledger_id, first,
                                      last - first + 1)
                self.waiting += [((ledger_id, entry_id), entries[entry_id - first]) for entry_id, _, _ in given]

    def carry(self, at_most=1 << 30):
        """Bring what waits to the target, and acknowledge; return the metadata of what was sent."""
        sent = []
        for _ in range(min(at_most, len(self.waiting))):
            position, entry = self.waiting.pop(0)
            frame, _ = self.rewriter.rewrite_one(entry, *position)
            if frame:
                size = SIZES.unpack_from(frame)[1]
                send = api.BaseCommand.FromString(frame[8:8 + size]).send
                self.target.run(arrival(self.producer, frame[8 + size:], sequence_id=send.sequence_id))
                sent.append(parts_of(frame[8 + size:])[0])
            self.source.run(self.source.rig.acks(self.consumer, position, cumulative=True))
        return sent


class Site:
    """One cluster."""

    def __init__(self, rigs, name, others, **options):
        self.name, self.others = name, others
        self.rig = rigs(cluster_name=name, discovery_grace_s=0, **options)
        self.lanes, self.consumers, self.delivered = {}, [], defaultdict(list)
        policies = self.rig.owner.catalogue.policies
        for other in others:
            policies.set(CLUSTERS, other, {"brokerServiceUrl": f"pulsar://{other}:6650"})
        policies.set("public/default", "replicationClusters", read(TABLE["replicationClusters"], [name, *others]))
        self.rig.owner.catalogue.commit()
        self.producer = self.rig.producer(TOPIC)

    @property
    def partition(self):
        return self.rig.partition(TOPIC)

    def run(self, *sections, after_ms=0):
        answers = self.rig.run(*sections, after_ms=after_ms)
        for lane in self.lanes.values():
            lane.take(answers)
        for consumer in self.consumers:
            self.delivered[consumer.number] += self.rig.delivered(answers, consumer)
        return answers

    def publish(self, *payloads):
        return self.run(self.rig.sends(*((self.producer, payload) for payload in payloads))).positions

    def subscribe(self, name="s", *, is_replicated=True, **fields):
        consumer = self.rig.consumer(TOPIC, name, replicate_subscription_state=is_replicated, **fields)
        self.consumers.append(consumer)
        return consumer

    def take(self, consumer, count):
        """Return what a consumer gets, [(position, payload)], after it has granted permits for so many messages."""
        self.run(self.rig.flow(consumer, count))
        return self.delivered.pop(consumer.number, [])

    def consume(self, consumer, count=1_000):
        """Take so many messages, acknowledge them, and return their payloads."""
        found = self.take(consumer, count)
        if found:
            self.run(self.rig.acks(consumer, *(position for position, _ in found)))
        return [payload for _, payload in found]

    def subscription(self, name="s"):
        return self.partition.subscriptions[name, True]

    def left(self, name="s"):
        """Return the payloads that a subscription would deliver from the beginning of what is not acknowledged."""
        rig, cursor = self.rig, self.subscription(name).cursor
        return [payload for position, payload in rig.everything(TOPIC) if not cursor.is_acknowledged(*position)]

    def markers(self):
        """Return [(metadata, payload)] of all markers that are stored."""
        found = []
        for ledger in self.partition.ledgers:
            entries = read_mapped(self.partition.folder, ledger.ledger_id, 0, ledger.entries)
            found += [each for each in map(parts_of, entries) if each[0].HasField("marker_type")]
        return found

    def own(self):
        """Return the types of the markers that the site itself has written."""
        return [metadata.marker_type for metadata, _ in self.markers() if not metadata.replicated_from]


class Sites:
    """Clusters that replicate a topic to each other, all in all directions."""

    def __init__(self, rigs, *clusters, **options):
        self._rigs = rigs
        self.all = [Site(rigs, name, [each for each in clusters if each != name], **options) for name in clusters]
        self.by_name = {site.name: site for site in self.all}
        self.connect()

    def __getattr__(self, name):
        return self.__dict__["by_name"][name]

    def connect(self, site=None):
        """Make all lanes anew; site: only those to and from it."""
        for source, target in itertools.permutations(self.all, 2):
            if site in (None, source, target):
                source.lanes[target.name] = Lane(source, target)

    def kill(self, site):
        """Kill a site's owner, start the next one, and make all lanes to and from it anew."""
        site.rig, site.consumers = self._rigs.crash(site.rig), []
        site.delivered.clear()
        site.producer = site.rig.producer(TOPIC)
        self.connect(site)

    def carry(self):
        """Carry everything that waits, until nothing does; return how many entries went over."""
        count, before = 0, -1
        while count != before:
            before = count
            for site in self.all:
                for lane in site.lanes.values():
                    count += len(lane.carry())
        return count

    def settle(self, seconds=3):
        """Let some seconds pass, and return how many entries went over in each."""
        counts = []
        for _ in range(seconds):
            for site in self.all:
                site.run(after_ms=TICK_MS)
            counts.append(self.carry())
        return counts

    def check(self):
        for site in self.all:
            site.partition.check()


def marker(kind, payload, source, position, **metadata):
    """Return a marker as a replicator of `source` sends it.  payload: a message, or bytes."""
    meta = api.MessageMetadata(producer_name="pulsar.marker", sequence_id=0, publish_time=1, marker_type=kind,
                               replicated_from=source, **metadata)
    meta.properties.add(key=names.POSITION_PROPERTY, value=f"{position[0]}:{position[1]}")
    raw = meta.SerializeToString()
    body = struct.pack(">I", len(raw)) + raw + (payload if isinstance(payload, bytes) else payload.SerializeToString())
    from crc32c import crc32c
    return b"\x0e\x01" + struct.pack(">I", crc32c(body)) + body

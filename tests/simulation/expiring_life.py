"""Worlds in which messages name their time to live: none expires early, and what is due has expired after a look."""
import contextlib
import struct
from unittest import mock

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.job_properties import TTL_PROPERTY
from geminga.storage.cursors.cursor import EXPIRED
from geminga.storage.enforcement import own_ttl
from geminga.storage.owner.owner_pass import TICK_MS

from ..storage.rig import entry_of
from . import checks
from .life import KEYS, Life
from .model import Entry, Position, Producer, Topic, demand

TTLS = {None: 0, "soon": 0, "1": 1, "900ms": 900, "3s": 3_000, "2m": 120_000, "6h": 6 * 3_600_000}
ROUNDING = 2_000      # times are kept to such a part, and never shorter
BLOCK = 3             # entries: so that worlds have many of them


class ExpiringLife(Life):
    def __init__(self, seed, folder):
        super().__init__(seed, folder)
        self.options |= {"own_message_ttl": True}
        self._looked_at_ms = self.now_ms
        # Where the last look of this pass ended, by partition and ledger; None: this pass had none.
        self._ends: dict[tuple[int, int], int] | None = None

    @contextlib.contextmanager
    def _patched(self):
        look = own_ttl.OwnTtl.tick

        def tick(watcher, now_ms: int) -> None:
            self._ends, self._looked_at_ms = {}, now_ms
            for partition in watcher._watches:
                for ledger in partition.ledgers:
                    self._ends[partition.partition_id, ledger.ledger_id] = (
                        ledger.entries if partition.schedule is None else partition.schedule.end(ledger))
            look(watcher, now_ms)

        with super()._patched(), mock.patch.object(own_ttl.OwnTtl, "tick", tick), \
                mock.patch.object(own_ttl, "_BLOCK", BLOCK):
            yield

    def _start(self):
        started = super()._start()
        self._looked_at_ms = self.now_ms
        return started

    def run(self, *sections, **how):
        self._ends = None
        return super().run(*sections, **how)

    def know(self, topic: Topic) -> bool:
        topic.expired_by = self.now_ms
        return super().know(topic)

    def _entry(self, producer: Producer, size: int | None = None) -> Entry:
        chance, number = self.chance, next(self.numbers)
        batch = chance.choice([0, 0, 3, 70])
        named = [chance.choice([*TTLS]) for _ in range(batch or 1)]
        if chance.random() < 0.7:
            named = [text if TTLS.get(text) else "3s" for text in named]
        properties = [[api.KeyValue(key=TTL_PROPERTY, value=text)] if text else [] for text in named]
        fields = {"partition_key": key} if (key := chance.choice(KEYS)) is not None else {}
        deliver_at = 0
        if chance.random() < 0.1:
            deliver_at = fields["deliver_at_time"] = self.now_ms + chance.choice([1, 50, 2_000])
        payload = b"%d " % number + bytes([120]) * (chance.choice([0, 10, 300, 2_000]) if size is None else size)
        if batch:
            body = b""
            for one in properties:
                head = api.SingleMessageMetadata(payload_size=len(payload), properties=one).SerializeToString()
                body, payload = body + struct.pack(">I", len(head)) + head + payload, b""
            payload = body
        else:
            fields["properties"] = properties[0]
        data = entry_of(payload, batch=batch, sequence_id=producer.next_sequence, publish_time=self.now_ms, **fields)
        ttls = [TTLS[text] for text in named]
        return Entry(data, batch or 1, key, deliver_at, producer.name, producer.next_sequence, published=self.now_ms,
                     ttl_ms=max(ttls) if all(ttls) else 0)

    def _follow(self) -> None:
        demand(self.now_ms < self._looked_at_ms + TICK_MS, "a look comes each second")
        for topic in self.topics:
            partition = checks.partition_of(self.rig, topic)
            if topic.is_known and partition is not None:
                self._follow_expiry(topic, partition)

    def _follow_expiry(self, topic: Topic, partition) -> None:
        """Let entries expire in the model that have expired in the owner; check that none is early, and none late."""
        is_delayed = partition.schedule is not None
        for subscription in topic.subscriptions.values():
            found = checks.state_of(topic, partition, subscription.name, subscription.is_durable)
            # Nothing expires for readers.  A ledger may be deleted in the pass in which it expires.
            if subscription.state is None or found is None or not subscription.is_durable:
                continue
            for position, entry in topic.log.items():
                if not entry.ttl_ms or position[0] < topic.first_ledger or not subscription.unacknowledged(position):
                    continue
                begins = max(entry.published, entry.deliver_at) if is_delayed else entry.published
                if not found.left.get(position, entry.whole):
                    demand(begins + entry.ttl_ms <= self.now_ms, "nothing expires before its time",
                           f"{subscription.name} {position}")
                    subscription.acknowledge([position], reason=EXPIRED)
                    self.count("expired")
                else:
                    demand(not self._was_due(partition.partition_id, position, begins, entry),
                           "what is due has expired", f"{subscription.name} {position}")

    def _was_due(self, partition_id: int, position: Position, begins: int, entry: Entry) -> bool:
        """Whether the look of this pass, if it had one, has to have found the entry due."""
        kept_ms = entry.ttl_ms + -(-entry.ttl_ms // ROUNDING)
        return self._ends is not None and begins + kept_ms <= self.now_ms \
            and position[1] < self._ends.get((partition_id, position[0]), 0)

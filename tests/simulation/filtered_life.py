"""Worlds in which subscriptions have a filter: what does not match is acknowledged, and nobody gets it."""
import contextlib
import struct
from unittest import mock

from geminga.proto import batch_parts
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.cursors.cursor import SKIPPED
from geminga.storage.filters.sieve import FILTER
from geminga.storage.open_topics import filtering

from ..storage.rig import entry_of
from . import checks
from .life import KEYS, Life
from .model import Entry, Position, Producer, Subscription

TEXT = "wanted = 'yes' OR key IS NULL AND wanted IS NULL"      # chunks have neither


class FilteredLife(Life):
    def __init__(self, seed, folder):
        super().__init__(seed, folder)
        self.options |= {"subscription_filters": True}
        self._decided: set[Subscription] = set()

    @contextlib.contextmanager
    def _patched(self):
        # A pass looks at everything.  Else what is due would be delivered some passes later.
        with super()._patched(), mock.patch.object(filtering, "TURNS_MAX", 1_000):
            yield

    def _asking(self, subscription: Subscription) -> dict:
        if subscription not in self._decided:
            self._decided.add(subscription)
            subscription.is_filtered = self.chance.random() < 0.8
        return {"subscription_properties": [api.KeyValue(key=FILTER, value=TEXT)]} if subscription.is_filtered else {}

    def _entry(self, producer: Producer, size: int | None = None) -> Entry:
        chance, number = self.chance, next(self.numbers)
        batch = chance.choice([0, 0, 3, 70])
        wanted = [chance.random() < chance.choice([0.1, 0.5, 0.9]) for _ in range(batch or 1)]
        if chance.random() < 0.4:
            wanted = [wanted[0]] * len(wanted)
        fields = {"partition_key": key} if (key := chance.choice(KEYS)) is not None else {}
        deliver_at = 0
        if chance.random() < 0.1:
            deliver_at = fields["deliver_at_time"] = self.now_ms + chance.choice([1, 50, 2_000])
        payload = b"%d " % number + bytes([120]) * (chance.choice([0, 10, 300, 2_000]) if size is None else size)
        priority = 10
        properties = [[api.KeyValue(key="wanted", value="yes" if one else "no")] for one in wanted]
        if batch:
            body = b""
            for one in properties:
                head = api.SingleMessageMetadata(payload_size=len(payload), properties=one).SerializeToString()
                body += struct.pack(">I", len(head)) + head + payload
                payload = b""
            payload = body
        else:
            priority = number * 7 % 13 if self.is_by_priority else 10      # above 9 it has none, and counts as 4
            fields["properties"] = properties[0] + [
                api.KeyValue(key="geminga.priority", value=str(priority))] * (priority < 10)
        data = entry_of(payload, batch=batch, sequence_id=producer.next_sequence, publish_time=self.now_ms, **fields)
        bits = sum(1 << at for at, one in enumerate(wanted) if one)
        return Entry(data, batch or 1, key, deliver_at, producer.name, producer.next_sequence, matching=bits,
                     priority=priority if priority < 10 else 4)

    def _ack_set(self, subscription: Subscription, position: Position, left: int) -> tuple[int, int]:
        entry = subscription.topic.log[position]
        if not subscription.is_filtered or entry.matching in (-1, 0, entry.whole):
            return left, left
        left &= entry.matching
        return left, batch_parts.narrowed(left, entry.matching)

    def _follow(self) -> None:
        for topic in self.topics:
            partition = checks.partition_of(self.rig, topic)
            for subscription in topic.subscriptions.values() if topic.is_known and partition is not None else ():
                found = partition.subscriptions.get((subscription.name, subscription.is_durable))
                if found is not None and found.sieve is not None and subscription.state is not None:
                    before = subscription.state.totals[SKIPPED]
                    subscription.filter_up_to(subscription.state, found.sieve.judged_up_to)
                    self.count("filtered", subscription.state.totals[SKIPPED] - before)
                    subscription.out = {position: holder for position, holder in subscription.out.items()
                                        if subscription.unacknowledged(position)}

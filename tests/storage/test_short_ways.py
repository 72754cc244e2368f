"""The short ways of small passes end where the long ways do: answers, cursors, figures and files are the same.

Most passes of a host with many topics have few messages, whose consumers have read and acknowledged all before.  Then
the owner looks at no entry to deliver what a pass has appended, or to move a mark-delete position.
"""
import random
from dataclasses import replace

import numpy as np
import pytest

from geminga.proto import envelope
from geminga.storage.open_topics import acknowledge
from geminga.storage.owner.dispatching import Dispatching

from .rig import Rig

STEPS = 60
EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
HOUR_MS = 3_600_000


class Play:
    """What the clients of some topics do, by chance."""

    def __init__(self, rig, seed):
        self.rig, self.random = rig, random.Random(seed)
        self.producers = [rig.producer(topic) for topic in "abc" for _ in range(2)]
        self.consumers = [rig.consumer(topic, f"{topic}{number}", subType=kind)
                          for topic, kinds in (("a", (EXCLUSIVE, SHARED, KEY_SHARED)), ("b", (EXCLUSIVE, FAILOVER)),
                                               ("c", (EXCLUSIVE,)))
                          for number, kind in enumerate(kinds)]
        self.consumers += [rig.consumer("a", "second", subType=FAILOVER) for _ in range(2)]
        self.given = {}      # consumer's number -> positions
        rig.run(*[rig.flow(consumer, 30) for consumer in self.consumers])

    def sections(self):
        chance = self.random
        sections = []
        for _ in range(chance.choice((1, 1, 2, 5))):
            what = chance.random()
            if what < 0.4:
                sections.append(self.rig.sends(*[self.message() for _ in range(chance.choice((1, 1, 3)))]))
            elif what < 0.55:
                sections.append(self.rig.flow(chance.choice(self.consumers), chance.choice((1, 30))))
            elif what < 0.95:
                sections += self.acks(chance.choice(self.consumers))
            else:
                sections.append(self.rig.redeliver(chance.choice(self.consumers)))
        return sections

    def message(self):
        chance, producer, fields = self.random, self.random.choice(self.producers), {}
        if chance.random() < 0.2:
            fields["batch"] = chance.randrange(1, 4)
        if chance.random() < 0.3:
            fields["partition_key"] = chance.choice("xyz")
        if producer.topic == "a" and chance.random() < 0.05:
            fields["deliver_at_time"] = self.rig.now_ms + HOUR_MS
        if producer.topic == "a" and chance.random() < 0.05:
            fields |= {"uuid": "u", "chunk_id": 0, "num_chunks_from_msg": 2, "total_chunk_msg_size": 9}
        return producer, b"." * chance.choice((1, 100, 3_000)), fields

    def acks(self, consumer):
        chance, given = self.random, self.given.get(consumer.number, [])
        if not given:
            return
        for _ in range(chance.choice((1, 1, 2))):
            what, at = chance.random(), chance.randrange(len(given))
            asks = {"request_id": 7} if chance.random() < 0.2 else {}
            if what < 0.4:
                yield self.rig.acks(consumer, given[at], cumulative=True, **asks)
            elif what < 0.8:
                yield self.rig.acks(consumer, *given[:chance.randrange(1, 4)], **asks)
            elif what < 0.9:
                yield self.rig.acks(consumer, *reversed(given), given[at], (given[at][0], 1 << 40))
            else:
                yield self.rig.ack_part(consumer, given[at], 1)

    def step(self):
        answers = self.rig.run(*self.sections(), after_ms=self.random.choice((0, 1, 1_000)))
        for number, _, ledger_id, given in answers.gifts:
            self.given.setdefault(number, []).extend((ledger_id, entry_id) for entry_id, _, _ in given)
        for consumer in self.consumers:      # what is acknowledged is mostly not named again
            del self.given.get(consumer.number, [])[:-self.random.choice((1, 5, 20))]
        return answers.receipts, sorted(answers.gifts), sorted(map(str, answers.commands()))


def state_of(rig):
    """Return all that passes change of topics, subscriptions and clients, but for windows of statistics."""
    found = []
    for name in sorted(rig.owner.topics.by_name, key=str):
        partition = rig.owner.topics.by_name[name]
        partition.check()
        found.append((str(name), partition.next_message, partition.bytes_in, partition.entries_in,
                      [(ledger.ledger_id, ledger.entries, ledger.size) for ledger in partition.ledgers]))
        for subscription in partition.subscriptions.values():
            cursor = subscription.cursor
            found.append((subscription.name, cursor.mark_delete, cursor.totals, subscription.read, cursor.parts,
                          [list(cursor.unacknowledged(one, 0, one.entries)) for one in partition.ledgers],
                          subscription.advanced_ms,
                          [(one.permits, one.bytes_out, one.entries_out, one.acknowledged, one.acked_ms)
                           for one in subscription.consumers]))
        found += [(one.messages_in, one.bytes_in) for one in partition.producers.live.values()]
    return found


def files_of(rig):
    return {path.relative_to(rig.data_dir): path.read_bytes() for suffix in ("ledger", "index")
            for path in rig.data_dir.glob(f"partitions/**/*.{suffix}")}


@pytest.mark.parametrize("seed", range(20))
def test_short_and_long_ways_are_the_same(tmp_path, monkeypatch, seed):
    options = {"roll_over_entries": 25} if seed % 2 else {}
    short, long = (Play(Rig(tmp_path / name, **options), seed) for name in ("short", "long"))
    taken = {"delivered": 0, "moved": 0}
    deliver, in_order = Dispatching._deliver_appended, acknowledge.acknowledge_in_order

    def delivers(*arguments):
        taken["delivered"] += (is_whole := deliver(*arguments))
        return is_whole

    def moves(decisions, clients, rows):
        rows = list(rows)
        others = in_order(decisions, clients, rows)
        taken["moved"] += len(rows) - len(others)
        return others

    for step in range(STEPS):
        monkeypatch.setattr(Dispatching, "_deliver_appended", delivers)
        monkeypatch.setattr(acknowledge, "acknowledge_in_order", moves)
        by_short = short.step()
        monkeypatch.setattr(Dispatching, "_deliver_appended", lambda *_: False)
        monkeypatch.setattr(acknowledge, "acknowledge_in_order", lambda decisions, clients, rows: list(rows))
        assert by_short == long.step(), step
        assert state_of(short.rig) == state_of(long.rig), step
    assert files_of(short.rig) == files_of(long.rig)
    assert taken["delivered"] and (taken["moved"] or options)
    again = [play.rig.crashed(tmp_path / f"{name}-again") for name, play in (("short", short), ("long", long))]
    for rig in again:
        for topic in "abc":
            rig.producer(topic)
    cursors = [[(one.name, one.cursor.mark_delete, one.cursor.totals) for topic in "abc"
                for one in rig.partition(topic).subscriptions.values()] for rig in again]
    assert cursors[0] == cursors[1]
    for rig in (*again, short.rig, long.rig):
        rig.close()


def test_an_envelope_without_bytes_has_none():
    """A section without data takes no frame, and no byte, of an envelope."""
    [frame] = envelope.seal([(envelope.FORGET, envelope.pack(envelope.FORGET, [(7, 0)]), b"")])
    [(kind, rows, data)] = envelope.unseal([frame])[1]
    assert (kind, rows.tolist(), bytes(data)) == (envelope.FORGET, [(7, 0)], b"")


@pytest.mark.parametrize("others", ["nobody", "a stranger", "another subscription"])
@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_many_acknowledgements_of_sharers_count_for_those_that_hold_the_entries(tmp_path, kind, others):
    """All of a pass, in any order; a consumer may acknowledge what another one holds."""
    rig = Rig(tmp_path)
    producer, sharers = rig.producer("t"), [rig.consumer("t", subType=kind) for _ in range(4)]
    other = rig.consumer("t", "other", subType=kind)
    rig.run(*[rig.flow(consumer, 1_000) for consumer in (*sharers, other)])
    answers = rig.run(rig.sends(*[(producer, b"m", {"partition_key": f"{n}"}) for n in range(200)]))
    held = {consumer: [position for position, _, _ in rig.given(answers, consumer)] for consumer in sharers}
    assert sum(map(len, held.values())) == 200 and all(held.values())
    sections = [rig.acks(consumer, *reversed(held[holder]))
                for consumer, holder in zip(sharers, [*sharers[1:], sharers[0]], strict=True)]
    if others == "a stranger":
        sections.append(rig.acks(replace(other, number=9_999), *held[sharers[0]]))
    elif others == "another subscription":
        sections.append(rig.acks(other, *held[sharers[0]]))
    rows = np.concatenate([rows for _, rows, _ in sections])
    rig.run((envelope.ACKS, np.random.default_rng(1).permutation(rows), b""))
    subscription, second = (rig.partition("t").subscriptions[name, True] for name in ("sub", "other"))
    assert subscription.cursor.mark_delete[1] == 199
    assert second.cursor.totals[0] == (len(held[sharers[0]]) if others == "another subscription" else 0)
    consumers = [rig.owner.clients.consumers.by_handle[each.number] for each in sharers]
    assert [(one.acknowledged, one.unacknowledged, one.acked_ms) for one in consumers] == [
        (len(held[each]), 0, rig.now_ms) for each in sharers]
    rig.close()

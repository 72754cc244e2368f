"""Pages of messages, and the map of a cursor: questions of administration whose answers are bounded."""
import random

import pytest

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.admin import positions, standstills
from geminga.storage.admin.table_questions import STATES
from geminga.storage.topics.subscription import SubType

from .transactional import TransactionalRig

Shared, Exclusive = SubType.Shared, SubType.Exclusive


@pytest.fixture
def small(tmp_path):
    """An owner whose ledgers have ten entries."""
    made = TransactionalRig(tmp_path / "data", roll_over_entries=10)
    yield made
    made.close()


def page(rig, **fields):
    """Return (positions, whether there is more, what was passed over) of a page."""
    told = rig.asked("page", "t", **{"entries_max": 100, "bytes_max": 1 << 20, **fields})
    found = [(one["ledger"], one["entry"]) for one in told["entries"]]
    return found, told["has_more"], (told["passed_entries"], told["passed_messages"])


def published(rig, count):
    producer = rig.producer("t")
    return [position for number in range(count) for position in rig.publish(producer, b"%d" % number)]


def test_pages_go_over_ledgers_in_both_directions(small):
    small.consumer("t", "keeper")
    places = published(small, 35)
    assert len({ledger_id for ledger_id, _ in places}) > 3
    assert page(small, entries_max=12) == (places[:12], True, (0, 0))
    assert page(small, entries_max=12, position=places[30]) == (places[30:], False, (0, 0))
    assert page(small, entries_max=12, position=(places[9][0], 10)) == (places[10:22], True, (0, 0))
    assert page(small, entries_max=12, from_latest=True) == (places[-12:], True, (0, 0))
    assert page(small, position=places[33], from_latest=True) == (places[33:], False, (0, 0))
    assert page(small, entries_max=2, skipped=20) == (places[20:22], True, (20, 20))
    assert page(small, skipped=1_000) == ([], False, (35, 35))


def test_a_page_ends_at_its_bytes_but_has_one_entry_at_least(small):
    producer = small.producer("t")
    places = [small.publish(producer, b"x" * 1_000)[0] for _ in range(4)]
    assert page(small, bytes_max=2_200) == (places[:2], True, (0, 0))
    assert page(small, bytes_max=1) == (places[:1], True, (0, 0))
    assert page(small, bytes_max=1, from_latest=True) == (places[-1:], True, (0, 0))


def test_a_subscriptions_pages_have_what_it_has_left(small):
    consumer = small.consumer("t", subType=Shared)
    places = published(small, 30)
    small.receive(consumer)
    done = random.Random(7).sample(places, 17)
    small.run(small.acks(consumer, *sorted(done)))
    left = [place for place in places if place not in done]
    assert page(small, subscription="sub")[0] == left
    assert page(small, subscription="sub", skipped=4, entries_max=3) == (left[4:7], True, (4, 4))
    assert page(small, subscription="sub", position=places[20])[0] == [one for one in left if one >= places[20]]
    [refused] = small.run(small.question("page", "t", subscription="nobody", entries_max=1, bytes_max=1)).answered
    assert refused["refused"] == api.SubscriptionNotFound


def test_pages_have_no_messages_of_open_and_aborted_transactions(small):
    producer = small.producer("t")
    first = small.publish(producer, b"first")
    aborted, still_open = small.begin("t"), small.begin("t")
    small.publish_in(aborted, producer, b"gone")
    behind = small.publish(producer, b"behind")
    small.publish_in(still_open, producer, b"open")
    small.publish(producer, b"hidden")
    assert page(small)[0] == first
    small.end(aborted, "t", commits=False)
    assert page(small)[0] == [*first, *behind]
    assert page(small, from_latest=True)[0] == [*first, *behind]


# -- the map of a cursor

def told(rig, segments=7):
    return rig.asked("cursor-map", "t", subscription="sub", segments=segments)


def counts(rig):
    return {name: number for name, number in told(rig)["counts"].items() if number}


@pytest.mark.parametrize("stretch", [3, 1 << 16])
def test_a_map_counts_every_entry_in_its_segment(small, monkeypatch, stretch):
    """Random acknowledgements, deliveries and redeliveries, compared with states that are found one by one."""
    monkeypatch.setattr(standstills, "_STRETCH", stretch)
    monkeypatch.setattr(positions, "_STRETCH", stretch)
    chance = random.Random(stretch)
    consumer = small.consumer("t", subType=Shared)
    places = published(small, 47)
    out = [position for position, _ in small.receive(consumer, 31)]
    done = set(chance.sample(out, 19))
    small.run(small.acks(consumer, *sorted(done)))
    state = {place: "out" if place in out else "waiting" for place in places} | dict.fromkeys(done, "acknowledged")
    for segments in (1, 7, 47, 400):
        made = told(small, segments)
        size = min(segments, 47)
        expected = [[0] * len(STATES) for _ in range(size)]
        edges = [number * 47 // size for number in range(size + 1)]
        for number, place in enumerate(places):
            segment = max(at for at in range(size) if edges[at] <= number)
            expected[segment][STATES.index(state[place])] += 1
        assert made["segments"] == expected and made["is_exact"]
        assert made["starts"] == [list(places[edge]) for edge in edges[:-1]]
        assert made["entries"] == 47 == sum(made["counts"].values())
    assert [first for _, first, _ in made["ledgers"]] == [0, 10, 20, 30, 40]


def test_what_is_given_back_parked_or_delayed_has_a_state_of_its_own(small):
    consumer = small.consumer("t", subType=Shared)
    places = published(small, 6)
    assert counts(small) == {"waiting": 6}
    small.receive(consumer, 4)
    assert counts(small) == {"out": 4, "waiting": 2}
    small.run(small.redeliver(consumer, places[1]))
    assert counts(small) == {"out": 3, "again": 1, "waiting": 2}
    small.run(small.sends((small.producer("t"), b"later", {"deliver_at_time": small.now_ms + 60_000})))
    assert counts(small) == {"out": 3, "again": 1, "delayed": 1, "waiting": 2}
    small.close_consumer(consumer)
    assert counts(small) == {"delayed": 1, "waiting": 6}


def test_an_exclusive_consumer_has_everything_up_to_where_it_was_delivered(small):
    consumer = small.consumer("t", subType=Exclusive)
    places = published(small, 25)
    small.receive(consumer, 18)
    small.run(small.acks(consumer, places[4], cumulative=True), small.acks(consumer, places[7]))
    assert counts(small) == {"acknowledged": 6, "out": 12, "waiting": 7}


def test_a_map_looks_at_a_bounded_number_of_entries_one_by_one(small, monkeypatch):
    monkeypatch.setattr(standstills, "_MAPPED_MAX", 12)
    consumer = small.consumer("t", subType=Shared)
    places = published(small, 40)
    small.receive(consumer)
    small.run(small.acks(consumer, *places[30:35]))
    made = told(small)
    assert not made["is_exact"] and sum(made["counts"].values()) == 40
    assert made["counts"]["out"] == 12 and made["counts"]["waiting"] == 28


def test_the_map_of_an_empty_topic_is_empty(small):
    small.consumer("t")
    made = told(small)
    assert made["segments"] == made["starts"] == [] and made["entries"] == 0
    assert names.parse(made["topic"]).local_name == "t"

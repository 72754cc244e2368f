"""Access modes: each of the four against every state of a topic."""
import itertools
from types import SimpleNamespace

import pytest

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.topics.producers import (
    Exclusive,
    ExclusiveWithFencing,
    Producers,
    Shared,
    WaitForExclusive,
)
from geminga.storage.topics.subscription import Producer

TOPIC = SimpleNamespace(name=names.parse("t"))
_numbers = itertools.count(1)
MODES = {"Shared": Shared, "Exclusive": Exclusive, "WaitForExclusive": WaitForExclusive,
         "ExclusiveWithFencing": ExclusiveWithFencing}


def producer(mode, name=None, *, epoch=0, topic_epoch=None, is_generated=True):
    number = next(_numbers)
    return Producer(number, 1, number, 1, 1, name or f"p{number}", is_generated, epoch, mode, topic_epoch, TOPIC)


def admitted(producers, *modes):
    made = [producer(mode) for mode in modes]
    for one in made:
        assert producers.admit(one) == []
    return made


def refusal(producers, newcomer):
    """Return the name of the error that refuses the newcomer, after a check that the refusal changes nothing."""
    before = dict(producers.live), list(producers.waiting), producers.exclusive, producers.topic_epoch
    with pytest.raises(Refusal) as caught:
        producers.admit(newcomer)
    assert (producers.live, producers.waiting, producers.exclusive, producers.topic_epoch) == before
    return api.ServerError.Name(caught.value.code)


STATES = {
    "nobody": [],
    "shared": [Shared, Shared],
    "shared, one waits": [Shared, WaitForExclusive],
    "exclusive": [Exclusive],
    "exclusive, one waits": [Exclusive, WaitForExclusive],
    "fencing": [ExclusiveWithFencing],
}
OUTCOMES = {  # state -> {access mode of a newcomer: "in", "alone" (exclusive), "waits", or the error}
    "nobody": {"Shared": "in", "Exclusive": "alone", "WaitForExclusive": "alone", "ExclusiveWithFencing": "alone"},
    "shared": {
        "Shared": "in",
        "Exclusive": "ProducerFenced",
        "WaitForExclusive": "waits",
        "ExclusiveWithFencing": "alone",
    },
    "shared, one waits": {
        "Shared": "ProducerBusy",
        "Exclusive": "ProducerFenced",
        "WaitForExclusive": "waits",
        "ExclusiveWithFencing": "alone",
    },
    "exclusive": {
        "Shared": "ProducerBusy",
        "Exclusive": "ProducerFenced",
        "WaitForExclusive": "waits",
        "ExclusiveWithFencing": "alone",
    },
    "exclusive, one waits": {
        "Shared": "ProducerBusy",
        "Exclusive": "ProducerFenced",
        "WaitForExclusive": "waits",
        "ExclusiveWithFencing": "alone",
    },
    "fencing": {
        "Shared": "ProducerBusy",
        "Exclusive": "ProducerFenced",
        "WaitForExclusive": "waits",
        "ExclusiveWithFencing": "alone",
    },
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("state", STATES)
def test_every_mode_in_every_state(state, mode):
    """Each access mode is admitted, made to wait or refused as the table OUTCOMES says for each state of the topic."""
    producers = Producers(None)
    present = admitted(producers, *STATES[state])
    newcomer = producer(MODES[mode])
    outcome = OUTCOMES[state][mode]
    if outcome.startswith("Producer"):
        assert refusal(producers, newcomer) == outcome
        return
    out = producers.admit(newcomer)
    assert newcomer.is_ready == (outcome != "waits")
    assert (newcomer in producers.live.values()) == (outcome != "waits")
    assert (producers.exclusive is newcomer) == (outcome == "alone")
    assert (newcomer in producers.waiting) == (outcome == "waits")
    assert out == (present if mode == "ExclusiveWithFencing" else [])
    if outcome == "alone":
        assert (list(producers.live.values()), producers.waiting) == ([newcomer], [])


# -- epochs

def test_the_topic_epoch_rises_with_every_exclusive_producer_and_with_no_other():
    producers = Producers(None)
    epochs = []
    for mode in (Exclusive, WaitForExclusive, ExclusiveWithFencing, Shared, Exclusive):
        [one] = admitted(producers, mode)
        epochs.append((one.topic_epoch, producers.topic_epoch))
        producers.leave(one)
    assert epochs == [(0, 0), (1, 1), (2, 2), (None, 2), (3, 3)]


def test_epochs_go_on_from_what_the_catalogue_kept():
    producers = Producers(41)
    [one] = admitted(producers, Exclusive)
    assert (one.topic_epoch, producers.topic_epoch) == (42, 42)


@pytest.mark.parametrize("mode", MODES)
def test_a_producer_with_an_older_topic_epoch_was_replaced_and_is_fenced(mode):
    """A producer with an older topic epoch is refused in every access mode: it must not write again."""
    assert refusal(Producers(5), producer(MODES[mode], topic_epoch=4)) == "ProducerFenced"


@pytest.mark.parametrize("mode", ["Exclusive", "WaitForExclusive"])
def test_a_producer_that_comes_back_keeps_its_topic_epoch(mode):
    """A producer that reconnects, after a broken connection or a restart, keeps its topic epoch if nobody came
    meanwhile.
    """
    producers = Producers(5)
    one = producer(MODES[mode], topic_epoch=5)
    assert producers.admit(one) == []
    assert (one.is_ready, one.topic_epoch, producers.topic_epoch) == (True, 5, 5)


def test_a_topic_epoch_is_accepted_by_a_topic_that_has_none():
    """A topic that was deleted and created again takes over the client's epoch."""
    producers = Producers(None)
    assert producers.admit(producer(Exclusive, topic_epoch=3)) == []
    assert producers.topic_epoch == 3


# -- fencing

def test_fencing_throws_out_those_who_wait_as_well():
    """ExclusiveWithFencing replaces producers that wait too, and nobody moves up when the replaced ones leave."""
    producers = Producers(None)
    outcasts = admitted(producers, Exclusive, WaitForExclusive, WaitForExclusive)
    winner = producer(ExclusiveWithFencing)
    assert producers.admit(winner) == outcasts
    assert [producers.leave(one) for one in outcasts] == [None, None, None]
    assert (producers.exclusive, list(producers.live.values())) == (winner, [winner])


def test_whoever_was_fenced_cannot_come_back_before_it_asks_anew():
    producers = Producers(None)
    [first] = admitted(producers, Exclusive)
    winner = producer(ExclusiveWithFencing)
    producers.admit(winner)
    producers.leave(first)
    producers.leave(winner)
    assert refusal(producers, producer(Exclusive, first.name, epoch=1,
                                       topic_epoch=first.topic_epoch)) == "ProducerFenced"
    assert producers.admit(producer(Exclusive, first.name, epoch=2)) == []


# -- turns

def test_those_who_wait_get_their_turn_in_order():
    producers = Producers(None)
    holder, second, third = admitted(producers, Exclusive, WaitForExclusive, WaitForExclusive)
    assert producers.leave(holder) is second
    assert (second.is_ready, second.topic_epoch, producers.exclusive) == (True, 1, second)
    assert producers.leave(second) is third
    assert producers.leave(third) is None
    assert (producers.live, producers.waiting, producers.exclusive) == ({}, [], None)


def test_exclusive_access_begins_when_the_last_of_many_has_left():
    producers = Producers(None)
    one, other, waits = admitted(producers, Shared, Shared, WaitForExclusive)
    assert producers.leave(one) is None
    assert producers.leave(other) is waits


def test_who_leaves_while_waiting_gets_no_turn():
    producers = Producers(None)
    holder, impatient, patient = admitted(producers, Exclusive, WaitForExclusive, WaitForExclusive)
    assert producers.leave(impatient) is None
    assert producers.leave(holder) is patient


# -- names

@pytest.mark.parametrize(("mode", "others"), [
    ("Shared", []), ("Exclusive", []), ("WaitForExclusive", []), ("Exclusive", [WaitForExclusive]),
    ("WaitForExclusive", [WaitForExclusive]),
], ids=["shared", "exclusive", "had waited", "exclusive, one waits", "had waited, one waits"])
def test_a_producer_that_reconnects_takes_its_own_place(mode, others):
    """A newer incarnation replaces the older one, whose connection has not ended yet; its end changes nothing."""
    producers = Producers(None)
    old, *_ = admitted(producers, MODES[mode], *others)
    new = producer(MODES[mode], old.name, epoch=old.epoch + 1, topic_epoch=old.topic_epoch)
    assert producers.holder_of_name(new) is None
    assert producers.admit(new) == [old]
    assert producers.live == {old.name: new}
    assert producers.leave(old) is None
    assert producers.live == {old.name: new}
    assert (producers.exclusive is new) == (mode != "Shared")


@pytest.mark.parametrize(("epoch", "generated"), [
    (0, (True, True)), (1, (False, False)), (1, (True, False)), (1, (False, True))])
def test_a_name_that_somebody_else_holds_is_taken(epoch, generated):
    """A producer of the same epoch is another client's, and a name that a user chose is never succeeded."""
    producers = Producers(None)
    holder = producer(Shared, "name", is_generated=generated[0])
    producers.admit(holder)
    newcomer = producer(Shared, "name", epoch=epoch, is_generated=generated[1])
    assert producers.holder_of_name(newcomer) is holder
    assert producers.holder_of_name(producer(Shared, "free")) is None


def test_a_refused_reconnection_leaves_the_old_producer_in_its_place():
    """A reconnection is refused while another producer waits for exclusive access, and the old producer stays."""
    producers = Producers(None)
    one, _ = admitted(producers, Shared, WaitForExclusive)
    assert refusal(producers, producer(Shared, one.name, epoch=1)) == "ProducerBusy"


def test_when_all_have_to_go_those_who_wait_are_told_as_well():
    producers = Producers(None)
    made = admitted(producers, Shared, Shared, WaitForExclusive)
    assert producers.expel_all() == made
    assert (producers.live, producers.waiting, producers.exclusive) == ({}, [], None)

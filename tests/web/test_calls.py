"""Calls between the admin process and the processes that serve messages over HTTP: their text, and who gets them."""
from geminga.workers.http_messages.calls import RECEIVE, Call, index_of
from geminga.workers.identity.authentication import Identity


def call_of(topic, partition=-1):
    identity = Identity("a role", "token", 1_700_000_000.0, "a proxy")
    return Call(RECEIVE, topic, partition, "s/é", (("max", "5"), ("max", "6")), identity, True, "7")


def test_a_call_is_the_same_behind_its_header():
    """The identity and each value of a parameter that was given twice are in the text of one header, in ASCII."""
    call = call_of("persistent://public/default/t-ü")
    assert call.as_text().isascii() and Call.of_text(call.as_text()) == call


def test_a_path_or_the_topic_names_the_only_partition():
    name = "persistent://public/default/t"
    assert [call_of(name).only_partition, call_of(name, 3).only_partition,
            call_of(name + "-partition-2").only_partition] == [-1, 3, 2]


def test_each_of_several_processes_gets_topics_and_always_the_same_ones():
    names = [f"persistent://public/default/{number}" for number in range(100)]
    chosen = [index_of(name, 4) for name in names]
    assert set(chosen) == {0, 1, 2, 3} and chosen == [index_of(name, 4) for name in names]

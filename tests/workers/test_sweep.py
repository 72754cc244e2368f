"""The conversations for comparing two brokers cover every command, and can be played."""
from fnmatch import fnmatchcase

from geminga.proto import pulsar_api_pb2 as api

from ..harness import request
from .sweep.conversations import Command, conversations, on, producer, turns_of
from .sweep.run import Place, compare, reasons

T = api.BaseCommand.Type
ALL = conversations()


def test_every_command_is_in_some_conversation():
    said = {one.kind for turns in ALL.values() for turn in turns for one in turn.said if isinstance(one, Command)}
    assert set(T.values()) - said - {T.SEND} == set()      # SENDs are raw bytes
    assert len(ALL) > 400


def test_every_reason_is_about_some_conversation():
    assert [
        pattern for pattern, why in reasons() if not why or not any(fnmatchcase(name, pattern) for name in ALL)
    ] == []


def test_two_brokers_of_one_kind_answer_alike(broker, own):
    """A few conversations are played; a difference without a reason is reported."""
    told = []
    places = [Place(one.http_url, one.service_url) for one in (broker, own)]
    some = {name: ALL[name] for name in ("flow of a batch", "ack two cumulatively", "seek", "two exclusive producers")}
    assert compare(places, some, told.append) == 0, told
    assert len(told) == 1 and told[0].startswith("4 the same, 0 differ for a known reason, 0 differ")
    assert request("POST", f"{own.http_url}/admin/v2/namespaces/public/default/maxProducersPerTopic", b"1")[0] == 204
    one_more = {"two producers": turns_of([producer(topic="public/default/two"),
                                           on("b", producer(topic="public/default/two"))])}
    assert compare(places, one_more, told.append) == 1 and "1 differ" in told[-1]

"""Memory that is nearly used up: producers are held, and everything else goes on."""
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.owner.owner_pass import TICK_MS

from .rig import T


def test_while_memory_is_short_nobody_publishes_and_the_rest_goes_on(rigs):
    rig = rigs()
    producer, consumer = rig.producer("a"), rig.consumer("a")
    [position] = rig.publish(producer, b"1")
    rig.owner.counters.set("memory_refuses", 1)      # as the admin process sets them among its own
    rig.run(after_ms=TICK_MS)
    answers = rig.run(rig.sends((producer, b"2")))
    assert [command.type for command in answers.commands()] == [T.CLOSE_PRODUCER] and not answers.receipts
    [refused] = rig.run(rig.command("producer", topic="a", producer_id=77, request_id=1)).commands(T.ERROR)
    assert refused.error.error == api.ServiceNotReady and "memory" in refused.error.message
    assert rig.receive(consumer) == [(position, b"1")]
    assert rig.run(rig.acks(consumer, position, request_id=5)).commands(T.ACK_RESPONSE)


def test_who_was_sent_away_is_let_in_as_soon_as_there_is_memory(rigs):
    rig = rigs()
    rig.producer("a")
    rig.owner.counters.set("memory_refuses", 1)
    rig.run(after_ms=TICK_MS)
    back = rig.command("producer", topic="a", producer_id=7, request_id=1, producer_name="p", epoch=1)
    assert rig.run(back).commands() == []
    rig.owner.counters.set("memory_refuses", 0)
    assert [command.type for command in rig.run(after_ms=TICK_MS).commands()] == [T.PRODUCER_SUCCESS]

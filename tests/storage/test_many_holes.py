"""Half of a million entries acknowledged, every second one, in random order: after a kill exactly the other half is
delivered again.
"""
import numpy as np
import pytest

from geminga.proto import envelope
from geminga.storage.topics.subscription import SubType

ENTRIES, EACH = 1_000_000, 10_000
UNLIMITED = {
    "max_unacked_messages_per_consumer": 0,
    "max_unacked_messages_per_subscription": 0,
    "journal_segment_bytes": 16 << 20,
}


def places(answers) -> np.ndarray:
    """Return the (ledger id, entry id) of all delivered entries, an array of shape (n, 2)."""
    found = [
        np.stack([np.full(count, ledger_id), np.arange(first, first + count)], 1)
        for _, _, ledger_id, first, count in answers.runs
    ]
    found += [
        np.array([(ledger_id, entry_id) for entry_id, *_ in entries]) for _, _, ledger_id, entries in answers.picks
    ]
    return np.concatenate(found)


def ack_rows(consumer, rows):
    found = np.zeros(len(rows), envelope.ACK_ROW)
    found["consumer"], found["ledger_id"], found["entry_id"] = consumer.number, rows[:, 0], rows[:, 1]
    return envelope.ACKS, found, b""


@pytest.mark.slow
def test_a_million_entries_of_which_every_second_is_acknowledged(rigs):
    rig = rigs(**UNLIMITED)
    consumer = rig.consumer("t", subType=SubType.Shared)
    kind, rows, data = rig.sends(*[(rig.producer("t"), b"x")] * EACH)
    for _ in range(ENTRIES // EACH):
        rig.owner.passes.begin(rig.now_ms)
        rig.owner.passes.receive(1, [(kind, rows, memoryview(data))])
        rig.owner.passes.end()
    given = places(rig.run(rig.flow(consumer, ENTRIES)))
    assert len(given) == ENTRIES
    acknowledged = np.random.default_rng(1).permutation(given[1::2])
    for at in range(0, len(acknowledged), EACH):
        rig.run(ack_rows(consumer, acknowledged[at:at + EACH]))
    [answer] = rig.run(rig.acks(consumer, tuple(acknowledged[0].tolist()), request_id=7)).commands()
    assert answer.ackResponse.request_id == 7
    again = rigs.crash(rig)
    left = places(again.run(again.flow(again.consumer("t", subType=SubType.Shared), ENTRIES)))
    assert np.array_equal(left, given[0::2])

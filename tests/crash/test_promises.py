"""The checkers of broken promises find each of them: a record of what was kept, with one thing in it that was not."""
import socket
import struct
from contextlib import suppress

import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.runtime.threads import beside

from ..harness import request
from ..proto.client_frames import entry_of, message_metadata
from .promises import Promises, body
from .traffic import messages_of

STORED = [((7, number, -1), number) for number in range(10)]
LEFT = [STORED[4], *STORED[6:]]


@pytest.fixture
def promises():
    """Promises of 10 messages: 0 to 8 have receipts, acks of 0 to 3 were answered, 5 was acknowledged."""
    made = Promises("topic", sent=10, receipted=set(range(9)), acked={place for place, _ in STORED[:4]})
    made.asked = dict([*STORED[:4], STORED[5]])
    return made


def test_promises_that_were_kept_are_no_faults(promises):
    for place, number in STORED[4:]:
        promises.delivered(place, number, body(number))
    assert promises.kept(STORED, LEFT) == {}
    # that acknowledgement was never answered
    assert promises.kept(STORED, [*LEFT[:1], STORED[5], *LEFT[1:]]) == {}
    assert promises.kept(STORED[:9], LEFT[:-1]) == {}                              # nor was the last message receipted
    promises.is_audited = False
    assert promises.kept(STORED[4:], LEFT) == {}                                   # deleted: all had acknowledged it
    promises.copies_allowed[3] = 2
    assert promises.kept([*STORED, ((8, 0, -1), 3)], [*LEFT, ((8, 0, -1), 3)]) == {}


@pytest.mark.parametrize(("stored", "left", "fault"), [
    (STORED[:6] + STORED[7:], LEFT[:1] + LEFT[2:], "lost"),
    # acknowledged, but kept for another subscription
    (STORED[1:], LEFT, "lost"),
    (STORED, STORED[1:2] + LEFT, "back"),
    (STORED, LEFT[:-1], "undelivered"),
    ([*STORED, ((8, 0, -1), 0)], [*LEFT, ((8, 0, -1), 0)], "duplicates"),
    (STORED, [*LEFT, LEFT[-1]], "duplicates"),
    ([*STORED, ((8, 0, -1), 10)], [*LEFT, ((8, 0, -1), 10)], "unknown"),
    (STORED, [*LEFT, ((9, 9, -1), 9)], "unknown"),
    (STORED[:5] + [((7, 5, -1), 6), ((7, 6, -1), 5)] + STORED[7:], LEFT, "disorder"),
    (STORED, LEFT[::-1], "disorder"),
])
def test_each_broken_promise_is_found(promises, stored, left, fault):
    assert promises.kept(stored, left)[fault]
    assert any(f": {fault}: " in line for line in promises.details)


def test_what_comes_back_or_is_damaged_is_found_when_it_is_delivered(promises):
    promises.delivered(*STORED[0], body(0))
    promises.delivered(*STORED[8], body(8)[:-1] + b"x")
    assert promises.kept(STORED, LEFT) == {"back": 1, "damaged": 1}


def test_an_entry_that_cannot_be_read_is_damage_and_ends_no_client():
    """Pages that a power cut took from a broker that syncs nothing: the checker itself failed on their zeros."""
    single = api.SingleMessageMetadata(payload_size=len(body(5))).SerializeToString()
    one = struct.pack(">I", len(single)) + single + body(5)
    whole = entry_of(message_metadata(sequence_id=5, num_messages_in_batch=2), 2 * one)
    heard = api.CommandMessage(consumer_id=1, message_id=api.MessageIdData(ledgerId=7, entryId=3))
    assert messages_of(heard, whole) == [((7, 3, 0), 5, body(5)), ((7, 3, 1), 5, body(5))]
    for kept, readable in ((len(whole) - len(one), 1), (len(whole) - 2 * len(one), 0), (10, 0), (0, 0)):
        found = messages_of(heard, whole[:kept].ljust(len(whole), b"\0"))
        damaged = len(found) - readable
        assert damaged > 0
        assert [number for _, number, _ in found] == [5] * readable + [-1] * damaged
        promises = Promises("topic", sent=10)
        for place, number, data in found:
            promises.delivered(place, number, data)
        assert promises.found == {"damaged": damaged}
    found = messages_of(heard, whole[:-len(one)].ljust(len(whole), b"\xff"))
    assert [number for _, number, _ in found] == [5, -1]


@pytest.mark.parametrize("said", [b"", b"HTTP", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{",
                                  b"HTTP/1.1 503 No\r\nContent-Length: 9\r\n\r\n{"])
def test_an_answer_over_http_that_a_kill_has_cut_is_an_end_of_the_connection(said):
    """Threads of tests that ask a process which others kill ended with errors that they did not expect."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        def answer(_):
            link, _ = server.accept()
            with link, suppress(ConnectionError):
                link.recv(65_536)
                link.sendall(said)

        with beside(answer), pytest.raises(OSError, match="cut|closed|reset"):
            request("GET", f"http://127.0.0.1:{server.getsockname()[1]}/")

"""An envelope between worker and owner arrives as it was sealed."""
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geminga.proto import envelope
from geminga.proto.envelope import ROWS, seal, unseal


@st.composite
def sections(draw) -> tuple[int, np.ndarray, bytes]:
    kind = draw(st.sampled_from(sorted(ROWS)))
    count, dtype = draw(st.integers(0, 5)), ROWS[kind]
    rows = np.frombuffer(draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize)), dtype)
    return kind, rows, draw(st.binary(max_size=20)) * draw(st.sampled_from([1, 1, 5_000]))


@pytest.mark.slow
@settings(deadline=None, derandomize=True)
@given(sealed=st.lists(sections(), max_size=6), taken=st.integers(0, 2**64 - 1))
def test_what_was_sealed_is_unsealed(sealed, taken):
    """Unsealing gives back all sections in order, with and without rows and bytes."""
    found_taken, found = unseal([bytes(frame) for frame in seal(sealed, taken)])
    assert found_taken == taken
    assert [(kind, rows.tolist(), bytes(data)) for kind, rows, data in found] == [
        (kind, rows.tolist(), data) for kind, rows, data in sealed]
    assert [rows.dtype for _, rows, _ in found] == [ROWS[kind] for kind, _, _ in sealed]


def test_an_envelope_is_these_frames():
    """An envelope has exactly these frames; a section with many bytes has a frame of its own."""
    flows, forgets, much = (
        np.array([(3, 5)], envelope.FLOW_ROW),
        np.array([(9, 2)], envelope.FORGET_ROW),
        bytes(envelope.INLINE_MAX + 1),
    )
    head, *data = seal(
        [(envelope.FLOWS, flows, b"more"), (envelope.FLOWS, flows, much), (envelope.FORGET, forgets, b"")], 7
    )
    assert bytes(head) == struct.pack("<QQ IIQ IIQ IIQ QQ4s QQ QQ", 7, 3, 3, 1, 4, 3, 1, len(much), 19, 1, 0, 3, 5,
                                      b"more", 3, 5, 9, 2)
    assert data == [much]


def test_every_kind_has_its_own_number_and_rows():
    kinds = [envelope.SENDS, envelope.ACKS, envelope.FLOWS, envelope.COMMANDS,
             envelope.RECEIPTS, envelope.RUNS, envelope.REPLIES, envelope.FORGET, envelope.ENTRY_LISTS,
             envelope.TRANSIENT, envelope.QUESTIONS, envelope.ANSWERS, envelope.SENDS_IN_TRANSACTIONS,
             envelope.TRANSACTIONS, envelope.NOTICES, envelope.LAYOUTS]
    assert len(set(kinds)) == len(kinds)
    assert set(ROWS) == set(kinds)


def test_rows_of_another_kind_are_not_sealed():
    with pytest.raises(AssertionError):
        seal([(envelope.SENDS, np.zeros(1, envelope.ACK_ROW), b"")])


@pytest.mark.parametrize("size", [envelope.INLINE_MAX - 1, envelope.INLINE_MAX, envelope.INLINE_MAX + 1])
def test_bytes_are_found_on_both_sides_of_where_they_get_a_frame_of_their_own(size):
    flows, data = np.array([(3, 5)], envelope.FLOW_ROW), bytes(range(256)) * 200
    parts = seal([(envelope.FLOWS, flows, data[:size]), (envelope.FLOWS, flows, b"behind")])
    assert len(parts) == 1 + (size > envelope.INLINE_MAX)
    assert [bytes(found) for _, _, found in unseal(parts)[1]] == [data[:size], b"behind"]

"""An envelope between worker and owner arrives as it was sealed."""
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
    return kind, rows, draw(st.binary(max_size=20))


@settings(deadline=None, derandomize=True)
@given(sealed=st.lists(sections(), max_size=6), taken=st.integers(0, 2**64 - 1))
def test_what_was_sealed_is_unsealed(sealed, taken):
    """Every kind, in its order, none or several times, with and without rows and bytes."""
    found_taken, found = unseal([bytes(frame) for frame in seal(sealed, taken)])
    assert found_taken == taken
    assert [(kind, rows.tolist(), bytes(data)) for kind, rows, data in found] == [(kind, rows.tolist(), data) for kind, rows, data in sealed]
    assert [rows.dtype for _, rows, _ in found] == [ROWS[kind] for kind, _, _ in sealed]


def test_an_envelope_is_these_frames():
    """8 bytes of what was taken, a byte per section; then rows and bytes of each."""
    rows = np.array([(3, 5)], envelope.FLOW_ROW)
    assert [bytes(frame) for frame in seal([(envelope.FLOWS, rows, b"more")], 7)] == [
        b"\x07\0\0\0\0\0\0\0" + b"\x03", b"\x03\0\0\0\0\0\0\0" + b"\x05\0\0\0\0\0\0\0", b"more"]


def test_every_kind_has_its_own_number_and_rows():
    kinds = [envelope.SENDS, envelope.ACKS, envelope.FLOWS, envelope.COMMANDS, envelope.RECEIPTS, envelope.RUNS, envelope.REPLIES, envelope.FORGET]
    assert len(set(kinds)) == len(kinds)
    assert set(ROWS) == set(kinds)


def test_rows_of_another_kind_are_not_sealed():
    with pytest.raises(AssertionError):
        seal([(envelope.SENDS, np.zeros(1, envelope.ACK_ROW), b"")])


def test_an_envelope_that_lacks_a_frame_is_not_unsealed():
    with pytest.raises(AssertionError):
        unseal(seal([(envelope.FLOWS, np.zeros(1, envelope.FLOW_ROW), b"")])[:-1])

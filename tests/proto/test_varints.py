"""Columns of varints are what protobuf reads and writes as varints."""
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto import varints

NUMBERS = st.one_of(st.integers(0, 2**64 - 1),
                    st.integers(0, 64).map(lambda bits: (1 << bits) - 1),
                    st.integers(0, 63).map(lambda bits: 1 << bits))


def by_protobuf(value: int) -> bytes:
    """Return the varint as the protobuf library writes it, behind the one-byte tag of BrokerEntryMetadata's index."""
    return api.BrokerEntryMetadata(index=value).SerializeToString()[1:]


def read_by_protobuf(varint: bytes) -> int:
    return api.BrokerEntryMetadata.FromString(b"\x10" + varint).index


@pytest.mark.parametrize("value, expected",
                         [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**64 - 1, "ffffffffffffffffff01")])
def test_a_varint_is_these_bytes(value, expected):
    assert varints.encode(value).hex() == expected
    assert varints.decode(bytes.fromhex(expected), 0) == (value, len(expected) // 2)


@settings(deadline=None, derandomize=True)
@given(value=NUMBERS, before=st.binary(max_size=3), behind=st.binary(max_size=3))
def test_one_varint_is_written_and_read_as_protobuf_does(value, before, behind):
    encoded = varints.encode(value)
    assert encoded == by_protobuf(value)
    assert varints.length(value) == len(encoded)
    assert varints.decode(before + encoded + behind, len(before)) == (value, len(before) + len(encoded))


@pytest.mark.parametrize("data, error", [
    (b"", IndexError), (b"\x80", IndexError), (b"\xff" * 9, IndexError), (b"\x80" * 10 + b"\x01", ValueError)])
def test_what_is_no_varint_is_said_to_be_none(data, error):
    with pytest.raises(error):
        varints.decode(data, 0)


@pytest.mark.slow
@settings(deadline=None, derandomize=True)
@given(values=st.lists(NUMBERS, min_size=1, max_size=20), longer=st.integers(0, 2), column=st.integers(0, 3))
def test_a_column_holds_each_number_in_as_many_bytes(values, longer, column):
    """Stamping pads shorter varints, which protobuf reads as the same number, and changes no byte beside the column."""
    size = min(10, max(map(varints.length, values)) + longer)
    block = np.full((len(values), column + size + 2), 0xEE, np.uint8)
    varints.stamp(block, column, np.array(values, np.uint64), size)
    assert [read_by_protobuf(row[column:column + size].tobytes()) for row in block] == values
    assert (block[:, :column] == 0xEE).all() and (block[:, column + size:] == 0xEE).all()


@settings(deadline=None, derandomize=True)
@given(size=st.integers(1, varints.WORD_MAX), values=st.lists(st.integers(0, 2**56 - 1), min_size=1, max_size=20),
       behind=st.binary(min_size=8, max_size=8))
def test_a_column_of_words_is_read_as_it_was_stamped(size, values, behind):
    """A column of varints is read back, whatever bytes follow in each word."""
    values = [value % (1 << 7 * size) for value in values]
    block = np.tile(np.frombuffer(behind, np.uint8), (len(values), 1))
    varints.stamp(block, 0, np.array(values, np.uint64), size)
    words = block.view("<u8").ravel()
    assert varints.read_words(words, size).tolist() == values

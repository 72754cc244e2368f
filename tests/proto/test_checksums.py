"""Checksums of many entries at once find what looking at each one finds."""
import subprocess
import sys

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from geminga.proto import checksums, frames
from geminga.proto.checksums import COMBINE_MIN


def bodies_of(count: int, size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, size), np.uint8)


def one_by_one(bodies: np.ndarray) -> np.ndarray:
    return np.array([crc32c(body.tobytes()) for body in bodies], np.uint32)


def test_the_checksum_is_the_castagnoli_one():
    """The checksum of the standard test input is CRC32-C's check value."""
    body = np.frombuffer(b"123456789", np.uint8).reshape(1, 9)
    assert checksums.wrong_rows(body, np.array([0xE3069283], np.uint32)).tolist() == []
    assert checksums.wrong_rows(body, np.array([0xE3069282], np.uint32)).tolist() == [0]


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=60)
@given(count=st.sampled_from([1, 2, 3, 16, 17, COMBINE_MIN - 1, COMBINE_MIN, COMBINE_MIN + 1, COMBINE_MIN + 37,
                              2 * COMBINE_MIN + 1]),
       size=st.sampled_from([1, 2, 3, 8, 101, checksums.LARGE_MIN - 1, checksums.LARGE_MIN]),
       wrong=st.sets(st.integers(0, 2**16), max_size=4), seed=st.integers(0, 9))
def test_the_wrong_ones_are_those_found_one_by_one(count, size, wrong, seed):
    """The combined check finds the same wrong rows as a check of each row.

    Counts and sizes lie on both sides of the bounds from which checksums are combined.
    """
    bodies = bodies_of(count, size, seed)
    claimed = one_by_one(bodies)
    damaged = sorted({number % count for number in wrong})
    bodies[damaged, size // 2] ^= 0x40
    assert checksums.wrong_rows(bodies, claimed).tolist() == damaged


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=100)
@given(number=st.integers(0, COMBINE_MIN), bit=st.integers(0, 8 * 50 - 1))
def test_any_single_flipped_bit_is_found_and_named(number, bit):
    """A flipped bit of a body or of a claimed checksum is found among many rows."""
    bodies = bodies_of(COMBINE_MIN + 1, 50)
    claimed = one_by_one(bodies)
    bodies[number, bit // 8] ^= 1 << bit % 8
    assert checksums.wrong_rows(bodies, claimed).tolist() == [number]
    bodies[number, bit // 8] ^= 1 << bit % 8
    claimed[number] ^= np.uint32(1 << bit % 32)
    assert checksums.wrong_rows(bodies, claimed).tolist() == [number]


@pytest.mark.parametrize("count", [COMBINE_MIN, COMBINE_MIN + 1])
def test_bodies_need_not_lie_side_by_side(count):
    """Bodies may be columns of whole frames."""
    frames = bodies_of(count, 40)
    claimed = one_by_one(frames[:, 12:])
    assert checksums.wrong_rows(frames[:, 12:], claimed).tolist() == []
    frames[count - 1, 12] ^= 1
    assert checksums.wrong_rows(frames[:, 12:], claimed).tolist() == [count - 1]


def test_the_checksum_of_nothing_is_zero():
    assert checksums.wrong_rows(np.empty((3, 0), np.uint8), np.array([0, 5, 0], np.uint32)).tolist() == [1]


@settings(deadline=None, derandomize=True, max_examples=60)
@given(pieces=st.lists(st.tuples(
           st.sampled_from([0, 0, 0, 1, 9]),
           st.one_of(st.integers(6, 300), st.sampled_from([8186, 8192, 8193, 20_000, 100_000]))),
           min_size=1, max_size=60),
       damaged=st.lists(st.tuples(st.integers(0, 59), st.integers(0, 20_000)), max_size=3), seed=st.integers(0, 9))
def test_wrong_entries_are_found_among_others(pieces, damaged, seed):
    """Damaged entries are found among whole ones of any sizes and gaps.

    pieces: (bytes before it, size) of each entry.  damaged: (entry, byte) in which one bit is flipped.
    """
    gaps, sizes = np.array(pieces).T
    ends = np.cumsum(gaps + sizes)
    begins = ends - sizes
    raw = bodies_of(1, int(ends[-1]) + 8, seed)[0]
    claimed = np.array([crc32c(raw[begin + 6:end].tobytes()) for begin, end in zip(begins, ends, strict=True)],
                       np.uint32)
    for begin, checksum in zip(begins.tolist(), claimed.tolist(), strict=True):
        raw[begin:begin + 6] = np.frombuffer(b"\x0e\x01" + checksum.to_bytes(4, "big"), np.uint8)
    assert checksums.wrong_entries(raw, begins, ends, claimed).tolist() == []
    expected = {}
    for entry, byte in damaged:
        entry %= len(pieces)
        expected[entry] = int(begins[entry]) + byte % int(sizes[entry])
    for byte in expected.values():
        raw[byte] ^= 16
    before = raw.copy()
    assert checksums.wrong_entries(raw, begins, ends, claimed).tolist() == sorted(expected)
    assert (raw == before).all()


@pytest.mark.parametrize("size", range(6))
def test_what_is_too_short_to_be_an_entry_is_wrong(size):
    """An entry shorter than a head is wrong, whatever bytes follow it."""
    one = b"\x0e\x01" + crc32c(b"x").to_bytes(4, "big") + b"x"
    raw = np.frombuffer(bytearray(one + b"\x0e\x01\0\0\0\0" + bytes(checksums.BEHIND)), np.uint8)
    begins = np.array([0, len(one)])
    claimed = np.array([crc32c(b"x"), 0], np.uint32)
    assert checksums.wrong_entries(raw, begins, begins + [len(one), size], claimed).tolist() == [1]


@pytest.mark.parametrize("behind", [*range(10), 127, 128, 129, 16_383, 16_384, 70_001])
def test_what_a_change_is_when_more_bytes_follow(behind):
    """A change is carried behind following bytes of one length, of several lengths, and for one byte alone."""
    chance = np.random.default_rng(behind)
    before, after, tail = chance.bytes(20), chance.bytes(20), chance.bytes(behind)
    change = np.array([crc32c(before) ^ crc32c(after)], np.uint32)
    expected = crc32c(before + tail) ^ crc32c(after + tail)
    assert checksums.change_before(change, np.array([behind])).tolist() == [expected]
    assert checksums.change_before(change.repeat(2), np.array([behind, 0])).tolist() == [expected, int(change[0])]
    if behind:
        first, other = bytes([7]) + tail[1:], bytes([7 ^ 0x81]) + tail[1:]
        assert checksums.change_of_byte(behind)[0x81] == crc32c(first) ^ crc32c(other)


def test_an_entry_gets_the_same_checksum_by_the_library_and_by_its_compiled_module_alone():
    """Commands load the compiled module by itself; the library is loaded here."""
    code = ("import sys; from geminga.proto.frames import with_checksum; alone = with_checksum(b'123456789'); "
            "assert 'crc32c' not in sys.modules; sys.stdout.buffer.write(alone)")
    alone = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert alone == frames.with_checksum(b"123456789") == b"\x0e\x01\xe3\x06\x92\x83123456789"

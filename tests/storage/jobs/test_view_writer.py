"""The bytes of a view's entries, copied from their ledger: as an entry-by-entry copy would have them."""
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.storage.jobs.compacting import view_writer

ENTRIES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.sampled_from(["whole", "cut", "unreadable"])),
                   max_size=400)      # bytes before the entry, its size, what becomes of it


@pytest.mark.slow
@pytest.mark.parametrize("stretches_max", [0, 3, 1_000])
@given(ENTRIES, st.randoms(use_true_random=False))
def test_pieces_are_the_entries_in_their_order(stretches_max, entries, random):
    begins, ends, whole, fresh, expected, at = [], [], [], {}, [], 0
    data = random.randbytes(sum(gap + size for gap, size, _ in entries))
    for number, (gap, size, fate) in enumerate(entries):
        begins.append(at + gap)
        ends.append(at := at + gap + size)
        whole.append(fate == "whole")
        if fate == "whole":
            expected.append(data[begins[-1]:at])
        elif fate == "cut":
            fresh[number] = b"entry %d" % number, b"words"
            expected += fresh[number]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(view_writer, "_STRETCHES_MAX", stretches_max)
        pieces = view_writer._pieces(memoryview(data), np.array(begins, np.int64), np.array(ends, np.int64),
                                     np.array(whole, bool), fresh)
    assert b"".join(pieces) == b"".join(expected)

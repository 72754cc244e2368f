"""A cursor against a set of acknowledged entries, which is what it stands for.

The machine grows and seals ledgers, acknowledges in every way and any order, resets, and opens the cursor again from its files.
"""
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from geminga.storage import format
from geminga.storage.cursor import Cursor, CursorTable, load_bitmaps
from geminga.storage.errors import CorruptFile
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from .files import PARTITION, flip, overwrite

SUBSCRIPTION = 3


@dataclass
class Length:
    """As much of a ledger as a cursor looks at."""

    ledger_id: int
    entries: int = 0
    is_sealed: bool = False

    @property
    def last_entry(self):
        return self.entries - 1


def ids(*numbers):
    return np.array(numbers, np.int64)


class CursorMachine(RuleBasedStateMachine):
    """`acknowledged` holds the positions; what lies before the first ledger counts as acknowledged."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.ledgers = [Length(10)]
        self.acknowledged = set()

    def teardown(self):
        del self.cursor
        shutil.rmtree(self.folder)

    @initialize(is_durable=st.booleans())
    def begin(self, is_durable):
        self.table = CursorTable(self.folder, PARTITION)
        self.cursor = Cursor(self.folder, SUBSCRIPTION, (10, -1), is_durable=is_durable)

    def everything(self):
        return [(ledger.ledger_id, entry) for ledger in self.ledgers for entry in range(ledger.entries)]

    def draw_ledger(self, data):
        return data.draw(st.sampled_from([ledger for ledger in self.ledgers if ledger.entries]))

    @rule(count=st.one_of(st.integers(1, 20), st.just(33_000)))
    def publish(self, count):
        self.ledgers[-1].entries += count

    @precondition(lambda self: len(self.ledgers) < 5)
    @rule(gap=st.integers(1, 3))
    def roll(self, gap):
        self.ledgers[-1].is_sealed = True
        self.ledgers.append(Length(self.ledgers[-1].ledger_id + gap))

    @precondition(lambda self: any(ledger.entries for ledger in self.ledgers))
    @rule(data=st.data())
    def acknowledge(self, data):
        """Any entries of one ledger, as an owner does it: in order when that is possible."""
        ledger = self.draw_ledger(data)
        near = st.integers(max(0, ledger.entries - 40), ledger.last_entry)
        entries = sorted(data.draw(st.sets(st.one_of(st.integers(0, ledger.last_entry), near), min_size=1, max_size=12)))
        self._acknowledge(ledger, entries)

    @precondition(lambda self: any(ledger.entries for ledger in self.ledgers))
    @rule(data=st.data())
    def acknowledge_a_stretch(self, data):
        ledger = self.draw_ledger(data)
        first = data.draw(st.one_of(st.just(0), st.integers(0, ledger.last_entry)))
        end = data.draw(st.integers(first + 1, min(ledger.entries, first + 30)))
        self._acknowledge(ledger, list(range(first, end)))

    def _acknowledge(self, ledger, entries):
        self.cursor.advance(self.ledgers)
        if not self.cursor.acknowledge_in_order(ledger, ids(*entries)):
            fresh = self.cursor.acknowledge(ledger, ids(*entries)).tolist()
            assert fresh == [entry for entry in entries if (ledger.ledger_id, entry) not in self.acknowledged]
        self.acknowledged |= {(ledger.ledger_id, entry) for entry in entries}
        self.cursor.advance(self.ledgers)

    @precondition(lambda self: any(ledger.entries for ledger in self.ledgers))
    @rule(data=st.data(), beyond_too=st.booleans())
    def up_to(self, data, beyond_too):
        """A reset behind any position; or a cumulative acknowledgement, which leaves what is acknowledged beyond."""
        ledger = self.draw_ledger(data)
        position = ledger.ledger_id, data.draw(st.integers(-1, ledger.last_entry))
        if beyond_too:
            self.cursor.move(position)
            self.acknowledged = set()
        elif position <= self.cursor.mark_delete:
            return
        else:
            self.cursor.mark_delete = position
        self.acknowledged |= {one for one in self.everything() if one <= position}
        self.cursor.advance(self.ledgers)

    @precondition(lambda self: self.ledgers[0].is_sealed and self.cursor.mark_delete[0] > self.ledgers[0].ledger_id)
    @rule()
    def delete_the_first_ledger(self):
        gone = self.ledgers.pop(0)
        self.cursor.forget(gone.ledger_id)
        format.acks_path(self.folder, gone.ledger_id, SUBSCRIPTION).unlink(missing_ok=True)
        self.acknowledged = {one for one in self.acknowledged if one[0] != gone.ledger_id}

    @precondition(lambda self: self.cursor.is_durable)
    @rule()
    def reopen(self):
        """Another process, which has the files alone."""
        self.table.write(SUBSCRIPTION, self.cursor.mark_delete)
        self.table = CursorTable(self.folder, PARTITION)
        self.cursor = Cursor(self.folder, SUBSCRIPTION, self.table.positions()[SUBSCRIPTION], is_durable=True)
        load_bitmaps(self.cursor)

    @invariant()
    def stands_for_the_set(self):
        missing = [one for one in self.everything() if one not in self.acknowledged]
        found = [(ledger.ledger_id, entry) for ledger in self.ledgers
                 for first, end in self.cursor.unacknowledged(ledger, 0, ledger.entries) for entry in range(first, end)]
        assert found == missing
        assert self.cursor.backlog(self.ledgers) == len(missing)

    @invariant()
    def its_position_is_just_before_the_first_hole(self):
        """As far as there are entries: at an empty ledger it may wait on either side of the border."""
        missing = [one for one in self.everything() if one not in self.acknowledged]
        if missing:
            position = self.cursor.mark_delete
            assert position < missing[0]
            assert not [one for one in self.everything() if position < one < missing[0]]

    @precondition(lambda self: any(ledger.entries for ledger in self.ledgers))
    @rule(data=st.data())
    def runs_of_a_part(self, data):
        """Runs are as long as they can be, and lie within the part that was asked for."""
        ledger = self.draw_ledger(data)
        first = data.draw(st.integers(0, ledger.last_entry))
        end = data.draw(st.integers(first, min(ledger.entries, first + 100)))
        runs = list(self.cursor.unacknowledged(ledger, first, end))
        assert [entry for start, stop in runs for entry in range(start, stop)] == [
            entry for entry in range(first, end) if (ledger.ledger_id, entry) not in self.acknowledged]
        assert all(before[1] < behind[0] for before, behind in zip(runs, runs[1:], strict=False))
        assert all(start < stop for start, stop in runs)


TestCursorMachine = CursorMachine.TestCase
TestCursorMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


# -- the machine's finds, at their smallest ---------------------------------------------------------------------------------------------

@pytest.fixture
def cursor(tmp_path):
    return Cursor(tmp_path, SUBSCRIPTION, (1, -1), is_durable=True)


def test_acknowledging_a_later_ledger_does_not_acknowledge_those_before(cursor):
    """Its first entry follows the position without a gap only when all of the ledgers before are acknowledged."""
    ledgers = [Length(1, 4, is_sealed=True), Length(2, 2)]
    assert not cursor.acknowledge_in_order(ledgers[1], ids(0))
    cursor.acknowledge(ledgers[1], ids(0))
    cursor.advance(ledgers)
    assert cursor.mark_delete == (1, -1)
    assert list(cursor.unacknowledged(ledgers[0], 0, 4)) == [(0, 4)]


def test_a_sealed_ledger_that_is_done_is_followed_by_the_next_without_a_bitmap(cursor):
    """So that consumers who acknowledge in order cost no file for each ledger."""
    ledgers = [Length(1, 4, is_sealed=True), Length(2, 2)]
    assert cursor.acknowledge_in_order(ledgers[0], ids(0, 1, 2, 3))
    cursor.advance(ledgers)
    assert cursor.acknowledge_in_order(ledgers[1], ids(0))
    assert (cursor.mark_delete, cursor.bitmaps) == ((2, 0), {})


def test_a_position_beyond_the_bitmap_stays(cursor):
    """A bitmap covers as much of the ledger as there was when it was made; the position may have left that behind."""
    ledger = Length(1, 10)
    cursor.acknowledge(ledger, ids(5))
    ledger.entries = 50_000
    cursor.mark_delete = (1, 40_001)
    cursor.advance([ledger])
    assert cursor.mark_delete == (1, 40_001)
    assert cursor.backlog([ledger]) == 9_998


# -- the table of positions -------------------------------------------------------------------------------------------------------------

def test_positions_are_kept_by_subscription_and_rows_are_used_again(tmp_path):
    """More than fit into the first page, in any order of coming and going."""
    table = CursorTable(tmp_path, PARTITION)
    for subscription in range(1, 201):
        table.write(subscription, (subscription, -1))
    for subscription in range(1, 201, 2):
        table.remove(subscription)
    size = table.path.stat().st_size
    for subscription in range(301, 351):
        table.write(subscription, (subscription, 9))
    table.write(2, (7, 7))
    expected = {subscription: (subscription, -1) for subscription in range(2, 201, 2)} | {2: (7, 7)}
    expected |= {subscription: (subscription, 9) for subscription in range(301, 351)}
    assert table.positions() == expected
    assert CursorTable(tmp_path, PARTITION).positions() == expected
    assert table.path.stat().st_size == size


def test_a_row_with_a_flipped_bit_is_no_position(tmp_path):
    """No bit is without the checksum; the other rows stand."""
    table = CursorTable(tmp_path, PARTITION)
    for subscription in (1, 2):
        table.write(subscription, (5, 6))
    row = format.HEADER_SIZE + format.CURSOR_ROW.itemsize
    fields = [*range(8 * 24), *range(8 * 60, 8 * 64)]         # what is between is reserved
    for bit in fields:
        flip(table.path, row + bit // 8, bit % 8)
        found = CursorTable(tmp_path, PARTITION).positions()
        assert found == {1: (5, 6)}, bit
        flip(table.path, row + bit // 8, bit % 8)
    assert CursorTable(tmp_path, PARTITION).positions() == {1: (5, 6), 2: (5, 6)}


def test_a_table_of_a_newer_version_is_refused_by_name(tmp_path):
    table = CursorTable(tmp_path, PARTITION)
    overwrite(table.path, 8, (format.VERSION + 1).to_bytes(4, "little"))
    with pytest.raises(CorruptFile, match=str(table.path)):
        CursorTable(tmp_path, PARTITION)


def test_a_table_that_was_only_begun_is_an_empty_one(tmp_path):
    """A process killed before it wrote the header."""
    for data in (b"", bytes(4096)):
        format.cursors_path(tmp_path).write_bytes(data)
        table = CursorTable(tmp_path, PARTITION)
        assert table.positions() == {}
        table.write(1, (2, 3))
        assert CursorTable(tmp_path, PARTITION).positions() == {1: (2, 3)}
        table.path.unlink()


# -- bitmaps on disk --------------------------------------------------------------------------------------------------------------------

def test_bitmaps_of_other_subscriptions_and_of_ledgers_left_behind_are_not_loaded(tmp_path, cursor):
    """Those of ledgers before the position are removed: nobody will ask for them again."""
    for ledger_id in (1, 2, 3):
        cursor.acknowledge(Length(ledger_id, 20), ids(4, 11))
    Cursor(tmp_path, 33, (1, -1), is_durable=True).acknowledge(Length(2, 20), ids(6))
    again = Cursor(tmp_path, SUBSCRIPTION, (2, 3), is_durable=True)
    load_bitmaps(again)
    assert list(again.bitmaps) == [2, 3] or sorted(again.bitmaps) == [2, 3]
    assert list(again.unacknowledged(Length(2, 20), 0, 20)) == [(5, 11), (12, 20)]
    assert sorted(path.name for path in tmp_path.glob("*.acks")) == ["2.3.acks", "2.33.acks", "3.3.acks"]


def test_a_bitmap_that_was_only_begun_is_removed(tmp_path, cursor):
    format.acks_path(tmp_path, 1, SUBSCRIPTION).touch()
    load_bitmaps(cursor)
    assert cursor.bitmaps == {}
    cursor.acknowledge(Length(1, 20), ids(3))
    assert list(cursor.unacknowledged(Length(1, 20), 0, 20)) == [(0, 3), (4, 20)]


def test_a_cursor_that_is_not_durable_leaves_no_file(tmp_path):
    reader = Cursor(tmp_path, 0, (1, -1), is_durable=False)
    ledger = Length(1, 100_000)
    reader.acknowledge(replace(ledger, entries=20), ids(4))
    reader.acknowledge(ledger, ids(50_000, 99_999))
    assert list(reader.unacknowledged(ledger, 0, 100_000)) == [(0, 4), (5, 50_000), (50_001, 99_999)]
    reader.move((1, 10))
    assert list(tmp_path.iterdir()) == []

"""A state machine compares a cursor with a set of acknowledged entries.

The machine grows and seals ledgers, acknowledges in every way and any order, resets, and opens the cursor again from
its file.
"""
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from geminga.storage.cursors import state_file
from geminga.storage.cursors.cursor import Cursor
from geminga.storage.cursors.state_file import State, StateFile

from .files import PARTITION, SUBSCRIPTION, Length, ids


class CursorMachine(RuleBasedStateMachine):
    """Drives a cursor, and keeps what it should have acknowledged as a boolean for each entry of each ledger."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.ledgers = [Length(10, 3)]
        self.acknowledged = {10: np.zeros(3, bool)}

    def teardown(self):
        self.cursor = None
        shutil.rmtree(self.folder)

    @initialize(is_durable=st.booleans())
    def begin(self, is_durable):
        self.file = StateFile(self.folder, PARTITION)
        self.cursor = Cursor(SUBSCRIPTION, (10, -1), is_durable=is_durable)

    def draw_ledger(self, data):
        return data.draw(st.sampled_from([ledger for ledger in self.ledgers if ledger.entries]))

    def first_missing(self):
        """Return the first position that is not acknowledged, or None if all are."""
        for ledger in self.ledgers:
            missing = np.flatnonzero(~self.acknowledged[ledger.ledger_id])
            if len(missing):
                return ledger.ledger_id, int(missing[0])
        return None

    @rule(count=st.one_of(st.integers(1, 20), st.just(33_000)))
    def publish(self, count):
        """Add entries to the open ledger.  33,000 are more than a bitmap of the smallest size covers."""
        ledger = self.ledgers[-1]
        ledger.entries += count
        self.acknowledged[ledger.ledger_id] = np.concatenate(
            (self.acknowledged[ledger.ledger_id], np.zeros(count, bool))
        )

    @precondition(lambda self: len(self.ledgers) < 5)
    @rule(gap=st.integers(1, 3))
    def roll(self, gap):
        self.ledgers[-1].is_sealed = True
        self.ledgers.append(Length(self.ledgers[-1].ledger_id + gap))
        self.acknowledged[self.ledgers[-1].ledger_id] = np.zeros(0, bool)

    @rule(data=st.data())
    def acknowledge(self, data):
        """Acknowledge any entries of one ledger."""
        ledger = self.draw_ledger(data)
        near = st.integers(max(0, ledger.entries - 40), ledger.last_entry)
        entries = data.draw(st.sets(st.one_of(st.integers(0, ledger.last_entry), near), min_size=1, max_size=12))
        self._acknowledge(ledger, ids(*sorted(entries)))

    @rule(data=st.data(), from_the_hole=st.booleans())
    def acknowledge_a_stretch(self, data, from_the_hole):
        ledger = self.draw_ledger(data)
        first = data.draw(st.integers(0, ledger.last_entry))
        if from_the_hole and (hole := self.first_missing()) is not None and hole[0] == ledger.ledger_id:
            first = hole[1]
        end = data.draw(st.integers(first + 1, min(ledger.entries, first + 30)))
        self._acknowledge(ledger, np.arange(first, end))

    def _acknowledge(self, ledger, entries):
        known = self.acknowledged[ledger.ledger_id]
        if not self.cursor.acknowledge_in_order(ledger, entries):
            fresh = self.cursor.acknowledge(ledger, entries)
            assert fresh.tolist() == entries[~known[entries]].tolist()
        known[entries] = True
        self.cursor.advance(self.ledgers)

    @rule(data=st.data(), is_reset=st.booleans())
    def up_to(self, data, is_reset):
        """Move the position by a reset, which forgets holes, or by a cumulative acknowledgement, which keeps the
        holes behind the new position.
        """
        ledger = self.draw_ledger(data)
        position = ledger.ledger_id, data.draw(st.integers(-1, ledger.last_entry))
        if is_reset:
            self.cursor.move(position)
        elif position > self.cursor.mark_delete:
            self.cursor.mark_delete = position
        else:
            return
        for ledger_id, known in self.acknowledged.items():
            end = len(known) if ledger_id < position[0] else position[1] + 1 if ledger_id == position[0] else 0
            known[:end] = True
            if is_reset:
                known[end:] = False
        self.cursor.advance(self.ledgers)

    @precondition(lambda self: self.cursor.mark_delete[0] > self.ledgers[0].ledger_id
                  and any(one.entries for one in self.ledgers[1:]))
    @rule()
    def delete_the_first_ledger(self):
        gone = self.ledgers.pop(0).ledger_id
        self.cursor.forget(gone)
        del self.acknowledged[gone]

    @precondition(lambda self: self.cursor.is_durable)
    @rule()
    def reopen(self):
        """Read the cursor from its file, as another process would."""
        self.file.take(State({SUBSCRIPTION: self.cursor})).write()
        self.cursor = state_file.read(self.folder, PARTITION).cursors[SUBSCRIPTION]

    @rule(data=st.data())
    def runs_of_a_part(self, data):
        """Check that runs of unacknowledged entries are as long as possible, and lie within the range asked for."""
        ledger = self.draw_ledger(data)
        first = data.draw(st.integers(0, ledger.last_entry))
        end = data.draw(st.integers(first, min(ledger.entries, first + 100)))
        self._compare_runs(ledger, first, end)

    def _compare_runs(self, ledger, first, end):
        runs = list(self.cursor.unacknowledged(ledger, first, end))
        found = np.ones(end - first, bool)
        for start, stop in runs:
            assert first <= start < stop <= end
            found[start - first:stop - first] = False
        assert (found == self.acknowledged[ledger.ledger_id][first:end]).all()
        assert all(before[1] < behind[0] for before, behind in zip(runs, runs[1:], strict=False))

    @invariant()
    def stands_for_the_set(self):
        for ledger in self.ledgers:
            self._compare_runs(ledger, 0, ledger.entries)
        assert self.cursor.backlog(self.ledgers) == sum(int((~known).sum()) for known in self.acknowledged.values())

    @invariant()
    def its_position_is_just_before_the_first_hole(self):
        """Check that the mark-delete position is just before the first hole, or at the last entry if there is none.

        Where a ledger ends, and around an empty ledger, the position may be on either side.
        """
        position, missing = self.cursor.mark_delete, self.first_missing()
        ledger = next(ledger for ledger in self.ledgers if ledger.ledger_id == position[0])
        following = [ledger.ledger_id for ledger in self.ledgers if ledger.ledger_id > position[0]]
        if missing is None or position[1] < ledger.last_entry:
            assert missing is None or missing == (position[0], position[1] + 1)
        else:
            assert position[1] == ledger.last_entry and missing[0] in following and missing[1] == 0


TestCursorMachine = pytest.mark.slow(CursorMachine.TestCase)
TestCursorMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


# -- the machine's finds, at their smallest

@pytest.fixture
def cursor():
    return Cursor(SUBSCRIPTION, (1, -1), is_durable=True)


def test_acknowledging_a_later_ledger_does_not_acknowledge_those_before(cursor):
    """A later ledger's first entry follows the mark-delete position only once all ledgers before it are acknowledged.
    """
    ledgers = [Length(1, 4, is_sealed=True), Length(2, 2)]
    assert not cursor.acknowledge_in_order(ledgers[1], ids(0))
    cursor.acknowledge(ledgers[1], ids(0))
    cursor.advance(ledgers)
    assert cursor.mark_delete == (1, -1)
    assert list(cursor.unacknowledged(ledgers[0], 0, 4)) == [(0, 4)]


def test_a_sealed_ledger_that_is_done_is_followed_by_the_next_without_a_bitmap(cursor):
    """Consumers that acknowledge in order cost no bitmap, also where one ledger ends and the next begins."""
    ledgers = [Length(1, 4, is_sealed=True), Length(2, 2)]
    assert cursor.acknowledge_in_order(ledgers[0], ids(0, 1, 2, 3))
    cursor.advance(ledgers)
    assert cursor.acknowledge_in_order(ledgers[1], ids(0))
    assert (cursor.mark_delete, cursor.bitmaps) == ((2, 0), {})


def test_a_position_beyond_the_bitmap_stays(cursor):
    """A mark-delete position behind the end of its ledger's bitmap does not move back. A bitmap is as long as the
    ledger was when the bitmap was made.
    """
    ledger = Length(1, 10)
    cursor.acknowledge(ledger, ids(5))
    ledger.entries = 50_000
    cursor.mark_delete = (1, 40_001)
    cursor.advance([ledger])
    assert cursor.mark_delete == (1, 40_001)
    assert cursor.backlog([ledger]) == 9_998


@pytest.mark.slow
def test_holes_cost_bits_and_what_is_out_costs_bytes(rig):
    """Holes in any number and order take at most 2 bits an entry, pending entries at most 16 bytes each."""
    count = 20_000
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=1)
    positions = [rig.run(rig.sends(*[(producer, b"x")] * (count // 10))).positions for _ in range(10)]
    rig.run(rig.flow(consumer, count))
    subscription = rig.partition("t").subscriptions["sub", True]
    held = subscription.dispatcher.pending._ledgers.values()
    assert 0 < sum(one.slots.nbytes for one in held) <= 16 * count
    random = np.random.default_rng(1)
    entries = random.permutation([entry for part in positions for entry in part])
    for at in range(0, count // 2, 1000):
        rig.run(rig.acks(consumer, *entries[at:at + 1000].tolist()))
    rig.close_consumer(consumer)
    assert subscription.dispatcher is None
    assert sum(bits.nbytes for bits in subscription.cursor.bitmaps.values()) * 8 <= 2 * count + 8 * 4096
    assert subscription.cursor.backlog(rig.partition("t").ledgers) == count // 2

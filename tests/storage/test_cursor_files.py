"""What cursors leave on disk: a table of positions, and bitmaps of what is acknowledged beyond them."""
from dataclasses import replace

import numpy as np
import pytest

from geminga.storage import format
from geminga.storage.cursor import Cursor, CursorTable, load_bitmaps
from geminga.storage.errors import CorruptFile

from .files import PARTITION, SUBSCRIPTION, Length, flip, ids, overwrite


@pytest.fixture
def cursor(tmp_path):
    return Cursor(tmp_path, SUBSCRIPTION, (1, -1), is_durable=True)


# -- the table of positions -------------------------------------------------------------------------------------------------------

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


# -- bitmaps on disk --------------------------------------------------------------------------------------------------------------

def test_bitmaps_of_other_subscriptions_and_of_ledgers_left_behind_are_not_loaded(tmp_path, cursor):
    """Those of ledgers before the position are removed: nobody will ask for them again."""
    for ledger_id in (1, 2, 3):
        cursor.acknowledge(Length(ledger_id, 20), ids(4, 11))
    Cursor(tmp_path, 33, (1, -1), is_durable=True).acknowledge(Length(2, 20), ids(6))
    again = Cursor(tmp_path, SUBSCRIPTION, (2, 3), is_durable=True)
    load_bitmaps(again)
    assert sorted(again.bitmaps) == [2, 3]
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


def test_holes_cost_bits_and_what_is_out_costs_bytes(rig):
    """However many there are, and in whatever order: at most 16 bytes an entry that is out, 2 bits one that is at rest."""
    count = 20_000
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=1)
    positions = [rig.run(rig.sends(*[(producer, b"x")] * (count // 10))).positions for _ in range(10)]
    rig.run(rig.flow(consumer, count))
    subscription = rig.partition("t").subscriptions["sub", True]
    held = subscription.dispatcher.pending._ledgers.values()
    assert 0 < sum(one.seats.nbytes for one in held) <= 16 * count
    random = np.random.default_rng(1)
    entries = random.permutation([entry for part in positions for entry in part])
    for at in range(0, count // 2, 1000):
        rig.run(rig.acks(consumer, *entries[at:at + 1000].tolist()))
    rig.close_consumer(consumer)
    assert subscription.dispatcher is None
    assert sum(bits.nbytes for bits in subscription.cursor.bitmaps.values()) * 8 <= 2 * count + 8 * 4096
    assert subscription.cursor.backlog(rig.partition("t").ledgers) == count // 2

"""Operations in the journal: the bytes of each kind on disk, and a definition of fields, a reader and a name for
each kind.
"""
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.proto.rows import field_names
from geminga.storage import format
from geminga.storage.cursors.state_file import State
from geminga.storage.ledgers import journal_ops as ops
from geminga.storage.offline import dump
from geminga.storage.owner import replayed_ops
from geminga.storage.transactions.transaction_table import TransactionTable

WORDS = struct.Struct("<IIQqqq")      # of every op: kind and number; subscription or checksum; partition; three words
TOP = 1 << 63                         # the highest bit of a word, the sign of a number

ONE = [
    (ops.ledger_opened(7, 3, created_ms=1_700_000_000_000, first_message=12), (1, 0, 7, 3, 1_700_000_000_000, 12)),
    (ops.ledger_deleted(7, 3), (2, 0, 7, 3, 0, 0)),
    (ops.mark_delete(7, 5, (3, -1)), (3, 5, 7, 3, -1, 0)),
    (ops.cursor_reset(7, 5, (3, 9), since=10), (5, 5, 7, 3, 9, 10)),
    (ops.subscription_deleted(7, 5), (6, 5, 7, 0, 0, 0)),
    (ops.first_part_acknowledged(7, 5, (3, 9), TOP | 6), (7, 5, 7, 3, 9, 6 - TOP)),
    (ops.deaths_forgotten(7, 5), (9, 5, 7, 0, -1, 0)),
    (ops.total(7, 5, 2, 44), (10 | 2 << 8, 5, 7, 0, 0, 44)),
    (ops.produced(7, (-1, 2), -3), (11, 0, 7, -1, -3, 2)),
    (ops.produced(7, (-1, 2), -3, supposed=9), (11 | 9 << 8, 0, 7, -1, -3, 2)),
    (ops.chunked(7, (-1, 2), 8, next_chunk=4, crc32c=0xFFFFFFFF), (12 | 4 << 8, 0xFFFFFFFF, 7, -1, 8, 2)),
    (ops.sequences_forgotten(7), (13, 0, 7, 0, 0, 0)),
    (ops.partition_deleted(7), (14, 0, 7, 0, 0, 0)),
    (ops.delayed(7), (15, 0, 7, 0, 0, 0)),
    (ops.type_changed(7, 5, 3), (16 | 3 << 8, 5, 7, 0, 0, 0)),
    (ops.coordinated(9, 2, TOP, opened_ms=1_700_000_000_000, lifetime_ms=12, role_crc32c=0xFFFFFFFF),
     (17 | 2 << 8, 0xFFFFFFFF, TOP, 1_700_000_000_000, 12, 9)),
    (ops.transaction_role(9, 7, TOP | 1), (20 | 3 << 8, 0, 7, 0, 1 - TOP, 9)),
    (ops.promised_to_transaction(9, bytes(range(1, 9)) + bytes(8)), (18, 0, 0, 0x0807060504030201, 0, 9)),
    (ops.added_to_transaction(9, 7, 5), (18, 5, 7, 0, 0, 9)),
    (ops.transaction_entries(9, 7, 3, 4, 6), (19, 1, 7, 3, 4, 9)),
    (ops.transaction_sequences(9, 7, -1, 8, 11), (20 | 2 << 8, 3, 7, -1, 8, 9)),
    (ops.missed(7, (-1, 2), 5, 5 + (3 << 32)), (25 | 3 << 8, 1, 7, -1, 5, 2)),
    (ops.missed(7, (-1, 2), 5, 4), (25, 0, 7, -1, 5, 2)),
    (ops.transaction_acks(9, 7, 5, 3, 4, 6), (21, 5, 7, 3, 4 | 1 << 32, 9)),
    (ops.transaction_ack_up_to(9, 7, 5, (3, -1)), (22, 5, 7, 3, -1, 9)),
    (ops.transaction_ack_part(9, 7, 5, (3, 4), 2, 6), (23 | 2 << 8, 5, 7, 3, 4 | 6 << 32, 9)),
    (ops.transaction_ended(9, 7), (24, 0, 7, 0, 0, 9)),
]


@pytest.mark.parametrize(("made", "expected"), ONE, ids=[str(words[0] & 0xFF) for _, words in ONE])
def test_an_op_has_the_bytes_that_journals_on_disk_have(made, expected):
    assert WORDS.unpack(made) == expected


def test_arrays_of_ops_have_the_bytes_that_journals_on_disk_have():
    entries, counts = np.array([4, 5, 6, 9], np.int64), np.array([1, 1, 2, 2], np.uint16)
    made = [
        ops.acknowledged(7, 5, 3, entries),
        ops.parts_acknowledged(7, 5, (3, 9), np.array([0, 70_000]), np.array([1, TOP], np.uint64)),
        ops.counted(format.REDELIVERED, 7, 5, 3, entries, counts),
        ops.counted(format.DIED, 7, 5, 3, entries[:2], counts[:2]),
    ]
    assert list(WORDS.iter_unpack(b"".join(made))) == [
        (4, 5, 7, 3, 4, 2), (4, 5, 7, 3, 9, 0),
        (7, 5, 7, 3, 9, 1), (7 | 70_000 << 8, 5, 7, 3, 9, -TOP),
        (8 | 1 << 8, 5, 7, 3, 4, 1), (8 | 2 << 8, 5, 7, 3, 6, 0), (8 | 2 << 8, 5, 7, 3, 9, 0),
        (9 | 1 << 8, 5, 7, 3, 4, 1),
    ]


def test_every_kind_has_fields_a_reader_and_a_name():
    """Each kind of operation has a row in every table. Otherwise a start would skip it, or a dump would print its
    number.
    """
    assert set(format.OPS) == set(range(1, 27)) == set(replayed_ops._APPLY) == set(dump._OPS)
    for dtype in format.OPS.values():
        assert field_names(dtype)[0].startswith("kind")
        assert dtype.fields["role" if dtype == format.COORDINATED_OP else "partition_id"][1] == 8


def test_ops_about_one_thing_are_one_run():
    """Consecutive operations of one kind, subscription, partition and ledger are applied as one run, whatever the
    number beside the kind.
    """
    made = [ops.total(7, 5, 0, 1), ops.total(7, 5, 1, 1), ops.total(7, 6, 1, 1), ops.total(8, 6, 1, 1),
            ops.mark_delete(8, 6, (1, 1)), ops.mark_delete(8, 6, (1, 2)), ops.mark_delete(8, 6, (2, 0))]
    runs = replayed_ops.in_runs(np.frombuffer(b"".join(made), format.OP_ROW))
    assert [len(run.ops) for run in runs] == [2, 1, 1, 2, 1]
    assert list(replayed_ops.in_runs(np.zeros(0, format.OP_ROW))) == []


_PARTITIONS, _SUBSCRIPTIONS, _POSITIONS = st.integers(1, 3), st.integers(1, 2), st.tuples(
    st.integers(1, 2), st.integers(-1, 20))
_OPS = st.one_of(
    st.builds(ops.mark_delete, _PARTITIONS, _SUBSCRIPTIONS, _POSITIONS),
    st.builds(ops.total, _PARTITIONS, _SUBSCRIPTIONS, st.integers(0, 2), st.integers(0, 9)),
    st.builds(ops.produced, _PARTITIONS, st.tuples(st.integers(-1, 1), st.just(2)), st.integers(-3, 3)),
    st.builds(lambda *about, count: ops.missed(*about, about[-1] + count - 1), _PARTITIONS,
              st.tuples(st.integers(-1, 1), st.just(2)), st.integers(0, 9).map(lambda first: 10 * first),
              count=st.integers(0, 9)),
    st.builds(ops.cursor_reset, _PARTITIONS, _SUBSCRIPTIONS, _POSITIONS, since=st.integers(0, 9)),
    st.builds(ops.subscription_deleted, _PARTITIONS, _SUBSCRIPTIONS),
    st.builds(ops.type_changed, _PARTITIONS, _SUBSCRIPTIONS, st.integers(0, 3)),
    st.builds(ops.sequences_forgotten, _PARTITIONS),
    st.builds(lambda *about: ops.acknowledged(*about).tobytes(), _PARTITIONS, _SUBSCRIPTIONS, st.integers(1, 2),
              st.sets(st.integers(0, 20), min_size=1).map(lambda entries: np.array(sorted(entries)))),
    st.builds(ops.coordinated, st.integers(1, 2), st.integers(0, 3), st.just(1), opened_ms=st.just(1),
              lifetime_ms=st.integers(1, 3)),
    st.builds(ops.added_to_transaction, st.integers(1, 2), _PARTITIONS, _SUBSCRIPTIONS))


class States:
    """Partitions in memory, to which ops are applied."""

    def __init__(self):
        self.states, self.coordinators = {}, {}

    def folder(self, partition_id):
        return Path("none")

    def state(self, partition_id):
        return self.states.setdefault(partition_id, State())

    def ledger(self, partition_id, ledger_id):
        return None

    def transactions(self, coordinator):
        return self.coordinators.setdefault(coordinator, TransactionTable(Path("none"), coordinator))

    def shown(self):
        """Return everything that ops may change, in a form that can be compared."""
        states = {number: (state.sequences.rows().tobytes(), state.sequences.missed_rows().tobytes(),
                           {about: _shown(cursor) for about, cursor in sorted(state.cursors.items())})
                  for number, state in self.states.items()}
        return states, {number: (table.by_id, list(table._ended.items()))
                        for number, table in self.coordinators.items()}


def _shown(cursor):
    return (cursor.mark_delete, cursor.since, cursor.totals, cursor.last_type,
            {ledger_id: np.flatnonzero(np.unpackbits(bits)).tolist() for ledger_id, bits in cursor.bitmaps.items()})


@pytest.mark.slow
@given(st.lists(_OPS, min_size=1, max_size=60))
def test_ops_sorted_by_what_they_are_about_have_the_same_effect(made):
    """Ops of a start are sorted before they are applied, so that there are few and long runs of them."""
    raw, in_order, by_object = np.frombuffer(b"".join(made), format.OP_ROW), States(), States()
    replayed_ops.apply(in_order, raw)
    ordered = replayed_ops.by_object(raw)
    assert sorted(op.tobytes() for op in ordered) == sorted(op.tobytes() for op in raw)
    replayed_ops.apply(by_object, ordered)
    assert by_object.shown() == in_order.shown()


def test_positions_and_totals_of_many_passes_are_a_run_for_each_subscription():
    made = [op(partition, 5) for number in range(50) for partition in (1, 2)
            for op in (lambda *about, n=number: ops.mark_delete(*about, (3, n)),
                       lambda *about, n=number: ops.total(*about, 0, n))]
    ordered = replayed_ops.by_object(np.frombuffer(b"".join(made), format.OP_ROW))
    assert [len(run.ops) for run in replayed_ops.in_runs(ordered)] == [50] * 4


def test_deaths_of_a_ledgers_first_entry_are_counted():
    """Counts of entry 0 are counts.  Only an entry before all others stands for forgetting them."""
    states, counts = States(), np.array([1, 2], np.uint16)
    died = ops.counted(format.DIED, 7, 5, 3, np.array([0, 3]), counts)
    replayed_ops.apply(states, np.frombuffer(died, format.OP_ROW))
    assert states.state(7).cursor(5).deaths.of(3, range(4)).tolist() == [1, 0, 0, 2]


def test_a_kind_of_a_newer_version_is_skipped():
    """A start and a dump pass over an operation of an unknown kind without an error."""
    newer = np.frombuffer(WORDS.pack(200, 0, 7, 0, 0, 0), format.OP_ROW)
    replayed_ops.apply(None, newer)
    assert dump._op(newer) == {"op": 200, "partition": 7}


def test_a_dump_names_the_fields_of_an_op():
    chunked = np.frombuffer(ops.chunked(7, (-1, 2), 8, next_chunk=4, crc32c=9), format.OP_ROW)
    assert dump._op(chunked) == {"op": "chunked", "partition": 7, "crc32c": 9, "sequence_id": 8, "next_chunk": 4,
                                 "producer": "ff" * 8 + "02" + "00" * 7}
    for number, name in ((3, "Key_Shared"), (70_000, 70_000)):
        changed = np.frombuffer(ops.type_changed(7, 5, number), format.OP_ROW)
        assert dump._op(changed) == {"op": "type changed", "partition": 7, "subscription": 5, "type": name}
    decided = np.frombuffer(ops.coordinated(1 << 56 | 9, 2, 3, opened_ms=1, lifetime_ms=12), format.OP_ROW)
    assert dump._op(decided) == {"op": "coordinated", "state": "committing", "role": 3, "role_crc32c": 0,
                                 "opened_ms": 1, "lifetime_ms": 12, "transaction": "(1,9)"}

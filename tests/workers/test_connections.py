"""The table of connections that workers write and the admin process reads."""
import pytest

from geminga.workers.ports import connections
from geminga.workers.ports.admission import make_admissions
from geminga.workers.ports.connections import Connection, Connections


@pytest.fixture
def table():
    return Connections()


def enter(table, number, address="10.0.0.1:1"):
    return table.enter(3, number, address, "pulsar", 1_000 + number)


def test_a_connection_is_listed_from_its_begin_to_its_end(table):
    row = enter(table, 7)
    assert table.read() == ([Connection(3, 7, 1_007, "pulsar", "10.0.0.1:1", None, "", "", False)], 0)
    table.welcome(row, 21, "lib 1", "ops")
    assert table.read() == ([Connection(3, 7, 1_007, "pulsar", "10.0.0.1:1", 21, "lib 1", "ops", False)], 0)
    table.watches_layouts(row)
    assert table.read()[0][0].has_layouts
    assert table.has("10.0.0.1:1") and not table.has("10.0.0.1:11") and not table.has("")
    table.leave(row)
    assert table.read() == ([], 0) and not table.has("10.0.0.1:1")


def test_the_next_connection_in_a_row_has_nothing_of_the_one_before(table):
    row = enter(table, 7)
    table.welcome(row, 21, "lib 1", "ops")
    table.watches_layouts(row)
    table.leave(row)
    assert enter(table, 8, "10.0.0.2:2") == row
    assert table.read()[0] == [Connection(3, 8, 1_008, "pulsar", "10.0.0.2:2", None, "", "", False)]


def test_more_connections_than_rows_are_counted(table, monkeypatch):
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 2)
    rows = [enter(table, number) for number in range(4)]
    told, left_out = table.read()
    assert ([one.number for one in told], left_out) == ([0, 1], 2)
    table.welcome(rows[3], 21, "", "")
    table.leave(rows[3])
    table.leave(rows[0])
    enter(table, 9)
    told, left_out = table.read()
    assert (sorted(one.number for one in told), left_out) == ([1, 9], 1)


def test_a_new_process_begins_without_connections(table):
    enter(table, 1)
    table.clear()
    assert table.read() == ([], 0) and not table.has("10.0.0.1:1")
    assert enter(table, 2) == 0


def test_any_text_is_listed_as_far_as_it_fits(table):
    row = enter(table, 1)
    table.welcome(row, 21, "\u00e9" * 200, "\ud800" + "x" * 1_000)
    [one], _ = table.read()
    assert one.library == "\u00e9" * 104 and one.role == "?" + "x" * 207
    assert not table.has("\ud800")


class Between:
    """Stands for the fence of a table: calls a function at each barrier."""

    def __init__(self, table, call):
        self._table, self._call, self._fence = table, call, table._fence
        table._fence = self

    def __enter__(self):
        self._table._fence = self._fence
        self._call()
        self._table._fence = self

    def __exit__(self, *_):
        pass


def test_a_row_that_is_being_written_is_left_out(table):
    row = enter(table, 1)
    enter(table, 2)
    seen = []
    Between(table, lambda: seen.append([one.number for one in table.read()[0]]))
    table.welcome(row, 21, "lib 1", "ops")
    assert seen == [[2], [2]]


def test_a_row_that_is_written_while_it_is_read_is_left_out(table):
    row = enter(table, 1)
    enter(table, 2)
    Between(table, lambda: table.welcome(row, 21, "lib 1", "ops"))
    assert [one.number for one in table.read()[0]] == [2]


def test_a_worker_that_was_killed_leaves_no_rows():
    [one] = make_admissions(1)
    enter(one.connections, 1)
    one.clear()
    assert one.connections.read() == ([], 0)

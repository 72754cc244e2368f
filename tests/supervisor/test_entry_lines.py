"""Lines of `geminga ledger dump`: an entry of a ledger as text for people."""
import pytest

from geminga.supervisor.cli.folder import ledger


@pytest.mark.parametrize("entry, line", [
    ({"entry_id": 7, "key": b"k"}, "entry id 7  key k"),
    ({"publish_time_ms": 1_000}, "publish time 1970-01-01T00:00:01.000Z"),
    ({"properties": [("a", "1"), ("b", "2")]}, "properties a=1, b=2"),
    ({"producer_name": "a\nb\x1b[2J"}, r"producer name a\nb\x1b[2J"),
    ({"key": b"\xff"}, r"key \xff"),
    ({"entry_id": 7, "payloads": [{"size": 1}, {"size": 2}]}, "entry id 7\n    size 1\n    size 2"),
])
def test_an_entry_is_a_line_without_control_characters(entry, line):
    assert ledger._as_text(entry) == line

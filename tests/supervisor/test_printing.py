"""How `geminga consume` prints messages: one line for people, or the same fields for programs."""
import json

import pytest
import yaml

from geminga.supervisor.cli.messages.printing import Printer
from geminga.workers.messages.message import Message

TOPIC = "persistent://public/default/t"


def message(payload, **fields):
    return Message(**{
        "topic": TOPIC, "ledger_id": 5, "entry_id": 7, "batch_index": -1, "batch_size": 0, "partition": -1,
        "payload": payload, "key": None, "ordering_key": None, "properties": {}, "publish_time_ms": 1_000,
        "event_time_ms": 0, "deliver_at_ms": 0, "producer": "p", "sequence_id": 3, "schema_version": None,
        "redelivery_count": 0, "is_null": False} | fields)


@pytest.fixture
def printed(capfdbinary):
    """printed(form, messages, parts): what standard output gets."""
    def printed(form, *messages, parts=(), is_hex=False):
        printer = Printer(form, frozenset(parts), is_hex=is_hex)
        for one in messages:
            printer.add(one)
        printer.close()
        return capfdbinary.readouterr().out
    return printed


def test_a_line_is_the_payload_alone_unless_parts_are_wished(printed):
    assert printed("lines", message(b"one"), message(b"two")) == b"one\ntwo\n"
    assert printed("lines", message(b"one", key="k"), parts=["key", "position"]) == b"5:7\tk\tone\n"


def test_bytes_that_are_no_text_are_escaped_or_hexadecimal(printed):
    assert printed("lines", message(b"a\xff")) == b"a\\xff\n"
    assert printed("lines", message(b"a\xff"), is_hex=True) == b"61ff\n"


@pytest.mark.parametrize("count", [0, 1, 3])
def test_documents_hold_every_message(printed, count):
    messages = [message(b"%d" % number, properties={"a": "b"}) for number in range(count)]
    expected = [one.as_json() for one in messages]
    assert json.loads(printed("json", *messages)) == expected
    assert yaml.safe_load(printed("yaml", *messages)) == expected
    assert [json.loads(line) for line in printed("jsonl", *messages).splitlines()] == expected


def test_a_cell_of_a_table_has_no_control_characters(printed):
    row = printed("table", message(b"x", key="k\x1b[2J\n")).splitlines()
    assert len(row) == 2 and b"\x1b" not in row[1]

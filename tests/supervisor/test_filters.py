"""A filter chooses the messages that match all of its options, and names what is wrong with one in a line."""
import time

import click
import pytest

from geminga.workers.messages.filters import Filter, filter_options
from geminga.workers.messages.message import Message

NOW_MS = time.time_ns() // 1_000_000


def message(payload=b"", key=None, properties=None, publish_time_ms=NOW_MS, **fields):
    return Message("t", 1, 2, -1, 0, -1, payload, key, None, properties or {}, publish_time_ms, 0, 0, "p", 0, None, 0,
                   False, **fields)


MATCHES = [
    ({"key": "k1"}, {"key": "k1"}, {"key": "k11"}),
    ({"key": "k*"}, {"key": "k\n11"}, {}),
    ({"key": "k[12]?"}, {"key": "k1x"}, {"key": "k3x"}),
    ({"key": "[a]"}, {"key": "[a]"}, {"key": "b"}),
    ({"properties": ("a",)}, {"properties": {"a": ""}}, {"properties": {"b": "a"}}),
    ({"properties": ("a=b=c",)}, {"properties": {"a": "b=c"}}, {"properties": {"a": "b"}}),
    ({"properties": ("a", "b=1")}, {"properties": {"a": "", "b": "1"}}, {"properties": {"b": "1"}}),
    ({"grep": "wor.d$"}, {"payload": b"\xffhello world"}, {"payload": b"world hello"}),
    ({"grep": "w.rt"}, {"payload": "w\u00f6rt".encode()}, {"payload": b"wrt"}),
    ({"grep": '"price": 12'}, {"payload": b"\0\x18", "value": {"price": 12}}, {"payload": b"\0\x18"}),
    ({"where": "value.price > `10`"}, {"value": {"price": 12}}, {"value": {"price": 9}}),
    ({"where": "value.price > `10`"}, {"value": {"price": 12}}, {}),
    ({"where": "value.price > `10`"}, {"payload": b'{"price": 12}'}, {"payload": b'{"price": 9}'}),
    ({"where": "value[1] == 'x'"}, {"payload": b'["", "x"]'}, {"payload": b"[" * 100_000}),
    ({"where": "value.count"}, {"value": {"count": 0}}, {"value": {"count": None}}),
    ({"where": "starts_with(key, 'a') && properties.x"}, {"key": "ab", "properties": {"x": "1"}}, {"key": "ab"}),
    ({"where": "length(key) > `1`"}, {"key": "ab"}, {}),
    ({"since": "-1h"}, {"publish_time_ms": NOW_MS}, {"publish_time_ms": NOW_MS - 7_200_000}),
    ({"until": "2026-01-31T12:00:00Z"}, {"publish_time_ms": 1_769_860_799_999}, {"publish_time_ms": 1_769_860_800_000}),
    ({"key": "k", "grep": "x"}, {"key": "k", "payload": b"x"}, {"key": "k", "payload": b"y"}),
]


@pytest.mark.parametrize(("options", "wanted", "unwanted"), MATCHES)
def test_messages_that_match_are_chosen_and_no_others(options, wanted, unwanted):
    chosen = Filter(**options)
    assert (chosen.matches(message(**wanted)), chosen.matches(message(**unwanted))) == (True, False)
    assert not chosen.is_open and chosen.needs_value == bool({"grep", "where"} & set(options))


WRONG = [({"grep": "("}, "--grep '(' is not a regular expression: missing"),
         ({"grep": r"(a)\1"}, "--grep"),
         ({"where": "a ="}, "--where 'a =' is not a JMESPath expression"), ({"where": ""}, "--where ''"),
         ({"since": "yesterday"}, "--since: 'yesterday' is not a time"), ({"until": "x"}, "--until: 'x' is not"),
         ({"since": "1h"}, "--since 1h is in the future; an hour ago is -1h")]


@pytest.mark.parametrize(("options", "says"), WRONG)
def test_a_wrong_option_is_one_line_that_names_it(options, says):
    with pytest.raises(click.UsageError) as error:
        Filter(**options)
    assert error.value.message.startswith(says) and "\n" not in error.value.message


def test_an_unknown_function_of_an_expression_is_one_line():
    with pytest.raises(click.UsageError, match="--where 'nothing\\(key\\)' fails at 1:2: Unknown function"):
        Filter(where="nothing(key)").matches(message(key="k"))


@pytest.mark.parametrize(("given", "is_match"), [([], True), (["--key", "a", "--property", "x"], False)])
def test_a_command_makes_a_filter_of_its_values_and_keeps_the_rest(given, is_match):
    @click.command()
    @click.option("--other")
    @filter_options
    def command(**values):
        chosen = Filter.of(values)
        return values, chosen.is_open, chosen.matches(message(key="a"))

    assert command.main(given, standalone_mode=False) == ({"other": None}, not given, is_match)

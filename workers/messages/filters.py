"""Choosing messages by key, property, text, time or an expression: options of commands, and the filter they make."""
import contextlib
import json
import re
import time
from collections.abc import Callable, MutableMapping
from fnmatch import translate
from typing import Any, NamedTuple

import click

from geminga.storage.runtime import units
from geminga.workers.messages.message import Message, value_text

_MEMORY_MAX = 8 << 20           # bytes of a compiled pattern with its cache
_SHOWN_MAX = 200                # characters of an error's text

_OPTIONS = (
    click.option("--key", "-k", "key", metavar="TEXT",
                 help="Only messages with this key; * ? and [...] match several."),
    click.option("--property", "-p", "properties", metavar="NAME[=VALUE]", multiple=True,
                 help="Only messages that have this property, with this value if it is given.  Several must all be "
                      "there."),
    click.option("--grep", "grep", metavar="REGEX", help="Only messages whose payload, or its decoded value, has a "
                                                         "match."),
    click.option("--where", "where", metavar="JMESPATH",
                 help="Only messages for whose JSON (as -o json shows it) this expression is true, such as "
                      "\"value.price > `10`\".  A payload that is a JSON object or array is a value without a schema, "
                      "too."),
    click.option("--since", "since", metavar="TIME", help="Only messages published at this time or later: -1h, "
                                                          "2026-01-31T12:00:00Z."),
    click.option("--until", "until", metavar="TIME", help="Only messages published before this time."),
)


def filter_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command's function with the options of a filter, whose values `Filter.of` takes."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


class Wish(NamedTuple):
    """Conditions of a search beside those of its filter."""

    producer: str | None = None
    sequence_ids: tuple[int, int] | None = None      # first and last

    def matches(self, message: Message) -> bool:
        """Whether a message matches all conditions."""
        if self.producer is not None and message.producer != self.producer:
            return False
        return self.sequence_ids is None or self.sequence_ids[0] <= message.sequence_id <= self.sequence_ids[1]


class Filter:
    """A choice of messages: those that match all conditions."""

    def __init__(self, key: str | None = None, properties: tuple[str, ...] = (), grep: str | None = None,
                 where: str | None = None, since: str | None = None, until: str | None = None) -> None:
        """Make a filter from the texts of the options.  Raises click.UsageError."""
        self._tests: list[Callable[[Message], bool]] = []      # the cheapest first
        self.since_ms, self.until_ms = _moment("--since", since), _moment("--until", until)
        self.needs_value = grep is not None or where is not None      # whether decoded values count
        if self.since_ms is not None or self.until_ms is not None:
            begin_ms = self.since_ms or 0
            end_ms = units.LAST_MS + 1 if self.until_ms is None else self.until_ms
            self._tests.append(lambda message: begin_ms <= message.publish_time_ms < end_ms)
        if key is not None:
            self._tests.append(_key_test(key))
        self._tests += map(_property_test, properties)
        if grep is not None:
            self._tests.append(_grep_test(grep))
        if where is not None:
            self._tests.append(_where_test(where))

    def __repr__(self) -> str:
        return f"<Filter conditions={len(self._tests)}>"

    @classmethod
    def of(cls, values: MutableMapping[str, Any]) -> "Filter":
        """Make a filter from a command's values, and take those of `filter_options` out of them.

        Raises click.UsageError.
        """
        return cls(**{name: values.pop(name) for name in ("key", "properties", "grep", "where", "since", "until")})

    @property
    def is_open(self) -> bool:
        """Whether every message matches."""
        return not self._tests

    def matches(self, message: Message) -> bool:
        """Whether a message matches all conditions.  Conditions of values look at `message.value` if it has one."""
        return all(test(message) for test in self._tests)


def _moment(option: str, text: str | None) -> int | None:
    """Return the time of an option in ms since 1970.  Raises click.UsageError."""
    if text is None:
        return None
    now_ms = time.time_ns() // 1_000_000
    try:
        time_ms = units.moment(text, now_ms)
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}") from None
    if option == "--since" and time_ms > now_ms:
        raise click.UsageError(f"{option} {text} is in the future; an hour ago is -1h")
    return time_ms


def _key_test(key: str) -> Callable[[Message], bool]:
    if not any(char in key for char in "*?["):
        return lambda message: message.key == key
    matches = re.compile(translate(key)).match
    return lambda message: message.key is not None and (message.key == key or matches(message.key) is not None)


def _property_test(text: str) -> Callable[[Message], bool]:
    name, has_value, value = text.partition("=")
    if has_value:
        return lambda message: message.properties.get(name) == value
    return lambda message: name in message.properties


def _grep_test(pattern: str) -> Callable[[Message], bool]:
    import re2  # its patterns take time in proportion to the text
    options = re2.Options()
    options.log_errors, options.max_mem = False, _MEMORY_MAX
    try:
        search = re2.compile(pattern.encode(), options).search
    except (re2.error, UnicodeEncodeError) as error:
        raise click.UsageError(f"--grep {pattern!r} is not a regular expression: {_reason(error)}") from None

    def test(message: Message) -> bool:
        if search(message.payload) is not None:
            return True
        return message.has_value and search(value_text(message.value).encode(errors="replace")) is not None
    return test


def _where_test(expression: str) -> Callable[[Message], bool]:
    import jmespath
    from jmespath.exceptions import JMESPathError, JMESPathTypeError
    try:
        search = jmespath.compile(expression).search
    except (JMESPathError, ValueError) as error:
        raise click.UsageError(f"--where {expression!r} is not a JMESPath expression: {_reason(error)}") from None

    def test(message: Message) -> bool:
        try:
            return _is_true(search(_document(message)))
        except JMESPathTypeError:      # such as the length of a key that this message does not have
            return False
        except JMESPathError as error:
            raise click.UsageError(f"--where {expression!r} fails at {message.id}: {_reason(error)}") from None
    return test


def _document(message: Message) -> dict[str, Any]:
    """Return the JSON of a message, with the payload as `value` if it is a JSON object or array without a schema."""
    document = message.as_json()
    if not message.has_value and message.payload[:1] in (b"{", b"["):
        with contextlib.suppress(ValueError, RecursionError):      # no JSON, or too deep
            document["value"] = json.loads(message.payload)
    return document


def _is_true(answer: Any) -> bool:
    """Whether JMESPath takes an answer for true: everything but null, false and what is empty.  0 is true."""
    return answer is not None and answer is not False and (not isinstance(answer, str | list | dict) or bool(answer))


def _reason(error: Exception) -> str:
    """Return an error's text in one line."""
    text = error.args[0] if error.args and isinstance(error.args[0], bytes) else str(error)
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    return " ".join(text.split())[:_SHOWN_MAX]

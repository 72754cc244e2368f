"""Types of policies' values, how JSON that clients send is read, and the choices and bounds of single policies.

Like policy_table.py, this module imports next to nothing, as the command imports it.
"""
from collections.abc import Callable
from typing import Any, NamedTuple

INT_MAX, LONG_MAX = (1 << 31) - 1, (1 << 63) - 1
_TEXT_MAX = 4_096            # characters
_TEXTS_MAX = 1_000           # texts in a list
MIB = 1 << 20
HOLD, EXCEPTION, EVICTION = QUOTA_ACTIONS = (
    "producer_request_hold", "producer_exception", "consumer_backlog_eviction")
PARTITIONS_MAX = 16_384      # partitions of one topic; arbitrary, and more than one host needs
DELETE_MODES = ("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up")
SUBSCRIPTION_TYPES = ("Exclusive", "Failover", "Key_Shared", "Shared")
COMPACTION_ORDERS = BY_POSITION, BY_EVENT_TIME = "position", "event_time"
EXPORTS = EXPORTS_NOTHING, EXPORTS_MESSAGES, EXPORTS_COMPACTED = "none", "messages", "compacted"
STRATEGIES = ("UNDEFINED", "ALWAYS_INCOMPATIBLE", "ALWAYS_COMPATIBLE", "BACKWARD", "FORWARD", "FULL",
              "BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE")
TICK_MS_MAX, WINDOW_MS_MIN, WINDOW_MS_MAX = 24 * 3600 * 1000, 1_000, 4 * 7 * 24 * 3600 * 1000
REDELIVERIES_MAX = 60_000     # an entry's count stops at 65,535, see cursors/entry_counts.py
DELAY_MS_MAX = 100 * 365 * 24 * 3600 * 1000      # arbitrary: a century


class Invalid(ValueError):
    """Error: a client sent a value that is not of the policy's type."""


class OutOfRange(Invalid):
    """Error: a client sent a value of the policy's type that is out of range."""


class Type(NamedTuple):
    """The type of one value of a policy."""

    name: str                                # "number", "decimal", "true or false", "text", "list"
    read: Callable[[Any], Any]               # JSON -> value; raises ValueError
    choices: tuple[str, ...] = ()


def _integer(last: int) -> Callable[[Any], int]:
    def read_integer(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError("expected a whole number")
        try:
            value = int(value)
        except ValueError:
            raise ValueError("expected a whole number") from None
        if abs(value) > last:
            raise ValueError("the number is too large")
        return int(value)
    return read_integer


def _decimal(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LONG_MAX:
        raise ValueError("expected a number")
    return value


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise ValueError("expected true or false")


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _TEXT_MAX:
        raise ValueError("expected a text")
    return value


def _texts(value: Any) -> list[str]:
    if (not isinstance(value, list) or len(value) > _TEXTS_MAX
            or not all(isinstance(item, str) and len(item) <= _TEXT_MAX for item in value)):
        raise ValueError("expected a list of texts")
    return value


def one_of(*choices: str) -> Type:
    """Return the type of a string that is one of the choices."""
    def read_choice(value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"expected one of {', '.join(filter(None, choices))}")
        return value
    return Type("text", read_choice, choices)


def some_of(*choices: str) -> Type:
    """Return the type of a list of some of the choices, stored sorted and without repetitions."""
    def read_choices(value: Any) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(item, str) and item in choices for item in value):
            raise ValueError(f"expected a list of {', '.join(choices)}")
        return sorted(set(value))
    return Type("list", read_choices, choices)


INTEGER, LONG = Type("number", _integer(INT_MAX)), Type("number", _integer(LONG_MAX))
DECIMAL, BOOLEAN = Type("decimal", _decimal), Type("true or false", _boolean)
TEXT, TEXTS = Type("text", _text), Type("list", _texts)

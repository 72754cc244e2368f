"""Types of the tables of `geminga admin`: verbs with their requests to the broker, options, and kinds of values."""
from collections.abc import Callable
from typing import Any, NamedTuple

from geminga.workers.pulsar_client.rest import Broker

TEXT, INT, DECIMAL, FLAG, LIST, MAP, FILE = "text", "number", "decimal", "flag", "list", "key=value", "file"
TOPIC = "topic"      # its name without the domain, quoted for a path
SECONDS, MINUTES, MILLIS, SIZE, MEBIBYTES = "seconds", "minutes", "ms", "bytes", "MB"


Values = dict[str, Any]      # of a verb's arguments and options, by their keys: which there are is said by its row


class Option(NamedTuple):
    """A command-line option of a verb."""

    flags: str                      # "--subscription -s", as pulsar-admin has them
    to: str = ""                    # where its value goes: see verbs.py
    help: str = ""
    kind: str = TEXT
    default: Any = None
    required: bool = False
    choices: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Name under which the option's value is known: the long option, with underscores."""
        long = [flag for flag in self.flags.split() if flag.startswith("--")]
        return long[0].removeprefix("--").replace("-", "_")


class Verb(NamedTuple):
    """A verb of a group: its request to the broker, its options, and the form in which its answer is shown."""

    name: str
    method: str
    path: str
    help: str
    options: tuple[Option, ...] = ()
    example: str = ""
    of_one: tuple[str, str] | None = None                            # (option, path that is used if it is given)
    body: Callable[[Values], Any] | None = None              # values -> JSON to send
    run: Callable[[Broker, Values], Any] | None = None       # asks instead, and returns the answer to show
    streams: bool = False                                            # whether `run` yields messages
    hidden: bool = False                                             # whether the list of verbs leaves it out
    table: Callable[[Any], Any] | None = None                        # answer -> value that is shown to people


def need(flags: str, to: str = "", help: str = "", kind: str = TEXT) -> Option:
    return Option(flags, to, help, kind, required=True)


def flag(flags: str, to: str = "", help: str = "") -> Option:
    return Option(flags, to, help, FLAG)

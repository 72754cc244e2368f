"""Verbs of `geminga admin`: their questions to the broker, their options and kinds of values."""
from collections.abc import Callable
from typing import Any, NamedTuple

from geminga.supervisor.pulsar_client.rest import Broker

TEXT, INT, DECIMAL, FLAG, LIST, MAP, FILE = "text", "number", "decimal", "flag", "list", "key=value", "file"
SECONDS, MINUTES, MILLIS, SIZE, MEBIBYTES = "seconds", "minutes", "ms", "bytes", "MB"


class Option(NamedTuple):
    flags: str                      # "--subscription -s", as pulsar-admin has them
    to: str = ""
    help: str = ""
    kind: str = TEXT
    default: Any = None
    required: bool = False
    choices: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name of the value: the long option, with underscores."""
        long = [flag for flag in self.flags.split() if flag.startswith("--")]
        return long[0].removeprefix("--").replace("-", "_")


class Verb(NamedTuple):
    name: str
    method: str
    path: str
    help: str
    options: tuple[Option, ...] = ()
    example: str = ""
    of_one: tuple[str, str] | None = None                            # (option, path): asked there where the option is given
    body: Callable[[dict[str, Any]], Any] | None = None              # values -> JSON to send
    run: Callable[[Broker, dict[str, Any]], Any] | None = None       # instead of one question: what is shown
    streams: bool = False                                            # `run` yields messages
    hidden: bool = False                                             # in the list of verbs
    table: Callable[[Any], Any] | None = None                        # the answer -> what people are shown of it


def need(flags: str, to: str = "", help: str = "", kind: str = TEXT) -> Option:
    return Option(flags, to, help, kind, required=True)


def flag(flags: str, to: str = "", help: str = "") -> Option:
    return Option(flags, to, help, FLAG)

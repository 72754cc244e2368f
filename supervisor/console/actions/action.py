"""Declaration of actions: fields that somebody fills in, and the plan that they make."""
import json
import shlex
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from geminga.proto import names
from geminga.proto.errors import Refusal
from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.rendering import text

Values = dict[str, str]
NOTHING = object()           # as a body: none is sent


class Wrong(Exception):
    """An error: a field has a value that cannot be used, or is empty.  The text is for the one who fills it in."""


def command(*words: str) -> str:
    """Return the command line of `geminga` with these words."""
    return shlex.join(["geminga", *words])


def whole(typed: str, least: int, most: int = 999_999_999, wrong: str = "") -> int:
    """Return a whole number that somebody typed.  wrong: what to say of another text.  Raises Wrong."""
    typed = typed.strip().replace(",", "")
    if not (typed.isascii() and typed.isdigit() and len(typed) < 10 and least <= int(typed) <= most):
        raise Wrong(wrong or text("action.number", least=least))
    return int(typed)


def topic_named(typed: str) -> str:
    """Return the complete name of a topic that somebody typed.  Raises Wrong."""
    try:
        return str(names.parse(typed.strip()))
    except Refusal as refusal:
        raise Wrong(refusal.message) from None


class Field(NamedTuple):
    """A field of an action's dialog.  Its words are `[action.NAME]` of text.toml: `FIELD`, and perhaps `FIELD_hint`."""

    name: str
    kind: str = "text"                   # text, number, area, check, choice, time
    default: str = ""
    choices: tuple[str, ...] = ()        # of the kind "choice"
    is_required: bool = True
    label: str = ""                      # instead of words of text.toml: a name that programs use, too
    hint: str = ""


class Plan(NamedTuple):
    """The request that an action is about to send, with its effect and the command that does the same."""

    method: str
    path: str                            # of REST, quoted, with parameters
    effect: str                          # a sentence: what will be different
    command: str                         # the command that does the same
    body: Any = NOTHING                  # JSON that is sent
    next: str = ""                       # address of the page to go on with; "": the same page
    is_possible: bool = True             # False: the effect says why not

    @property
    def body_text(self) -> str:
        """The body as JSON, "" if none is sent."""
        return "" if self.body is NOTHING else json.dumps(self.body)

    @property
    def call(self) -> str:
        """The request over HTTP as people write it."""
        return f"{self.method} {self.path}" + (f"\n{self.body_text}" if self.body is not NOTHING else "")


Make = Callable[[Asking, Values], Awaitable[Plan]]


class Action(NamedTuple):
    """An action.  Its title is `title` in `[action.WORDS]` of text.toml, its button `button`."""

    name: str
    make: Make
    subject: tuple[str, ...]             # values that name what it acts on: they come with the button
    fields: tuple[Field, ...]
    is_dangerous: bool
    words: str = ""                      # a table of words that several actions share; "": its name
    meaning: str = ""                    # a sentence below the title


class Actions(list[Action]):
    """The actions that a file declares."""

    def named(self, name: str, subject: str, *fields: Field, is_dangerous: bool = False) -> Callable[[Make], Make]:
        """Return a decorator that declares a function as the one that plans an action.

        subject: names of the values that come with its button.
        """
        def declare(make: Make) -> Make:
            self.append(Action(name, make, tuple(subject.split()), fields, is_dangerous))
            return make
        return declare

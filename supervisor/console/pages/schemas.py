"""The page of a topic's schemas: all versions, and the differences between them."""
import difflib
import shlex
from typing import Any, NamedTuple

from geminga.proto.names import without_partition
from geminga.supervisor.console.actions.schema_actions import pretty
from geminga.supervisor.console.asking import Asking, QuestionRefused
from geminga.supervisor.console.page import PATH, Pages, Values
from geminga.supervisor.console.pages.topic import schemas_of
from geminga.supervisor.wording import human

pages = Pages()
_VERSIONS = 20               # that are shown, the newest ones; any two can be compared
_LINES = 500                 # of a definition that are compared: the time grows with their square


class Line(NamedTuple):
    """A line of a comparison."""

    mark: str                # "+", "-" or " "
    text: str


@pages.at("/console/topics" + PATH + "/schemas", "schemas.html")
async def schemas(ask: Asking) -> Values:
    base = without_partition(ask.topic)
    versions = await schemas_of(ask, base)
    if versions is None:
        raise QuestionRefused(403, "This role may not see the topic's schemas")
    by_number = {version["version"]: version for version in versions}
    last = list(zip([None, *versions], versions, strict=False))[-_VERSIONS:]
    shown = [one | {"definition": pretty(one["data"]), "lines": _compared(before, one) if before else None}
             for before, one in reversed(last)]
    first, second = (_chosen(ask.query.get(name, ""), by_number) for name in ("from", "to"))
    compared = _compared(first, second) if first is not None and second is not None else None
    return {"topic": ask.topic, "base": base, "versions": shown, "total": len(versions),
            "numbers": list(by_number), "chosen": (first, second), "compared": compared,
            "commands": [shlex.join(["geminga", "admin", "schemas", "get", human.short(base), "--all-version"])]}


def _chosen(typed: str, versions: dict[int, Any]) -> Any:
    return versions.get(int(typed)) if typed.isascii() and typed.isdigit() and len(typed) < 19 else None


def _compared(before: dict[str, Any], after: dict[str, Any]) -> list[Line]:
    """Return the lines of two versions' types, properties and definitions, marked where they differ."""
    old, new = _lines(before), _lines(after)
    lines: list[Line] = []
    for kind, old_first, old_end, new_first, new_end in difflib.SequenceMatcher(None, old, new).get_opcodes():
        if kind == "equal":
            lines += (Line(" ", text) for text in old[old_first:old_end])
        else:
            lines += (Line("-", text) for text in old[old_first:old_end])
            lines += (Line("+", text) for text in new[new_first:new_end])
    return lines


def _lines(version: dict[str, Any]) -> list[str]:
    properties = [f"{name}: {value}" for name, value in sorted((version["properties"] or {}).items())]
    return [version["type"], *properties, *pretty(version["data"]).splitlines()[:_LINES]]

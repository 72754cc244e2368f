"""Rows of the policies that hold for a topic: value, origin, and what the dialogs that change them begin with."""
import json
from typing import Any

from geminga.supervisor.console.actions.policy_actions import action_name, is_removable
from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.rendering import topic_path

_ORDER = "topic", "namespace", "broker"
Row = dict[str, Any]


async def policies_of(ask: Asking, base: str) -> list[Row] | None:
    """Return a row for each policy, the topic's own first; None if the role may not see them.

    A row has `fields`, the values that the dialog begins with.
    """
    rows: list[Row] | None = await ask.maybe(f"/ops/v1/policies/{topic_path(base)}")
    if rows is None:
        return None
    for row in rows:
        row["shown"] = told(row["value"])
        row["action"] = action_name(row["policy"])
        row["is_removable"] = row["topic"] is not None and is_removable(row["policy"])
        row["fields"] = {"topic": base} | fields_of(row["value"])
    return sorted(rows, key=lambda row: _ORDER.index(row["origin"]))


def told(value: Any) -> list[str]:
    """Return the lines that show a policy's value: one for each part of an object."""
    if isinstance(value, dict):
        return [f"{name}: {_text(one)}" for name, one in value.items()]
    return [_text(value)]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "–"      # noqa: RUF001 - a dash stands for a missing value
    if value is None:
        return "–"      # noqa: RUF001
    return value if isinstance(value, str) else json.dumps(value)


def fields_of(value: Any) -> dict[str, str]:
    """Return a policy's value as the values of the fields of its dialog."""
    if isinstance(value, dict):
        return {name: _typed(one) for name, one in value.items()}
    return {"value": _typed(value)}


def _typed(value: Any) -> str:
    if value is None:
        return ""
    return ", ".join(map(str, value)) if isinstance(value, list) else value if isinstance(value, str) \
        else json.dumps(value)

"""Rows of the policies that hold for a topic or namespace: value, origin, first values of the dialogs that set them."""
import json
from typing import Any

from geminga.storage.catalogue.policy_declaration import TOPIC
from geminga.supervisor.console.actions.policy_actions import LEVELS, action_name, is_removable
from geminga.supervisor.console.asking import Asking

_ORDER = "topic", "namespace", "broker"
Row = dict[str, Any]


async def policies_of(ask: Asking, place: str, level: str = TOPIC) -> list[Row] | None:
    """Return a row for each policy of a topic or namespace, its own first; None if the role may not see them.

    A row has `fields`, the values that the dialog begins with, and `remover`, the action that removes it.
    """
    rows: list[Row] | None = await ask.maybe(LEVELS[level].questions(place))
    if rows is None:
        return None
    for row in rows:
        row["shown"] = told(row["value"])
        row["action"], row["remover"] = action_name(row["policy"], level), f"remove-{LEVELS[level].prefix}policy"
        row["is_removable"] = row[level] is not None and is_removable(row["policy"], level)
        row["subject"] = {level: place}
        row["fields"] = row["subject"] | fields_of(row["value"])
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

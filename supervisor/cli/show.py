"""Answers of the broker as text for people.

A list has a line for each item. An object is shown as a table, or as aligned names and values.
"""
from typing import Any

from geminga.workers.pulsar_client.rest import plain


def text(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return "\n".join(_rows(value))
    if isinstance(value, list):
        return "\n".join(map(_scalar, value))
    if isinstance(value, dict):
        return "\n".join(_object(value))
    return _scalar(value)


def _object(value: dict[str, Any]) -> list[str]:
    """Return the lines of an object: names and plain values, aligned, then nested objects and lists, indented."""
    value = {plain(name): item for name, item in value.items()}
    simple = {name: item for name, item in value.items() if not _has_parts(item)}
    width = max(map(len, simple), default=0)
    lines = [f"{name:<{width}}  {_scalar(item)}" for name, item in simple.items()]
    for name, item in value.items():
        if _has_parts(item):
            lines.append(name)
            lines += ["  " + line for line in (_object(item) if isinstance(item, dict) else _rows(item))]
    return lines


def _rows(items: list[Any]) -> list[str]:
    """Return the lines of a table for objects with up to eight plain values; else the lines of each object in turn."""
    names = list(dict.fromkeys(name for item in items for name in item))
    if any(_has_parts(item.get(name)) for item in items for name in names) or len(names) > 8:
        return [("- " if first else "  ") + line for item in items for first, line in _marked(_object(item))]
    table = [list(map(plain, names)), *([_scalar(item.get(name, "")) for name in names] for item in items)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def _marked(lines: list[str]) -> list[tuple[bool, str]]:
    return [(number == 0, line) for number, line in enumerate(lines)]


def _has_parts(value: Any) -> bool:
    """Whether a value is a nested object or a list of objects, which takes more than one line."""
    if isinstance(value, list):
        return any(isinstance(item, dict) for item in value)
    return isinstance(value, dict) and bool(value)


def _scalar(value: Any) -> str:
    if value is None or value == {} or value == []:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    if isinstance(value, list):
        return ", ".join(map(_scalar, value))
    return plain(str(value))

"""Changes of single keys in the text of a TOML file, which leave all other lines as they are."""
import copy
import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any


class CannotEdit(Exception):
    """An error: the text is not TOML, or has the keys in a form that is not edited.  The text is one line."""


def edited(text: str, values: Mapping[str, Any]) -> str:
    """Return a TOML text in which keys have new values: "name" or "section.name" -> a text, number, boolean or list.

    A line of the key is replaced.  Else a line is added below the key's commented line, below its section's header, or
    with a new header at the end.  Raises CannotEdit.
    """
    wanted, lines = _with(_parsed(text), values), text.splitlines()
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        _set(lines, section, name, f"{name} = {_as_toml(value)}")
    changed = "\n".join(lines) + "\n"
    try:
        is_right = tomllib.loads(changed) == wanted
    except tomllib.TOMLDecodeError:
        is_right = False
    if not is_right:
        raise CannotEdit(f"{', '.join(values)}: the file sets some of them in a way that only you can change")
    return changed


def _set(lines: list[str], section: str, name: str, line: str) -> None:
    begin, end = _bounds(lines, section)
    if begin is None:
        lines += [*([""] if lines and lines[-1].strip() else []), f"[{section}]", line]
        return
    for pattern, end_of_old in (rf"\s*{re.escape(name)}\s*=", 1), (rf"\s*#\s*{re.escape(name)}\s*=", 0):
        for at in range(begin, end):
            if re.match(pattern, lines[at]):
                lines[at:at + 1] = [line] if end_of_old else [lines[at], line]
                return
    lines.insert(begin, line)


def _bounds(lines: list[str], section: str) -> tuple[int | None, int]:
    """Return the lines of a section, as (first, behind the last); (None, 0) if there is no such section."""
    headers = [(at, header[1].strip()) for at, line in enumerate(lines)
               if (header := re.match(r"\s*\[([^\[\]]*)\]", line))]
    starts = [(0, ""), *((at + 1, name) for at, name in headers)]
    ends = [at for at, _ in headers] + [len(lines)]
    for (start, name), end in zip(starts, ends, strict=True):
        if name == section:
            return start, end
    return None, 0


def _as_toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CannotEdit(str(error)) from None


def _with(document: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    for key, value in values.items():
        *sections, name = key.split(".")
        table = changed
        for section in sections:
            table = table.setdefault(section, {})
        table[name] = value
    return changed

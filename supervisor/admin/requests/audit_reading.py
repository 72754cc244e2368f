"""The audit log over HTTP: its newest lines first, read backwards from the end of the files.

A request reads at most READ_MAX bytes, however few of the lines it wants. Its answer says where the next one goes on,
by the file's inode and a place in it: files are renamed as they grow.
"""
import asyncio
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from aiohttp import web

from geminga.supervisor.admin.requests import rights
from geminga.supervisor.admin.requests.audit import FILES, NAME
from geminga.supervisor.admin.requests.request_parts import TOPICS, number_of

routes = rights.Routes()
READ_MAX = 2 << 20           # bytes: some 10,000 lines
_BLOCK = 64 << 10
_ROWS, _ROWS_MAX = 100, 1_000
_TEXT_MAX = 256              # characters of a text that is looked for
_TIME_MAX = 1 << 50          # ms: the largest time that a request may name
Row = dict[str, Any]


@routes.get("/ops/v1/audit")
async def lines(request: web.Request) -> web.Response:
    """Answer with the newest lines of the audit log.

    Parameters: limit; role (whole), match (a part of the line); since and until, times in ms; at, where an answer
    before said that it ended.
    """
    query = request.query
    limit = number_of(request, query.get("limit", str(_ROWS)), "limit", _ROWS_MAX)
    since, until = (number_of(request, query.get(name) or str(default), name, _TIME_MAX)
                    for name, default in (("since", 0), ("until", _TIME_MAX)))
    match, role = query.get("match", "").lower(), query.get("role", "")
    if max(len(match), len(role)) > _TEXT_MAX:
        raise web.HTTPBadRequest(text=f"match and role have at most {_TEXT_MAX} characters")

    def is_wanted(row: Row) -> bool:
        return (not role or row.get("role") == role) and time_ms_of(row) <= until and (
            not match or any(match in str(value).lower() for value in row.values()))

    folder = request.app[TOPICS].config.data_dir
    rows, place = await asyncio.to_thread(_read, folder, query.get("at", ""), limit, since, is_wanted)
    return web.json_response({"rows": rows, "at": place, "more": bool(place)})


def time_ms_of(row: Row) -> int:
    """Return the time of a line in ms, 0 if it has none."""
    try:
        return int(datetime.fromisoformat(row["time"]).astimezone(UTC).timestamp() * 1_000)
    except (KeyError, TypeError, ValueError):
        return 0


def _read(folder: Path, at: str, limit: int, since: int, is_wanted: Callable[[Row], bool]) -> tuple[list[Row], str]:
    """Return rows, and where the next request goes on, "" if there are no further lines."""
    rows: list[Row] = []
    read = 0
    with ExitStack() as opened:
        for line, place in _backwards(_files(folder, opened), at):
            if len(rows) >= limit or read > READ_MAX:
                return rows, place
            read += len(line) + 1
            row = _parsed(line)
            if row is not None and time_ms_of(row) < since:
                return rows, ""
            if row is not None and is_wanted(row):
                rows.append(row)
    return rows, ""


def _parsed(line: bytes) -> Row | None:
    """Return the object of a line; None for a line that a power cut has torn."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _files(folder: Path, opened: ExitStack) -> Iterator[tuple[int, BinaryIO]]:
    """Yield (inode, file) of the log's files, the newest first; each once, though files are renamed meanwhile."""
    seen = set()
    for number in range(FILES + 1):
        try:
            file = open(folder / (f"{NAME}.{number}" if number else NAME), "rb")  # noqa: SIM115 - the stack closes it
        except OSError:
            continue
        opened.enter_context(file)
        inode = os.fstat(file.fileno()).st_ino
        if inode not in seen:
            seen.add(inode)
            yield inode, file


def _backwards(files: Iterator[tuple[int, BinaryIO]], at: str) -> Iterator[tuple[bytes, str]]:
    """Yield (line, the place behind it) of the files' lines, the last first.  at: place at which to begin; "": the end.

    A place in a file that was deleted meanwhile begins nowhere.
    """
    text, _, end_text = at.partition("-")
    is_before = bool(at)
    for inode, file in files:
        end = file.seek(0, os.SEEK_END)
        if is_before and str(inode) != text:
            continue
        if is_before:
            is_before = False
            end = min(end, int(end_text)) if end_text.isascii() and end_text.isdigit() and len(end_text) < 20 else 0
        for line, place in _lines_of(file, end):
            if line:
                yield line, f"{inode}-{place}"


def _lines_of(file: BinaryIO, end: int) -> Iterator[tuple[bytes, int]]:
    """Yield (line, where it ends) before a place in a file, the last first."""
    begin, rest = end, b""
    while begin > 0:
        size = min(_BLOCK, begin)
        begin -= size
        file.seek(begin)
        *parts, = (file.read(size) + rest).split(b"\n")
        place = begin + sum(map(len, parts)) + len(parts) - 1
        for line in reversed(parts[1:]):
            yield line, place
            place -= len(line) + 1
        rest = parts[0]
    if rest:
        yield rest, len(rest)

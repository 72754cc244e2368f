"""The newest lines of the log of all processes, which the broker keeps in memory (storage/runtime/log_lines.py)."""
import itertools
import re
from collections.abc import Callable

from aiohttp import web

from geminga.storage.runtime.log import LEVELS, NAMES, log
from geminga.storage.runtime.log_lines import Line
from geminga.supervisor.admin.requests import rights
from geminga.supervisor.admin.requests.request_parts import number_of

routes = rights.Routes()
_ROWS, _ROWS_MAX = 200, 1_000
_TEXT_MAX = 256              # characters of a text that is looked for
_TIME_MAX = 1 << 50          # ms


@routes.get("/ops/v1/log")
async def tail(request: web.Request) -> web.Response:
    """Answer with the newest lines of the log, the newest first.

    Parameters: limit; level (lines at least as important), code, process, match (a part of the text), since (ms).
    """
    limit = number_of(request, request.query.get("limit", str(_ROWS)), "limit", _ROWS_MAX)
    since = number_of(request, request.query.get("since") or "0", "since", _TIME_MAX)
    is_wanted = _filter(request)
    lines = log.lines.newest() if log.lines is not None else iter(())
    kept = filter(is_wanted, itertools.takewhile(lambda line: line.time_ms >= since, lines))
    rows = list(itertools.islice(kept, limit + 1))
    return web.json_response({"rows": [_row(line) for line in rows[:limit]], "more": len(rows) > limit})


def _filter(request: web.Request) -> Callable[[Line], bool]:
    """Return whether a request wants a line.  Raises 400."""
    level, code, process, match = (request.query.get(name, "") for name in ("level", "code", "process", "match"))
    if level and level not in LEVELS:
        raise web.HTTPBadRequest(text=f"level is one of {', '.join(LEVELS)}")
    if code and not re.fullmatch(r"[A-Z]\d{1,5}", code):
        raise web.HTTPBadRequest(text="code is a letter and a number, such as G101")
    if max(len(process), len(match)) > _TEXT_MAX:
        raise web.HTTPBadRequest(text=f"process and match have at most {_TEXT_MAX} characters")
    most, part = LEVELS.get(level, max(LEVELS.values())), match.lower()
    return lambda line: (line.level <= most and code in ("", line.code) and process in ("", line.process)
                         and part in line.text.lower())


def _row(line: Line) -> dict[str, str | int]:
    return {"time_ms": line.time_ms, "process": line.process, "level": NAMES.get(line.level, str(line.level)),
            "code": line.code, "text": line.text}

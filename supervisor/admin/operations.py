"""What operators ask of the broker as a whole, and set for a while."""
import time
from typing import Any

from aiohttp import web

from geminga.proto import names
from geminga.storage.control import Control
from geminga.storage.log import LEVELS, NAMES, Rule, log
from geminga.supervisor.admin.topics import body_of

routes = web.RouteTableDef()
CONTROL = web.AppKey("control", Control)
_LEVEL_SECONDS, _LEVEL_SECONDS_MAX = 300, 7 * 24 * 3600
_RULES_MAX = 100


# -- the log

@routes.get("/ops/v1/log-level")
async def level(request: web.Request) -> web.Response:
    return web.json_response(_level())


def _level() -> dict[str, Any]:
    now = time.monotonic()
    return {"level": NAMES[log.configured], "for_now": [
        {"level": NAMES[rule.level], "topic": rule.topic, "client": rule.client, "seconds_left": round(rule.until - now, 1)}
        for rule in log.rules()]}


@routes.put("/ops/v1/log-level")
async def set_level(request: web.Request) -> web.Response:
    """For a while, of a topic, a client or all: {"level": "debug", "topic": "...", "client": "10.0.0.7:1234", "seconds": 300}."""
    asked = await body_of(request)
    if not isinstance(asked, dict) or not set(asked) <= {"level", "topic", "client", "seconds"}:
        raise web.HTTPBadRequest(text="The body is an object with level, and perhaps topic, client and seconds")
    wanted, topic, client, seconds = (asked.get(name, default) for name, default in (
        ("level", ""), ("topic", ""), ("client", ""), ("seconds", _LEVEL_SECONDS)))
    if wanted not in LEVELS:
        raise web.HTTPBadRequest(text=f"level is one of {', '.join(LEVELS)}")
    if not isinstance(topic, str) or not isinstance(client, str):
        raise web.HTTPBadRequest(text="topic and client are texts")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= _LEVEL_SECONDS_MAX:
        raise web.HTTPBadRequest(text=f"seconds is a number above 0 and up to {_LEVEL_SECONDS_MAX}")
    rule = Rule(LEVELS[wanted], time.monotonic() + seconds, str(names.parse(topic)) if topic else "", client)
    _follow(request, [*(one for one in log.rules() if (one.topic, one.client) != (rule.topic, rule.client)), rule][-_RULES_MAX:])
    return web.json_response(_level())


@routes.delete("/ops/v1/log-level")
async def reset_level(request: web.Request) -> web.Response:
    """What was configured holds again."""
    _follow(request, [])
    return web.json_response(_level())


def _follow(request: web.Request, rules: list[Rule]) -> None:
    """Here at once, in all other processes in a moment."""
    log.follow(rules)
    request.app[CONTROL].send(tell={"log": rules})

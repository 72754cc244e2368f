"""Messages: a search of what is stored, the live tail of a topic, and publishing of one."""
from geminga.proto import names
from geminga.proto.errors import Refusal
from geminga.supervisor.console import rendering
from geminga.supervisor.console.actions.scalable_actions import is_scalable
from geminga.supervisor.console.asking import Asking, QuestionRefused
from geminga.supervisor.console.page import Pages, Values
from geminga.supervisor.console.payloads import words

pages = Pages()
CONDITIONS = "key", "property", "grep", "since", "until", "limit", "order"      # of a search, also in a page's address
_LIMITS, _ORDERS = ("20", "100", "1000"), ("newest", "oldest")      # the first of each is the default


@pages.at("/console/messages", "messages.html")
async def messages(ask: Asking) -> Values:
    place = ask.query.get("place", "").strip()
    topic = _topic(place)
    told = words(place) if place else "TOPIC"
    # REST searches scalable topics, but neither reads single messages of them nor publishes any.
    is_read = bool(topic) and not is_scalable(topic)
    status = await _reading(ask, topic) if is_read else 200
    path = rendering.topic_path(topic) if topic else "/".join(map(ask.quoted, place.split("/")))
    return {"place": place, "topic": topic, "is_read": is_read, "search": f"/ops/v1/search/{path}",
            "may_read": status not in (401, 403),
            "asked": {name: ask.query.get(name, "") for name in CONDITIONS}, "limits": _LIMITS, "orders": _ORDERS,
            # A namespace is searched when somebody has said for what: all its topics together may be large.
            "starts": status == 200 if is_read else any(ask.query.get(name) for name in CONDITIONS),
            "commands": [f"geminga search {told} --key KEY --grep REGEX --since -1h --newest-first",
                         *([f"geminga consume {told} --follow"] if topic or not place else []),
                         *([f"geminga produce {told} TEXT"] if topic else [])]}


def _topic(place: str) -> str:
    """Return the complete name of a topic, "" for a namespace and what is no name."""
    if not place or ("://" not in place and place.count("/") == 1):
        return ""
    try:
        return str(names.parse(place))
    except Refusal:
        return ""


async def _reading(ask: Asking, topic: str) -> int:
    """Return the status with which a topic's messages can be read: 404 if there is no such topic."""
    try:
        await ask.get(f"/ops/v1/messages/{rendering.topic_path(topic)}", limit=1, payload=0)
    except QuestionRefused as refused:
        return refused.status
    return 200

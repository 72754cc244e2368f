"""Actions on subscriptions: skip, clear, reset, expire, release, create, delete; dead letters sent back."""
import re
import time
from typing import Any

from geminga.proto.names import parse
from geminga.storage.runtime import units
from geminga.supervisor.console.actions.action import Actions, Field, Plan, Values, Wrong, whole
from geminga.supervisor.console.actions.scalable_actions import is_scalable, rest_path
from geminga.supervisor.console.asking import Asking, QuestionRefused
from geminga.supervisor.console.payloads import words
from geminga.supervisor.console.rendering import counted, text, topic_path
from geminga.supervisor.wording.sentences import Standstill, backlog_of
from geminga.workers.pulsar_client.rest import subscription_path

actions = Actions()
_SUBJECT = "topic subscription"
_POSITION = re.compile(r"([0-9]{1,18}):([0-9]{1,18})", re.ASCII)
_COUNTED_MAX = 10_000_000    # entries that REST passes over to count messages
_LETTERS = "1000"
# Message ids as clients write them, which REST understands like those words.
_PLACES = {"earliest": {"ledgerId": -1, "entryId": -1, "partitionIndex": -1, "batchIndex": -1},
           "latest": {"ledgerId": (1 << 63) - 1, "entryId": (1 << 63) - 1, "partitionIndex": -1, "batchIndex": -1}}


def _path(values: Values) -> str:
    """Return the path of the subscription in Pulsar's REST."""
    if is_scalable(values["topic"]):
        return f"{rest_path(values['topic'])}/subscriptions/{Asking.quoted(values['subscription'])}"
    return f"/admin/v2/{topic_path(values['topic'])}/subscription/{subscription_path(values['subscription'])}"


def _command(verb: str, values: Values, *more: str) -> str:
    group = "scalable-topics" if is_scalable(values["topic"]) else "topics"
    return f"geminga admin {group} {verb} {words(values['topic'], '-s', values['subscription'], *more)}"


def _number(values: Values, field: str, action: str) -> int:
    return whole(values[field], 1, wrong=text("subscription.no_number", field=text(f"action.{action}.{field}")))


async def _why(ask: Asking, values: Values) -> list[Standstill]:
    why: list[Standstill] = await ask.get(
        f"/ops/v1/why/{topic_path(values['topic'])}/{ask.quoted(values['subscription'])}")
    return why


async def _passed_from(ask: Asking, topic: str, subscription: str, at_ms: int) -> tuple[int, bool]:
    """Return what `_passed` does for the messages of a partition from a time on."""
    place = await ask.get(f"/admin/v2/{topic_path(topic)}/messageid/{at_ms}")
    return await _passed(ask, topic, subscription, skip=_COUNTED_MAX,
                         **{"from": f"{place['ledgerId']}:{max(0, place['entryId'])}"})


async def _passed(ask: Asking, topic: str, subscription: str, **query: Any) -> tuple[int, bool]:
    """Return how many messages a page would pass over, and whether the count stopped at its bound.

    subscription: of which messages are counted; "": all of the topic.
    """
    path = f"/ops/v1/messages/{topic_path(topic)}" + (f"/{ask.quoted(subscription)}" if subscription else "")
    answer = await ask.get(path, limit=1, payload=0, **query)
    return answer["passed_messages"], bool(answer["rows"])


@actions.named("skip-messages", _SUBJECT, Field("entries", "number", "1"), is_dangerous=True)
async def skip_messages(ask: Asking, values: Values) -> Plan:
    entries = _number(values, "entries", "skip-messages")
    messages, _ = await _passed(ask, values["topic"], values["subscription"], skip=entries)
    return Plan("POST", f"{_path(values)}/skip/{entries}", counted("action.skip-messages.effect", messages),
                _command("skip", values, "-n", str(entries)), is_possible=messages > 0)


@actions.named("clear-backlog", _SUBJECT, is_dangerous=True)
async def clearbacklog_of(ask: Asking, values: Values) -> Plan:
    messages = backlog_of(await _why(ask, values))
    path = f"{_path(values)}/{'skip-all' if is_scalable(values['topic']) else 'skip_all'}"
    return Plan("POST", path, counted("action.clear-backlog.effect", messages),
                _command("clear-backlog", values), is_possible=messages > 0)


@actions.named("take-backlog-back", f"{_SUBJECT} id")
async def take_backlog_back(ask: Asking, values: Values) -> Plan:
    place = f"/ops/v1/deleted/{parse(values['topic']).namespace}"
    kept = next((one for one in await ask.get(place) if str(one["id"]) == values["id"]), None)
    if kept is None:
        raise Wrong(text("action.take-backlog-back.gone"))
    return Plan("POST", f"{place}/{kept['id']}/undelete", counted("action.take-backlog-back.effect", kept["messages"]),
                f"geminga undelete backlog {words(values['topic'], values['subscription'], '--id', values['id'])}")


@actions.named("reset-to-time", _SUBJECT, Field("time", default="-1h"), is_dangerous=True)
async def reset_to_time(ask: Asking, values: Values) -> Plan:
    at_ms = _moment(values["time"])
    why, after, is_bound = await _why(ask, values), 0, False
    seconds = max(1, round(time.time() - at_ms / 1_000))
    if is_scalable(values["topic"]):      # REST counts no messages of segments
        return Plan("POST", f"{_path(values)}/seek?timestamp={at_ms}",
                    counted("action.reset-to-time.scalable", backlog_of(why), time=units.instant(at_ms)),
                    _command("seek", values, "-t", f"{seconds}s"))
    for part in why:
        messages, is_cut = await _passed_from(ask, part["topic"], "", at_ms)
        after, is_bound = after + messages, is_bound or is_cut
    return Plan("POST", f"{_path(values)}/resetcursor/{at_ms}", _reset_effect(why, after, is_bound),
                _command("reset-cursor", values, "-t", f"{seconds}s"))


def _reset_effect(why: list[Standstill], after: int, is_bound: bool) -> str:
    consumers = max((part["consumer_count"] for part in why), default=0)
    effect = counted("action.reset.effect_many" if is_bound else "action.reset.effect", after,
                     before=f"{backlog_of(why):,}")
    return f"{effect} {counted('action.reset.consumers', consumers)}" if consumers else effect


@actions.named("reset-to-message", _SUBJECT, Field("message", default="earliest"), is_dangerous=True)
async def reset_to_message(ask: Asking, values: Values) -> Plan:
    place = values["message"].strip()
    if place in _PLACES:
        body = _PLACES[place]
    elif match := _POSITION.fullmatch(place):
        body = {"ledgerId": int(match[1]), "entryId": int(match[2]), "partitionIndex": -1, "batchIndex": -1}
    else:
        raise Wrong(text("action.reset-to-message.wrong"))
    after, is_bound = 0, False
    if place != "latest":
        after, is_bound = await _passed(ask, values["topic"], "", skip=_COUNTED_MAX,
                                        **{"from": None if place == "earliest" else place})
    return Plan("POST", f"{_path(values)}/resetcursor", _reset_effect(await _why(ask, values), after, is_bound),
                _command("reset-cursor", values, "-m", place), body | {"excluded": False})


@actions.named("expire-messages", _SUBJECT, Field("age", default="1d"), is_dangerous=True)
async def expire_messages(ask: Asking, values: Values) -> Plan:
    try:
        seconds = max(1, units.millis(values["age"].strip()) // 1_000)
    except ValueError as error:
        raise Wrong(str(error)) from None
    at_ms, expired = time.time_ns() // 1_000_000 - seconds * 1_000, 0
    for part in await _why(ask, values):
        newer, _ = await _passed_from(ask, part["topic"], values["subscription"], at_ms)
        expired += max(0, backlog_of([part]) - newer)
    return Plan("POST", f"{_path(values)}/expireMessages/{seconds}", counted("action.expire-messages.effect", expired),
                _command("expire-messages", values, "-t", f"{seconds}s"))


def _moment(text_: str) -> int:
    now_ms = time.time_ns() // 1_000_000
    try:
        return max(0, min(units.moment(text_.strip(), now_ms), now_ms))
    except ValueError as error:
        raise Wrong(str(error)) from None


@actions.named("release-parked", _SUBJECT)
async def release_parked(ask: Asking, values: Values) -> Plan:
    parked = sum(cause["cause"] == "parked" for part in await _why(ask, values) for cause in part["causes"])
    return Plan("POST", f"/ops/v1/release/{topic_path(values['topic'])}/{ask.quoted(values['subscription'])}",
                counted("action.release-parked.effect", parked),
                f"geminga admin topics release-parked {words(values['topic'], '-s', values['subscription'])}")


@actions.named("unsubscribe", _SUBJECT, Field("force", "check", is_required=False), is_dangerous=True)
async def unsubscribe(ask: Asking, values: Values) -> Plan:
    why = await _why(ask, values)
    consumers, is_forced = max(part["consumer_count"] for part in why), values["force"] == "true"
    effect = counted("action.unsubscribe.effect", backlog_of(why))
    if consumers:
        effect = counted("action.unsubscribe.closes" if is_forced else "action.unsubscribe.busy", consumers) + (
            f" {effect}" if is_forced else "")
    return Plan("DELETE", _path(values) + ("?force=true" if is_forced else ""), effect,
                _command("unsubscribe", values, *(["-f"] if is_forced else [])),
                next=f"/console/topics/{topic_path(values['topic'])}", is_possible=is_forced or not consumers)


@actions.named("create-subscription", "topic", Field("subscription"),
               Field("start", "choice", "latest", ("latest", "earliest")))
async def create_subscription(ask: Asking, values: Values) -> Plan:
    values = values | {"subscription": values["subscription"].strip()}
    path = f"{_path(values)}"
    names = await ask.get(f"/admin/v2/{topic_path(values['topic'])}/subscriptions")
    if values["subscription"] in names:
        raise Wrong(text("action.create-subscription.exists"))
    return Plan("PUT", path, text(f"action.create-subscription.effect_{values['start']}"),
                _command("create-subscription", values, "-m", values["start"]), _PLACES[values["start"]],
                next=f"/console/topics/{topic_path(values['topic'])}/subscriptions/{ask.quoted(values['subscription'])}")


@actions.named("redrive", "topic", Field("count", "number", _LETTERS))
async def redrive(ask: Asking, values: Values) -> Plan:
    count = min(_number(values, "count", "redrive"), 100_000)
    path = f"/ops/v1/redrive/{topic_path(values['topic'])}"
    try:
        figures = await ask.get(path, count=count)
    except QuestionRefused as refused:
        raise Wrong(refused.text) from None
    sentences = [counted("action.redrive.effect", number, topic=topic) for topic, number in figures["targets"].items()]
    if figures["sent"] > figures["to_all_subscriptions"]:
        sentences.append(text("action.redrive.addressed"))
    if figures["to_all_subscriptions"]:
        sentences.append(counted("action.redrive.for_all", figures["to_all_subscriptions"]))
    sentences += [counted("action.redrive.not_possible", number, reason=reason)
                  for reason, number in figures["not_possible"].items()]
    return Plan("POST", path, " ".join(sentences) or text("action.redrive.nothing"),
                f"geminga redrive {words(values['topic'])} -n {count}", {"count": count},
                is_possible=figures["sent"] > 0)

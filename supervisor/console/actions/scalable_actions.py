"""Actions on scalable topics: split a segment, merge two neighbours, delete the topic or a subscription."""
from typing import Any

from geminga.supervisor.console.actions.action import Action, Actions, Plan, Values, command
from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.rendering import counted, text, topic_path
from geminga.supervisor.wording import human

actions = Actions()
_TOPICS = "/console/topics"


def is_scalable(topic: str) -> bool:
    """Whether a complete name is that of a scalable topic."""
    return topic.startswith("topic://")


def rest_path(topic: str) -> str:
    """Return the path of a scalable topic over REST."""
    return f"/admin/v2/scalable/{topic_path(topic).partition('/')[2]}"


def active_segments(layout: dict[str, Any]) -> list[int]:
    """Return the numbers of the active segments of a layout, as REST has it, in the order of their hashes."""
    segments = layout["segments"].values()
    return [one["segmentId"] for one in sorted(segments, key=lambda one: int(one["hashRange"]["start"]))
            if one["active"]]


def _command(verb: str, topic: str, *more: str) -> str:
    return command("admin", "scalable-topics", verb, topic, *more)


# -- segments

@actions.named("split-segment", "topic segment")
async def split(ask: Asking, values: Values) -> Plan:
    topic, number = values["topic"], values["segment"]
    segment = await _segment(ask, topic, number)
    is_possible = segment is not None and segment["hashRange"]["start"] < segment["hashRange"]["end"]
    effect = text("action.split-segment.effect" if is_possible else "action.segment.changed", segment=number)
    return Plan("POST", f"{rest_path(topic)}/split/{ask.quoted(number)}", effect,
                _command("split-segment", topic, "-s", number), is_possible=is_possible)


@actions.named("merge-segments", "topic segment other")
async def merge(ask: Asking, values: Values) -> Plan:
    topic, number, other = values["topic"], values["segment"], values["other"]
    low, high = await _segment(ask, topic, number), await _segment(ask, topic, other)
    is_possible = low is not None and high is not None and low["hashRange"]["end"] + 1 == high["hashRange"]["start"]
    effect = text("action.merge-segments.effect", segment=number, other=other) if is_possible \
        else text("action.segment.changed", segment=f"{number}, {other}")
    return Plan("POST", f"{rest_path(topic)}/merge/{ask.quoted(number)}/{ask.quoted(other)}", effect,
                _command("merge-segments", topic, "--segment-id-1", number, "--segment-id-2", other),
                is_possible=is_possible)


async def _segment(ask: Asking, topic: str, number: str) -> dict[str, Any] | None:
    """Return a segment of the layout, None if it is sealed or not there."""
    segment: dict[str, Any] | None = (await ask.get(rest_path(topic)))["segments"].get(number)
    return segment if segment is not None and segment["active"] else None


# -- what ends or loses something

@actions.named("delete-scalable-topic", "topic", is_dangerous=True)
async def delete(ask: Asking, values: Values) -> Plan:
    topic, path = values["topic"], rest_path(values["topic"])
    stats = await ask.get(f"{path}/stats")
    subscriptions = stats["subscriptions"].values()
    clients = len(stats["producers"]) + sum(map(_connected, subscriptions))
    sentences = [counted("action.delete-scalable-topic.effect", len(stats["layout"]["segments"])),
                 text("action.lost", size=human.size(stats["storageSize"])),
                 counted("action.skipped", max((one["msgBacklog"] for one in subscriptions), default=0))]
    sentences += [counted("action.disturbed", clients)] if clients else []
    sentences += [counted("action.delete-topic.subscriptions", len(subscriptions))]
    return Plan("DELETE", path, " ".join(sentences), _command("delete", topic), next=_TOPICS)


def _connected(subscription: dict[str, Any]) -> int:
    """Return the number of consumers, without those that have only registered, and whose connection has ended."""
    return sum(one["connected"] for one in subscription["consumers"])


async def _unsubscribe(ask: Asking, values: Values) -> Plan:
    topic, name = values["topic"], values["subscription"]
    one = (await ask.get(f"{rest_path(topic)}/stats"))["subscriptions"].get(name)
    consumers, backlog = (_connected(one), one["msgBacklog"]) if one is not None else (0, 0)
    effect = counted("action.unsubscribe.busy", consumers) if consumers \
        else counted("action.unsubscribe.effect", backlog) if one is not None \
        else text("action.segment.no_subscription")
    return Plan("DELETE", f"{rest_path(topic)}/subscriptions/{ask.quoted(name)}", effect,
                _command("delete-subscription", topic, "-s", name), next=f"{_TOPICS}/{topic_path(topic)}",
                is_possible=one is not None and not consumers)


actions.append(Action("unsubscribe-scalable", _unsubscribe, ("topic", "subscription"), (), True, "unsubscribe"))

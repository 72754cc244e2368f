"""Actions on topics: create, add partitions, compact, unload, trim, truncate, terminate, delete."""
from typing import NamedTuple

from geminga.supervisor.console.actions.action import Actions, Field, Plan, Values, command, topic_named, whole
from geminga.supervisor.console.actions.scalable_actions import is_scalable, rest_path
from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.rendering import counted, text, topic_path
from geminga.supervisor.wording import human

actions = Actions()
_TOPICS = "/console/topics"
_ROWS = 1_000                # partitions that are looked at, as many as REST answers with
_SUMMED = "backlog", "storage_bytes", "producers", "consumers"


class _Held(NamedTuple):
    """What a topic and its loaded partitions have."""

    backlog: int
    storage_bytes: int
    producers: int
    consumers: int
    subscriptions: int       # of each partition, as all have the same
    not_loaded: int          # topics or partitions of which nothing is known

    @property
    def clients(self) -> int:
        return self.producers + self.consumers


async def _held(ask: Asking, topic: str) -> _Held:
    answer = await ask.get(f"/ops/v1/topics/{topic_path(topic)}", sort="producers", limit=_ROWS)
    loaded = [row for row in answer["rows"] if row["producers"] is not None]
    sums = {key: sum(row[key] for row in loaded) for key in _SUMMED}
    return _Held(**sums, subscriptions=max((row["subscriptions"] for row in loaded), default=0),
                 not_loaded=answer["not_loaded"])


async def _partitions(ask: Asking, topic: str) -> int:
    """Return how many partitions a topic has, 0 if it is not partitioned."""
    return int((await ask.get(f"/admin/v2/{topic_path(topic)}/partitions"))["partitions"])


def _command(verb: str, topic: str, *more: str) -> str:
    return command("admin", "topics", verb, human.short(topic), *more)


def _lost(held: _Held, disturbed: int) -> str:
    """Return sentences about what is lost with all messages of a topic, and how many clients are disturbed."""
    sentences = [text("action.lost", size=human.size(held.storage_bytes)), counted("action.skipped", held.backlog)]
    sentences += [counted("action.disturbed", disturbed)] if disturbed else []
    return " ".join(sentences + _unknown(held))


def _unknown(held: _Held) -> list[str]:
    return [counted("action.unknown", held.not_loaded)] if held.not_loaded else []


# -- creating

@actions.named("create-topic", "", Field("topic"), Field("partitions", "number", "0"))
async def create(ask: Asking, values: Values) -> Plan:
    topic, partitions = topic_named(values["topic"]), whole(values["partitions"], 0)
    if is_scalable(topic):
        return await _create_scalable(ask, topic, max(1, partitions))
    path = f"/admin/v2/{topic_path(topic)}"
    if await ask.maybe(f"{path}/partitions") is not None:
        return Plan("PUT", path, text("action.create-topic.exists"), _command("create", topic), is_possible=False)
    after = f"{_TOPICS}/{topic_path(topic)}"
    if partitions:
        return Plan("PUT", f"{path}/partitions", counted("action.create-topic.partitioned", partitions),
                    _command("create-partitioned-topic", topic, "-p", str(partitions)), partitions, after)
    return Plan("PUT", path, text("action.create-topic.effect"), _command("create", topic), next=after)


async def _create_scalable(ask: Asking, topic: str, segments: int) -> Plan:
    path = f"{rest_path(topic)}?numInitialSegments={segments}"
    told = command("admin", "scalable-topics", "create", topic, "-s", str(segments))
    if await ask.maybe(rest_path(topic)) is not None:
        return Plan("PUT", path, text("action.create-topic.exists"), told, is_possible=False)
    return Plan("PUT", path, counted("action.create-topic.scalable", segments), told, {},
                next=f"{_TOPICS}/{topic_path(topic)}")


@actions.named("add-partitions", "topic", Field("partitions", "number"))
async def add_partitions(ask: Asking, values: Values) -> Plan:
    topic = values["topic"]
    before = await _partitions(ask, topic)
    count = whole(values["partitions"], before + 1)
    return Plan("POST", f"/admin/v2/{topic_path(topic)}/partitions",
                counted("action.add-partitions.effect", count - before, count=count),
                _command("update-partitioned-topic", topic, "-p", str(count)), count)


@actions.named("create-missing", "topic")
async def create_missing(ask: Asking, values: Values) -> Plan:
    topic = values["topic"]
    return Plan("POST", f"/admin/v2/{topic_path(topic)}/createMissedPartitions",
                counted("action.create-missing.effect", await _partitions(ask, topic)),
                _command("create-missed-partitions", topic))


# -- what keeps all messages

@actions.named("unload", "topic")
async def unload(ask: Asking, values: Values) -> Plan:
    topic = values["topic"]
    return Plan("PUT", f"/admin/v2/{topic_path(topic)}/unload",
                counted("action.unload.effect", (await _held(ask, topic)).clients), _command("unload", topic))


@actions.named("compact", "topic")
async def compact(ask: Asking, values: Values) -> Plan:
    topic = values["topic"]
    held = await _held(ask, topic)
    effect = " ".join([text("action.compact.effect", size=human.size(held.storage_bytes)), *_unknown(held)])
    return Plan("PUT", f"/admin/v2/{topic_path(topic)}/compaction", effect, _command("compact", topic))


@actions.named("trim", "topic")
async def trim(ask: Asking, values: Values) -> Plan:
    topic = values["topic"]
    return Plan("POST", f"/admin/v2/{topic_path(topic)}/trim", text("action.trim.effect"),
                _command("trim-topic", topic))


# -- what ends or loses something

@actions.named("terminate", "topic", is_dangerous=True)
async def terminate(ask: Asking, values: Values) -> Plan:
    topic, is_parted = values["topic"], await _partitions(ask, values["topic"])
    producers = (await _held(ask, topic)).producers
    return Plan("POST", f"/admin/v2/{topic_path(topic)}/terminate{'/partitions' if is_parted else ''}",
                counted("action.terminate.effect", producers),
                _command("partitioned-terminate" if is_parted else "terminate", topic))


@actions.named("truncate", "topic", is_dangerous=True)
async def truncate(ask: Asking, values: Values) -> Plan:
    topic = values["topic"]
    held = await _held(ask, topic)
    return Plan("DELETE", f"/admin/v2/{topic_path(topic)}/truncate",
                _lost(held, 0) + " " + text("action.truncate.stays"), _command("truncate", topic))


@actions.named("delete-topic", "topic", Field("force", "check", is_required=False), is_dangerous=True)
async def delete(ask: Asking, values: Values) -> Plan:
    topic, is_forced = values["topic"], values["force"] == "true"
    is_parted, held = await _partitions(ask, topic), await _held(ask, topic)
    path = f"/admin/v2/{topic_path(topic)}{'/partitions' if is_parted else ''}{'?force=true' if is_forced else ''}"
    command = _command("delete-partitioned-topic" if is_parted else "delete", topic, *["--force"] * is_forced)
    if not is_forced and (held.clients or held.subscriptions):
        used = text("action.delete-topic.used", clients=human.count(held.clients),
                    subscriptions=human.count(held.subscriptions))
        return Plan("DELETE", path, used, command, is_possible=False)
    first = counted("action.delete-topic.partitioned", is_parted) if is_parted else text("action.delete-topic.effect")
    gone = counted("action.delete-topic.subscriptions", held.subscriptions)
    return Plan("DELETE", path, f"{first} {_lost(held, held.clients)} {gone}", command, next=_TOPICS)

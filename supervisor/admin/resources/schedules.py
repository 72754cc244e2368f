"""Schedules of topics, which publish a message at planned times.

    GET    /ops/v1/schedules                                        all of the broker
    GET    /ops/v1/schedules/DOMAIN/TENANT/NAMESPACE/TOPIC          those of a topic
    GET    .../SCHEDULE                                             one, with its next times
    PUT    .../SCHEDULE                                             make or change one; ?dry-run=true only shows it
    DELETE .../SCHEDULE
    POST   .../SCHEDULE/pause, resume, run

    {"cron": "30 7 * * MON-FRI", "time_zone": "Europe/Berlin"  or  "every": ms or "90s",
     "missed": "last", "all" or "none", "at_most": 100, "paused": false,
     "message": {the fields of workers/messages/outgoing.py, without times of delivery}}

Times are in RFC 3339, as clocks show them in the schedule's time zone.  A change is in force when it is answered.
"""
import json
import re
import time
from typing import Any, NamedTuple

from aiohttp import web

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.storage.admin.schedule_questions import (
    GetSchedules,
    PrepareForSchedule,
    RunSchedule,
    ScheduleFigures,
    TakeOverSchedules,
)
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.policies import policies_of
from geminga.storage.catalogue.stored_schedules import StoredSchedule
from geminga.storage.recurring import timetable
from geminga.storage.recurring.recurring import NAME_MAX, NAMESPACE_MAX, TOPIC_MAX
from geminga.storage.recurring.timetable import Timetable, WrongTiming
from geminga.storage.runtime import units
from geminga.storage.schemas import registry
from geminga.storage.schemas.registry import InvalidSchema
from geminga.supervisor.admin.requests import rights
from geminga.supervisor.admin.requests.owners import OWNERS, Owners
from geminga.supervisor.admin.requests.request_parts import (
    ANY,
    TOPICS,
    Topics,
    body_of,
    catalogue_of,
    done,
    is_set,
    number_of,
    part_of,
    topic_of,
)
from geminga.workers.messages import outgoing
from geminga.workers.messages.entries import About, Outgoing, describe
from geminga.workers.pulsar_client import key_hashing

routes = rights.Routes()
_ALL = "/ops/v1/schedules"
_OF_TOPIC = _ALL + ANY
_ONE = _OF_TOPIC + "/{schedule:[^/]+}"
_FIELDS = "cron", "time_zone", "every", "missed", "at_most", "paused", "message"
_NEXT, _NEXT_MAX = 5, 100      # planned times that are shown
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_MAX - 1}}}", re.ASCII)
_TIMES = "deliverAt", "deliverAfter", "eventTime"      # fields of a message that would be the same each time
_OWN = names.SCHEDULE, names.SCHEDULED_FOR             # properties that the schedule itself sets


class Wanted(NamedTuple):
    """A schedule as a body describes it."""

    table: Timetable
    is_paused: bool
    message: dict[str, Any]      # as it was given


# -- what is there

@routes.get(_ALL)
async def all_of(request: web.Request) -> web.Response:
    """Answer with all schedules of the broker, without their messages."""
    rows = await shown(request.app[OWNERS], catalogue_of(request).schedules.timings(), 1)
    return web.json_response([{name: value for name, value in row.items() if name != "message"} for row in rows])


@routes.get(_OF_TOPIC, right=rights.PRODUCES)
async def of_topic(request: web.Request) -> web.Response:
    """Answer with the schedules of a topic."""
    return web.json_response(await shown(request.app[OWNERS], catalogue_of(request).schedules.of(_topic(request)), 1))


@routes.get(_ONE, right=rights.PRODUCES)
async def get(request: web.Request) -> web.Response:
    """Answer with a schedule and its next planned times, ?next=5 of them."""
    count = number_of(request, request.query.get("next", str(_NEXT)), "next", _NEXT_MAX)
    [row] = await shown(request.app[OWNERS], [_found(request)], count)
    return web.json_response(row)


async def shown(owners: Owners, schedules: list[StoredSchedule], count: int) -> list[dict[str, Any]]:
    """Return schedules as JSON, with what their owners have done of them, and `count` next times at most."""
    by_partition: dict[str, list[int]] = {}
    for one in schedules:
        by_partition.setdefault(one.partition, []).append(one.id)
    figures: dict[int, ScheduleFigures] = {}
    for partition, ids in by_partition.items():
        try:
            figures |= {one.id: one for one in await owners.ask(GetSchedules(names.parse(partition), ids=ids))}
        except Refusal as refusal:      # its owner is being started
            figures |= {number: ScheduleFigures(number, None, None, refusal.message, 0, 0) for number in ids}
    return [_as_json(one, figures.get(one.id), count) for one in schedules]


def _as_json(one: StoredSchedule, figures: ScheduleFigures | None, count: int) -> dict[str, Any]:
    table = timetable.of_text(one.timing)
    row: dict[str, Any] = {"topic": one.topic, "name": one.name, "partition": one.partition, **table.as_json(),
                           "paused": bool(one.is_paused), "message": json.loads(one.message or "{}"),
                           "next": [], "last": None, "waiting": None, "published": 0, "dropped": 0}
    if figures is None:      # made a moment ago, and its owner is being started
        return row
    if figures.next_ms is not None:
        row["next"] = [timetable.in_zone(time_ms, table)
                       for time_ms in timetable.first_times(table, figures.next_ms - 1, count)]
    if figures.last_ms is not None:
        row["last"] = timetable.in_zone(figures.last_ms, table)
    return row | {"waiting": figures.waiting or None, "published": figures.published, "dropped": figures.missed}


def _topic(request: web.Request) -> TopicName:
    """Return the topic that the path names: the scalable one, if there is one of that name.  Raises Refusal."""
    topic = topic_of(request)
    is_its_name = topic.partition < 0 and catalogue_of(request).topics.is_shadowed(topic)
    return topic.scalable if is_its_name else topic


def _found(request: web.Request) -> StoredSchedule:
    name = part_of(request, "schedule")
    one = catalogue_of(request).schedules.find(_topic(request), name)
    if one is None:
        raise web.HTTPNotFound(text=f"{_topic(request)} has no schedule {name}")
    return one


# -- changes

@routes.put(_ONE, right=rights.PRODUCES)
async def put(request: web.Request) -> web.Response:
    """Make a schedule, or change it; with ?dry-run=true only check it, and answer with its next times."""
    topic, name = _topic(request), part_of(request, "schedule")
    topics = catalogue_of(request).topics
    if not topics.exists(topic) and not topics.partition_count(topic):
        raise Refusal(api.TopicNotFound, f"Topic {topic} not found")
    try:
        wanted = read(await body_of(request))
        made = Made(request.app[TOPICS], topic, name, wanted)
    except (WrongTiming, outgoing.Wrong) as error:
        raise web.HTTPBadRequest(text=str(error)) from None
    if is_set(request, "dry-run"):
        times = timetable.first_times(wanted.table, _now_ms(), _NEXT)
        return web.json_response({"topic": str(topic), "name": name, "partition": str(made.partition)}
                                 | wanted.table.as_json() | {"paused": wanted.is_paused, "message": wanted.message,
                                 "next": [timetable.in_zone(time_ms, wanted.table) for time_ms in times]})
    await keep(request.app[OWNERS], catalogue_of(request), made)
    [row] = await shown(request.app[OWNERS], [_found(request)], _NEXT)
    return web.json_response(row)


@routes.delete(_ONE, right=rights.PRODUCES)
async def delete(request: web.Request) -> web.Response:
    """Delete a schedule; its messages stay."""
    one, catalogue = _found(request), catalogue_of(request)
    catalogue.schedules.delete(one.id)
    catalogue.commit()
    await request.app[OWNERS].tell_all(TakeOverSchedules())
    return done()


@routes.post(_ONE + "/pause", right=rights.PRODUCES)
async def pause(request: web.Request) -> web.Response:
    """Pause a schedule: times that pass meanwhile are not planned."""
    return await _pause(request, is_paused=True)


@routes.post(_ONE + "/resume", right=rights.PRODUCES)
async def resume(request: web.Request) -> web.Response:
    """Let a paused schedule go on from now."""
    return await _pause(request, is_paused=False)


async def _pause(request: web.Request, *, is_paused: bool) -> web.Response:
    one, catalogue = _found(request), catalogue_of(request)
    if bool(one.is_paused) != is_paused:
        catalogue.schedules.pause(one.id, is_paused=is_paused, now_ms=_now_ms())
        catalogue.commit()
    await request.app[OWNERS].tell_all(TakeOverSchedules())
    return done()


@routes.post(_ONE + "/run", right=rights.PRODUCES)
async def run(request: web.Request) -> web.Response:
    """Publish a schedule's message now, beside its planned times; the answer comes when it is on disk."""
    one = _found(request)
    ran = await request.app[OWNERS].ask(RunSchedule(names.parse(one.partition), id=one.id))
    scheduled_for = timetable.in_zone(ran.scheduled_ms, timetable.of_text(one.timing))
    return web.json_response({"id": None if ran.ledger_id < 0 else f"{ran.ledger_id}:{ran.entry_id}",
                              "topic": one.partition, "scheduled_for": scheduled_for})


# -- bodies

def read(body: Any) -> Wanted:
    """Return the schedule that a JSON value describes.  Raises WrongTiming, outgoing.Wrong."""
    if not isinstance(body, dict):
        raise WrongTiming("the body: expected an object with cron or every, and message")
    if unknown := sorted(body.keys() - set(_FIELDS)):
        raise WrongTiming(f"{unknown[0][:NAME_MAX]}: unknown; there are {', '.join(_FIELDS)}")
    every, is_paused, message = body.get("every"), body.get("paused", False), body.get("message")
    if isinstance(every, str):
        try:
            body = body | {"every": units.millis(every)}
        except ValueError as error:
            raise WrongTiming(f"every: {error}") from None
    if not isinstance(is_paused, bool):
        raise WrongTiming("paused: expected true or false")
    if not isinstance(message, dict):
        raise outgoing.Wrong("message: expected an object with payload, payloadBase64 or value")
    if unsuitable := [name for name in _TIMES if message.get(name) is not None]:
        raise outgoing.Wrong(f"message.{unsuitable[0]}: it would be the same time in each message")
    properties = message.get("properties")
    if isinstance(properties, dict) and (own := [name for name in _OWN if name in properties]):
        raise outgoing.Wrong(f"message.properties.{own[0]}: the schedule sets it")
    return Wanted(timetable.read(body), is_paused, message)


class Made:
    """A schedule that can be kept: checked against its topic, with its message encoded."""

    def __init__(self, topics: Topics, topic: TopicName, name: str, wanted: Wanted):
        """Raises outgoing.Wrong, WrongTiming, Refusal, 404, 409, 412."""
        self.topic, self.name, self.wanted = topic, name, wanted
        self._topics, self._catalogue = topics, topics.catalogue
        self._version: int | None = None      # of the schema that has encoded the message
        if _NAME.fullmatch(name) is None:
            raise WrongTiming(f"the name: expected up to {NAME_MAX} letters, digits, dots, hyphens and underscores, of "
                              "which the first is a letter or a digit")
        self._check_topic()
        self._check_bounds()
        message = self._message()
        self.payload = message.payload
        self.metadata = self._metadata(message)
        self._key = message.about.key or name

    def __repr__(self) -> str:
        return f"<Made schedule {self.name} of {self.topic}>"

    @property
    def partition(self) -> TopicName:
        """The partition or segment that gets the messages now: the one to which clients publish the key."""
        layout = self._catalogue.scalable_topics.layout(self.topic)
        if layout is not None:
            return names.parse(layout.takes(self._key).topic)
        parts = self._catalogue.topics.parts(self.topic)
        return parts[key_hashing.murmur3(self._key) % len(parts)]

    def _check_topic(self) -> None:
        topics, topic = self._catalogue.topics, self.topic
        if topic.partition >= 0 and (topics.partition_count(topic.base) or topics.is_shadowed(topic)):
            raise web.HTTPPreconditionFailed(text=f"A schedule is of the whole topic: name {topic.base}")

    def _check_bounds(self) -> None:
        schedules = self._catalogue.schedules
        if schedules.find(self.topic, self.name) is not None:
            return
        if schedules.count(self.topic) >= TOPIC_MAX:
            raise web.HTTPConflict(text=f"{self.topic} has {TOPIC_MAX} schedules, as many as it may have")
        if schedules.count_in(self.topic.namespace) >= NAMESPACE_MAX:
            raise web.HTTPConflict(text=f"{self.topic.namespace} has {NAMESPACE_MAX} schedules, as many as it may have")

    def _message(self) -> Outgoing:
        """Return the message, encoded by the topic's newest schema if it is given as a value."""
        policies = policies_of(self._catalogue, self.topic, self._topics.storage)
        encoder = None
        if self.wanted.message.get("value") is not None:
            encoder = self._encoder()
        else:
            registry.check_missing(self._catalogue, self.topic, policies)
        try:
            message = outgoing.of_json(json.dumps(self.wanted.message).encode(), About(), encoder)
        except outgoing.Wrong as error:
            raise outgoing.Wrong(f"message.{error}") from None
        largest = min(filter(None, (self._topics.max_message_size, policies.max_message_size)))
        if len(message.payload) > largest:
            raise outgoing.Wrong(f"message: its payload has {len(message.payload)} bytes, and the topic takes "
                                 f"{largest}")
        return message

    def _encoder(self) -> outgoing.Encoder:
        from geminga.workers.messages.schema_encoding import NotEncodable, SchemaEncoder  # slow to import
        kept = registry.find(self._catalogue, self.topic)
        if kept is None:
            raise outgoing.Wrong("message.value: the topic has no schema: give a payload")
        try:
            encoder = SchemaEncoder(kept.definition)
        except (NotEncodable, InvalidSchema) as error:
            raise outgoing.Wrong(f"message.value: {error}") from None
        self._version = kept.version
        return encoder

    def _metadata(self, message: Outgoing) -> bytes:
        metadata = api.MessageMetadata()
        describe(metadata, message.about)
        if self._version is not None:
            metadata.schema_version = registry.version_bytes(self._version)
        return metadata.SerializePartialToString()


async def keep(owners: Owners, catalogue: Catalogue, made: Made) -> None:
    """Keep a schedule, which is in force behind that.

    A schedule that moves to another partition stops first: its former owner could otherwise publish a time that the
    new one publishes too.  Raises Refusal, StorageFull, NotDurable.
    """
    await owners.ask(PrepareForSchedule(made.partition))
    before = catalogue.schedules.find(made.topic, made.name)
    if before is not None and before.partition != str(made.partition) and not before.is_paused:
        catalogue.schedules.pause(before.id, is_paused=True, now_ms=_now_ms())
        catalogue.commit()
        await owners.tell_all(TakeOverSchedules())
    store(catalogue, made)
    catalogue.commit()
    await owners.tell_all(TakeOverSchedules())


def store(catalogue: Catalogue, made: Made) -> None:
    """Write a schedule into the catalogue.  Raises StorageFull, NotDurable."""
    with catalogue.topics.transaction():      # no segment is sealed meanwhile
        catalogue.schedules.set(
            made.topic, made.name, partition=made.partition, is_paused=made.wanted.is_paused,
            timing=json.dumps(made.wanted.table.as_json()), message=json.dumps(made.wanted.message),
            metadata=made.metadata, payload=made.payload, now_ms=_now_ms())


def definition(one: StoredSchedule) -> dict[str, Any]:
    """Return a schedule as `read` takes it."""
    return timetable.of_text(one.timing).as_json() | {
        "paused": bool(one.is_paused), "message": json.loads(one.message)}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

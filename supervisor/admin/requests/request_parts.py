"""Helpers for all routes: the catalogue, the parts of a request, the topics that it names, and questions about them."""
import asyncio
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote_plus

from aiohttp import web

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.storage.admin.questions import TopicQuestion
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.runtime.control import Control
from geminga.storage.runtime.counters import Counters
from geminga.supervisor.admin.requests.owners import OWNERS
from geminga.supervisor.configuration.config import Config
from geminga.workers.addresses import Addresses
from geminga.workers.directory.directory import Directory
from geminga.workers.ports.connections import Connections

Answer = TypeVar("Answer")
Asking = Callable[[TopicName], TopicQuestion[Answer]]      # makes a question about the topic
# The pattern lets the last part have braces, which aiohttp refuses without one.
PATH = "/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic:[^/]+}"
ANY = PATH.replace("persistent}", "persistent|topic}")      # of a scalable topic too
TOPIC = "/admin/v2" + PATH
SCALABLE = "/admin/v2/scalable/{tenant}/{namespace}/{topic:[^/]+}"
_OF_SCALABLE = "/admin/v2/scalable/"
BUNDLE = "0x00000000_0xffffffff"      # the only one: it covers all topics
_ENCODED_TWICE = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}"
_BODY_SECONDS = 30
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_PHRASE_MAX, _NO_PHRASE = 1_024, re.compile(r"[^ -~]")      # characters of a status line's phrase; those it cannot have
_STRAY_PERCENT = re.compile(r"%(?![0-9a-fA-F]{2})")
_AT_ONCE = 100               # questions that are under way together


class Topics:
    """The catalogue, the topic directory and the settings that HTTP routes need."""

    def __init__(self, catalogue: Catalogue, addresses: Addresses, config: Config, counters: Counters):
        """Begin with a configuration.  counters: those of the admin process."""
        self.catalogue, self.counters = catalogue, counters
        self.is_map_told = False      # whether the log has said that lookups come through a port map
        self.directory = Directory(catalogue, addresses, config.storage, config.owners)
        self.configure(config, addresses)

    def __repr__(self) -> str:
        return f"<Topics cluster={self.cluster_name!r} broker={self.addresses.broker}>"

    def configure(self, config: Config, addresses: Addresses) -> None:
        """Apply a new configuration."""
        self.config, self.addresses = config, addresses
        self.cluster_name, self.max_message_size = config.cluster_name, config.worker.max_message_size
        self.storage = self.catalogue.options.applied_to(config.storage)
        self.directory.configure(addresses, config.storage)


TOPICS = web.AppKey("topics", Topics)


class ReadElsewhere(NamedTuple):
    """The parts of a request that another process reads, as JSON Schema."""

    query: dict[str, dict[str, Any]]           # name -> schema
    body: dict[str, Any] | None = None


READ_ELSEWHERE = web.AppKey("read_elsewhere", dict)      # handler -> ReadElsewhere
COUNTERS = web.AppKey("counters", dict)      # (role, index) -> Counters of that process
CONNECTIONS = web.AppKey("connections", list[Connections])      # of each worker
CONTROL = web.AppKey("control", Control)      # the link to the supervisor process
INSIDE = web.AppKey("inside", Path)      # the socket on which this host's clients reach the broker


# -- what a request says

def part_of(request: web.Request, name: str) -> str:
    """Return a part of the request's path, decoded once, with + read as a space, as Pulsar's server does.

    Raises 400 if the part is not UTF-8.
    """
    resource = request.match_info.route.resource
    assert resource is not None      # every route here has a resource
    index = resource.canonical.split("/").index(f"{{{name}}}")
    try:
        return unquote_plus(request.rel_url.raw_path.split("/")[index], errors="strict")
    except UnicodeDecodeError:
        raise web.HTTPBadRequest(text=f"The path is not UTF-8 where it names the {name}") from None


def subscription_of(request: web.Request) -> str:
    """Return the subscription that the path names.  Raises 400 if it is not UTF-8.

    Below a topic's /subscription/ Pulsar decodes the name twice, because its own tools encode the name twice. A name
    that cannot be decoded again, such as 5%, is taken as it is.
    """
    name = part_of(request, "subscription")
    resource = request.match_info.route.resource
    if resource is None or not resource.canonical.startswith(_ENCODED_TWICE):
        return name
    try:
        return name if _STRAY_PERCENT.search(name) else unquote_plus(name, errors="strict")
    except UnicodeDecodeError:
        return name


def topic_of(request: web.Request) -> TopicName:
    """Return the topic that the path names.  Raises Refusal."""
    return catalogue_of(request).topics.named(topic_text(request))


def topic_text(request: web.Request) -> str:
    """Return the complete name that the path has for a topic, which may be one that no topic can have."""
    domain = names.SCALABLE if _is_about_scalable(request) else part_of(request, "domain")
    return "{}://{}/{}/{}".format(domain, *(part_of(request, name) for name in ("tenant", "namespace", "topic")))


def names_topic(request: web.Request) -> bool:
    """Whether the path has the complete name of a topic."""
    parts = set(request.match_info)
    return {"tenant", "namespace", "topic"} <= parts and ("domain" in parts or _is_about_scalable(request))


def _is_about_scalable(request: web.Request) -> bool:
    resource = request.match_info.route.resource
    return resource is not None and resource.canonical.startswith(_OF_SCALABLE)


def schema_topic_of(request: web.Request) -> TopicName:
    """Return the topic in a path that has no domain: the scalable one, if there is one of that name.

    The non-persistent topic is returned only if it has schemas and the persistent one has none.
    """
    catalogue = catalogue_of(request)
    kept, live = (
        catalogue.topics.named(
            "{}://{}/{}/{}".format(domain, *(part_of(request, name) for name in ("tenant", "namespace", "topic")))
        )
        for domain in names.DOMAINS
    )
    if catalogue.topics.exists(kept.scalable):
        return kept.scalable
    return live if catalogue.schemas.versions(live.base) and not catalogue.schemas.versions(kept.base) else kept


def namespace_of(request: web.Request) -> str:
    """Return the namespace that the path names.  Raises 404 if it does not exist, Refusal if none can have its name."""
    tenant = part_of(request, "tenant")
    name = names.parse_namespace(f"{tenant}/{part_of(request, 'namespace')}")
    if not catalogue_of(request).tenants.exists(tenant):
        raise web.HTTPNotFound(text="Tenant does not exist")
    if not catalogue_of(request).namespaces.exists(name):
        raise web.HTTPNotFound(text="Namespace does not exist")
    return name


def catalogue_of(request: web.Request) -> Catalogue:
    """Return the catalogue of this process."""
    return request.app[TOPICS].catalogue


async def body_of(request: web.Request) -> Any:
    """Return the request's JSON body, None if it is empty.  Raises 400, 408, 413."""
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            data = await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"The body has not come within {_BODY_SECONDS} s") from None
    except (web.RequestPayloadError, ConnectionError):
        raise web.HTTPBadRequest(text="The body ends early, or is not encoded as its headers say") from None
    try:
        body = json.loads(data, parse_constant=_no_number) if data.strip() else None
        if _SURROGATE.search(data):      # half a character can be neither stored nor answered
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise web.HTTPBadRequest(text="The body is not JSON") from None
    return body


def _no_number(text: str) -> None:
    """Refuse NaN and Infinity in a body, which JSON does not have."""
    raise ValueError(text)


async def properties_of(request: web.Request) -> dict[str, str]:
    """Return the request's body as a map of texts.  Raises 400."""
    return as_properties(await body_of(request))


def as_properties(sent: Any) -> dict[str, str]:
    """Return a value of a JSON body as a map of texts; numbers become texts, None becomes {}.  Raises 400."""
    if sent is None:
        return {}
    if not isinstance(sent, dict) or not all(isinstance(value, str | int | float) for value in sent.values()):
        raise web.HTTPBadRequest(text="Properties are an object of texts")
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in sent.items()}


def keep_properties(request: web.Request, scope: str, properties: dict[str, str]) -> web.Response:
    """Store all properties of a namespace or topic, and return the answer 204."""
    catalogue = catalogue_of(request)
    catalogue.properties.set(scope, properties)
    catalogue.commit()
    return done()


def is_set(request: web.Request, name: str, *, default: bool = False) -> bool:
    """Whether the request's query has NAME=true for this name.  Raises 400 if the value is neither true nor false.

    Pulsar takes every other value for false.  A misspelt `dry-run` would carry the change out.
    """
    value = request.query.get(name, str(default)).lower()
    if value not in ("true", "false"):
        raise web.HTTPBadRequest(text=f"{name} is true or false")
    return value == "true"


def number_of(request: web.Request, text: str, what: str, last: int = (1 << 63) - 1) -> int:
    """Return a text as a whole number from 0 to `last`.  what: name of the number in an error.  Raises 400."""
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= last):
        raise web.HTTPBadRequest(text=f"{what} is a whole number of 0 to {last}")
    return int(text)


def time_of(request: web.Request, text: str) -> int:
    """Return a text as a time in ms; 0 for times before 1970, which Pulsar's tools send when they go back 60 years."""
    time_ms = number_of(request, text.removeprefix("-"), "The time")
    return 0 if text.startswith("-") else time_ms


def status(code: int, text: str) -> web.HTTPException:
    """Return an exception that makes aiohttp answer with this status and text."""
    class _Other(web.HTTPClientError):
        status_code = code
    return _Other(text=text)


def error_answer(code: int, text: str, headers: Iterable[tuple[str, str]] = (), *,
                 has_phrase: bool = True) -> web.Response:
    """Return an error as Pulsar's REST answers it: {"reason": text}, and the text as the status line's phrase too.

    Programs on urllib show nothing but the phrase.
    """
    phrase = _NO_PHRASE.sub("?", text[:_PHRASE_MAX]) if has_phrase and text else None
    return web.json_response({"reason": text}, status=code, headers=headers, reason=phrase)


def done() -> web.Response:
    """Return the answer 204 to a change that succeeded."""
    return web.Response(status=204)


# -- which topics

def parts_of(request: web.Request) -> list[TopicName]:
    """Return the request's topic, or all its partitions or segments if it has any."""
    return catalogue_of(request).topics.parts(topic_of(request))


def whole_of(request: web.Request) -> TopicName:
    """Return the request's topic.  Raises 412 for a partition."""
    topic = topic_of(request)
    # Older versions created topics of such names with partitions.
    if topic.partition >= 0 and not catalogue_of(request).topics.partition_count(topic):
        raise web.HTTPPreconditionFailed(text="Partitioned Topic Name should not contain '-partition-'")
    return topic


def single_of(request: web.Request, refused: str = "") -> TopicName:
    """Return the request's topic, which must be a topic without partitions or one partition.

    Raises Refusal for a partitioned topic, or 405 with the text `refused` if that is not empty.
    """
    topic = topic_of(request)
    if catalogue_of(request).topics.partition_count(topic):
        if refused:
            raise not_allowed(request, refused)
        raise Refusal(api.TopicNotFound, f"Topic {topic} not found")
    return topic


def not_allowed(request: web.Request, text: str) -> web.HTTPException:
    """Return an exception that answers 405 with a text."""
    return web.HTTPMethodNotAllowed(request.method, [], text=text)


def existing_of(request: web.Request) -> TopicName:
    """Return the topic that the path names, which must exist.  Raises Refusal."""
    topic = topic_of(request)
    if not catalogue_of(request).topics.exists(topic) and not catalogue_of(request).topics.partition_count(topic):
        raise Refusal(api.TopicNotFound, f"Topic {topic} not found")
    return topic


async def ask_each(request: web.Request, topics: Iterable[TopicName], about: Asking[Answer]) -> list[Answer]:
    """Ask the owner of each topic, and return the answers in the order of the topics.

    about: makes the question about a topic. Raises the first Refusal.
    """
    turns = asyncio.Semaphore(_AT_ONCE)

    async def ask(topic: TopicName) -> Answer:
        async with turns:
            return await request.app[OWNERS].ask(about(topic))

    return await asyncio.gather(*map(ask, topics))


async def ask_usable(
    request: web.Request, topics: Iterable[TopicName], about: Asking[Answer], *answered: int,
) -> list[Answer | Refusal]:
    """Ask the owner of each topic, and return the answers in the order of the topics.

    A topic whose files cannot be used has its Refusal as the answer.  about: as `ask_each` has it.  answered: codes of
    other errors that are answers too. Raises the first other Refusal.
    """
    turns = asyncio.Semaphore(_AT_ONCE)

    async def ask(topic: TopicName) -> Answer | Refusal:
        async with turns:
            try:
                return await request.app[OWNERS].ask(about(topic))
            except Refusal as refusal:
                if refusal.code not in (api.PersistenceError, *answered):
                    raise
                return refusal

    return await asyncio.gather(*map(ask, topics))


def usable(answers: Iterable[Answer | Refusal]) -> list[Answer]:
    """Return the answers of `ask_usable` without refusals.  Raises the first Refusal if there are no others."""
    answers = list(answers)
    answered = [one for one in answers if not isinstance(one, Refusal)]
    if answers and not answered:
        raise next(one for one in answers if isinstance(one, Refusal))
    return answered


async def ask_holders(request: web.Request, topics: Iterable[TopicName], about: Asking[Answer]) -> list[Answer]:
    """Ask the owner of each topic about a subscription; return the answers for the topics that have it, in order.

    about: makes the question about a topic. Raises the first other Refusal.
    """
    turns = asyncio.Semaphore(_AT_ONCE)

    async def ask(topic: TopicName) -> list[Answer]:
        async with turns:
            try:
                return [await request.app[OWNERS].ask(about(topic))]
            except Refusal as refusal:
                if refusal.code != api.SubscriptionNotFound:
                    raise
                return []

    return [answer for answers in await asyncio.gather(*map(ask, topics)) for answer in answers]


async def ask_parts(request: web.Request, about: Asking[Answer]) -> list[Answer]:
    """Ask about the request's topic, or about each of its partitions, and return the answers in order.

    Raises Refusal.
    """
    return await ask_each(request, parts_of(request), about)


async def ask_single(request: web.Request, refused: str, about: Asking[Answer]) -> Answer:
    """Ask the owner about the request's topic, and return the answer.

    The topic must be a topic without partitions, or one partition. Raises Refusal; for a partitioned topic 405 with the
    text `refused`, or 404 if that is empty.
    """
    return await request.app[OWNERS].ask(about(single_of(request, refused)))

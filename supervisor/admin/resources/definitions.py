"""Export and import of definitions: everything but messages, as one JSON object.

    {"version": 1,
     "configuration": {name: text}                    settings changed while the broker ran, by Pulsar's names
     "clusters": {name: {"data", "peers", "failureDomains"}}
     "tenants": {name: {"adminRoles", "allowedClusters"}}
     "namespaces": {tenant/namespace: {"policies", "properties"}}
     "topics": {topic: {"partitions" or "segments", "policies", "properties", "schemas",
                        "subscriptions": {name: {"properties", "replicated"}},
                        "schedules": {name: as schedules.py has it}}}
     "grants": {topic or partition that was not created: {"permissions"}}}

Policies are named as in storage/catalogue/policy_table.py, and include grants. An import sets each member that it
names. Schemas, subscriptions and partitions are only added, and none is removed. Members that the import does not name
stay as they are.
"""
import asyncio
import base64
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from aiohttp import web

from geminga.proto import names
from geminga.proto.errors import Refusal
from geminga.proto.json_object import JsonObject
from geminga.proto.layouts import SEGMENTS_MAX
from geminga.storage.admin.questions import ApplyOptions, ApplyPolicies, Properties, Replicated, Subscribe
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.policies import CLUSTERS
from geminga.storage.catalogue.policy_table import TABLE
from geminga.storage.catalogue.policy_values import Invalid
from geminga.storage.catalogue.stored_policies import ADMIN_ROLES, PERMISSIONS, SUBSCRIPTION_PERMISSIONS
from geminga.storage.ledgers.managed_ledger import LATEST
from geminga.storage.recurring.timetable import WrongTiming
from geminga.storage.schemas import registry
from geminga.supervisor.admin.requests import rights
from geminga.supervisor.admin.requests.owners import OWNERS
from geminga.supervisor.admin.requests.request_parts import TOPICS, as_properties, body_of, catalogue_of, is_set
from geminga.supervisor.admin.resources import cluster_records, schedules
from geminga.supervisor.admin.resources.brokers import TEXTS, keep_text, read_text
from geminga.supervisor.admin.resources.cluster_lists import PEERS, Choice, choice_of
from geminga.supervisor.admin.resources.clusters import DOMAINS, all_of, sees_secrets
from geminga.supervisor.admin.resources.namespaces import refuse_too_many
from geminga.supervisor.admin.resources.policies import read_value, route_of
from geminga.workers.identity.authorization import GRANTED
from geminga.workers.messages import outgoing

routes = rights.Routes()
VERSION = 1
_CLUSTERS = "allowedClusters"
_OF_CLUSTERS = {"data": CLUSTERS, "peers": PEERS, "failureDomains": DOMAINS}
_SECTIONS = "version", "configuration", "clusters", "tenants", "namespaces", "topics", "grants"
_OF_TOPICS = "partitions", "policies", "properties", "schemas", "subscriptions", "schedules"
_BODY_MAX = 256 << 20
_AT_ONCE = 50                # changes in one transaction


# -- what there is

def exported(catalogue: Catalogue, *, with_secrets: bool) -> JsonObject:
    """Return all definitions.  with_secrets: whether credentials of clusters are among them, else they are hidden."""
    topics = [topic for topic in catalogue.topics.all_base_names()
                  if not topic.startswith("non-persistent:") or catalogue.topics.partition_count(names.parse(topic))]
    clusters: dict[str, JsonObject] = {}
    for member, scope in _OF_CLUSTERS.items():
        for name, value in catalogue.policies.of(scope).items():
            if member == "data" and not with_secrets:
                value = cluster_records.hidden(value)
            clusters.setdefault(name, {})[member] = value
    namespaces = [namespace for tenant in catalogue.tenants.names()
                      for namespace in catalogue.namespaces.of_tenant(tenant)]
    return {
        "version": VERSION,
        "configuration": catalogue.policies.of(TEXTS),
        "clusters": clusters,
        "tenants": {tenant: catalogue.policies.of(tenant) for tenant in catalogue.tenants.names()},
        "namespaces": {
            name: {"policies": catalogue.policies.of(name), "properties": catalogue.properties.of(name)}
            for name in namespaces
        },
        "topics": {topic: _topic(catalogue, topic) for topic in topics},
        "grants": {
            scope: {PERMISSIONS: value}
            for namespace in namespaces
            for scope, value in catalogue.policies.of_topics(namespace, PERMISSIONS).items()
            if scope not in topics
        },
    }


def _topic(catalogue: Catalogue, text: str) -> JsonObject:
    topic, partitions = names.parse(text), catalogue.topics.partition_count(names.parse(text))
    subscriptions: dict[str, JsonObject] = {}
    parts = catalogue.topics.parts(topic)
    for part in parts:
        if (stored := catalogue.partitions.find(part)) is None:
            continue
        properties = catalogue.properties.of_subscriptions(stored[0])
        replicated = catalogue.subscriptions.replicated(stored[0])
        for name, subscription_id in catalogue.subscriptions.ids(stored[0]).items():
            if names.remote_of(name) is not None:      # the policy of the other broker makes its own
                continue
            subscriptions.setdefault(name, {"properties": properties.get(subscription_id, {}),
                                           "replicated": subscription_id in replicated})
    layout = catalogue.scalable_topics.layout(topic) if topic.is_scalable else None
    return {
        **({"partitions": partitions} if layout is None else {"segments": len(layout.active)}),
        "policies": catalogue.policies.of(text),
        "properties": catalogue.properties.of(text),
        "schemas": [_schema(catalogue, topic, version) for version, _, _ in catalogue.schemas.versions(topic)],
        "subscriptions": dict(sorted(subscriptions.items())),
        "schedules": {one.name: schedules.definition(one) for one in catalogue.schedules.of(topic)},
    }


def _schema(catalogue: Catalogue, topic: names.TopicName, version: int) -> JsonObject:
    stored = catalogue.schemas.get(topic, version)
    assert stored is not None      # its version was listed a moment ago
    kind, _, properties, data = stored
    if kind is None:
        return {"version": version, "type": None}      # versions before this one were deleted
    said = {"version": version, "type": registry.TYPES[kind], "properties": properties}
    try:
        return said | {"schema": data.decode()}
    except UnicodeDecodeError:
        return said | {"base64": base64.b64encode(data).decode()}


# -- what there is to do

class Change(NamedTuple):
    """One change that an import makes: its description, and the function that makes it."""

    text: str
    # changes the catalogue; a coroutine that it returns is awaited after the commit
    make: Callable[[], Any]
    scope: str = ""                          # scope whose policies owners have to apply again


class _Import:
    """An import of definitions: the wanted definitions, compared with those in the catalogue."""

    def __init__(self, request: web.Request, wanted: Any):
        self._request, self._catalogue = request, catalogue_of(request)
        self._wanted = _object(wanted, "the definitions", _SECTIONS)
        if self._wanted.get("version") != VERSION:
            raise web.HTTPBadRequest(text=f"version: expected {VERSION}, found {self._wanted.get('version')!r}")
        self._there = exported(self._catalogue, with_secrets=True)

    def changes(self) -> list[Change]:
        """Return the changes in the order in which they can be made.  Raises 400 before any is made."""
        changes: list[Change] = []
        for section, of in (
            ("configuration", self._configuration),
            ("clusters", self._cluster),
            ("tenants", self._tenant),
            ("namespaces", self._namespace),
            ("topics", self._topic),
            ("grants", self._grants),
        ):
            for name, value in _object(self._wanted.get(section, {}), section).items():
                try:
                    changes += of(name, value, f"{section}/{name}")
                except (Refusal, Invalid) as error:
                    raise web.HTTPBadRequest(text=f"{section}/{name}: {getattr(error, 'message', error)}") from None
        refuse_too_many(self._request, set(self._wanted.get("tenants", {})), set(self._wanted.get("namespaces", {})))
        return changes

    def _configuration(self, name: str, text: Any, where: str) -> Iterator[Change]:
        if self._there["configuration"].get(name) != text:
            if not isinstance(text, str):
                raise Invalid("expected a text")
            value = read_text(name, text)

            def make() -> None:
                keep_text(self._catalogue, name, text, value)
            yield Change(f"{where}: {text}", make)

    def _cluster(self, name: str, value: Any, where: str) -> Iterator[Change]:
        names.parse_namespace(f"{name}/x")
        for member, kept in _object(value, where, tuple(_OF_CLUSTERS)).items():
            if member == "peers":
                _texts(kept, f"{where}/peers")
            elif member == "failureDomains":
                for domain, one in _object(kept, f"{where}/failureDomains").items():
                    _texts(_object(one, f"{where}/failureDomains/{domain}", ("brokers",)).get("brokers"), "brokers")
            else:
                kept = self._record(name, _object(kept, f"{where}/data"), f"{where}/data")
            present = self._there["clusters"].get(name, {}).get(member)
            yield from self._policy(_OF_CLUSTERS[member], name, kept, present, f"{where}/{member}")

    def _record(self, name: str, sent: JsonObject, where: str) -> JsonObject:
        """Return the record of a cluster as it is stored.  Raises Invalid, 400."""
        _object(sent, where, cluster_records.FIELDS)
        record = cluster_records.read(sent, self._there["clusters"].get(name, {}).get("data", {}))
        topics = self._request.app[TOPICS]
        if name != topics.cluster_name:
            cluster_records.check_remote(record, topics.addresses)
        return record

    def _tenant(self, name: str, value: Any, where: str) -> Iterator[Change]:
        names.parse_namespace(f"{name}/x")
        if name not in self._there["tenants"]:
            yield Change(f"{where}: made", lambda: self._catalogue.tenants.create(name))
        for member, roles in _object(value, where, (ADMIN_ROLES, _CLUSTERS)).items():
            _texts(roles, member)
            known = {*all_of(self._request), *self._wanted.get("clusters", {})}
            if member == _CLUSTERS and (unknown := set(roles) - known):
                raise Invalid(f"{member}: there is no cluster {min(unknown)}, nor is there to be one")
            yield from self._policy(name, member, roles, self._there["tenants"].get(name, {}).get(member),
                                    f"{where}/{member}")

    def _namespace(self, name: str, value: Any, where: str) -> Iterator[Change]:
        names.parse_namespace(name)
        tenant = name.partition("/")[0]
        if tenant not in self._there["tenants"] and tenant not in self._wanted.get("tenants", {}):
            raise Invalid(f"there is no tenant {tenant}, nor is there to be one")
        _object(value, where, ("policies", "properties"))
        if name not in self._there["namespaces"]:
            yield Change(f"{where}: made", lambda: self._catalogue.namespaces.create(name))
        yield from self._scope(name, value, self._there["namespaces"].get(name, {}), where, is_topic=False)

    def _topic(self, name: str, value: Any, where: str) -> Iterator[Change]:
        topic = names.parse(name)
        if str(topic) != name or topic.partition >= 0:
            raise Invalid("expected the complete name of a topic, and not of a partition")
        self._in_a_namespace(topic)
        if topic.is_segment:
            raise Invalid("expected a topic, and not its segment")
        if topic.is_scalable:
            yield from self._scalable_topic(topic, value, where)
            return
        _object(value, where, _OF_TOPICS)
        there, partitions = self._there["topics"].get(name), value.get("partitions", 0)
        if there is None:
            names.refuse_blank(topic)
        if isinstance(partitions, bool) or not isinstance(partitions, int) or partitions < 0:
            raise Invalid("partitions: expected a number")
        before = there["partitions"] if there else 0
        if partitions and (taken := self._catalogue.topics.taken(topic, before, partitions)):
            raise Invalid(f"partitions: {taken[0]} exists as a topic of its own")
        if there is None:
            yield Change(f"{where}: made, with {partitions} partitions" if partitions else f"{where}: made",
                         lambda: self._catalogue.topics.create(topic, partitions))
        elif bool(partitions) != bool(there["partitions"]) or partitions < there["partitions"]:
            raise Invalid(f"partitions: there are {there['partitions']}, which cannot become {partitions}")
        elif partitions > there["partitions"]:
            yield Change(f"{where}: {partitions} partitions instead of {there['partitions']}",
                         lambda: self._catalogue.topics.set_partition_count(topic, partitions))
        yield from self._in_topic(topic, partitions, value, there, where)

    def _scalable_topic(self, topic: names.TopicName, value: Any, where: str) -> Iterator[Change]:
        """Yield the changes of a scalable topic; one that exists keeps its segments."""
        _object(value, where, ("segments", *_OF_TOPICS[1:]))
        there, segments = self._there["topics"].get(str(topic)), value.get("segments", 1)
        if isinstance(segments, bool) or not isinstance(segments, int) or not 0 < segments <= SEGMENTS_MAX:
            raise Invalid(f"segments: expected a number from 1 to {SEGMENTS_MAX}")
        if there is None:
            names.refuse_blank(topic)
            names.refuse_reserved(topic)
            yield Change(f"{where}: made, with {segments} segments",
                         lambda: self._catalogue.scalable_topics.create(topic, segments))
        yield from self._in_topic(topic, 0, value, there, where)

    def _in_topic(self, topic: names.TopicName, partitions: int, value: JsonObject, there: JsonObject | None,
                  where: str) -> Iterator[Change]:
        """Yield the changes of a topic's policies, properties, schemas and subscriptions."""
        there = JsonObject(partitions=0, schemas=[], subscriptions={}) | (there or {})
        yield from self._scope(str(topic), value, there, where, is_topic=True)
        yield from self._schemas(topic, value.get("schemas", []), there["schemas"], where)
        for subscription, said in _object(value.get("subscriptions", {}), f"{where}/subscriptions").items():
            yield from self._subscription(str(topic), partitions, subscription, said, there, where)
        for schedule, said in _object(value.get("schedules", {}), f"{where}/schedules").items():
            yield from self._schedule(topic, schedule, said, there.get("schedules", {}).get(schedule), where)

    def _in_a_namespace(self, topic: names.TopicName) -> None:
        if topic.namespace not in {*self._there["namespaces"], *self._wanted.get("namespaces", {})}:
            raise Invalid(f"there is no namespace {topic.namespace}, nor is there to be one")

    def _schemas(self, topic: names.TopicName, wanted: Any, there: list[JsonObject], where: str) -> Iterator[Change]:
        by_version = {one["version"]: one for one in there}
        if not isinstance(wanted, list):
            raise Invalid("schemas: expected a list")
        for one in wanted:
            _object(one, f"{where}/schemas", ("version", "type", "properties", "schema", "base64"))
            version, data = one.get("version"), one.get("schema", "")
            if isinstance(version, bool) or not isinstance(version, int) or version < 0 or not isinstance(data, str):
                raise Invalid("schemas: a version is a number, a schema a text")
            kind = None if one.get("type") is None else registry.kind_of(one["type"])
            raw = base64.b64decode(one["base64"], validate=True) if "base64" in one else data.encode()
            properties = as_properties(one.get("properties"))
            if version in by_version:
                if by_version[version] != one:
                    raise Invalid(f"schemas: version {version} is another one here")
                continue
            if kind is not None:
                registry.validate(registry.Definition(kind, raw, properties))
            yield self._new_schema(topic, version, kind, properties, raw, where)

    def _new_schema(self, topic: names.TopicName, version: int, kind: int | None, properties: JsonObject,
                    data: bytes, where: str) -> Change:
        return Change(f"{where}: version {version} of its schema",
                      lambda: self._catalogue.schemas.add(topic, version, kind, registry.NOT_HASHED, properties, data))

    def _subscription(self, topic: str, partitions: int, name: str, said: Any,
                      there: JsonObject, where: str) -> Iterator[Change]:
        _object(said, f"{where}/subscriptions/{name}", ("properties", "replicated"))
        properties, is_replicated = as_properties(said.get("properties")), said.get("replicated", False)
        if not isinstance(is_replicated, bool):
            raise Invalid(f"subscriptions/{name}: replicated: expected true or false")
        if topic.startswith("non-"):
            raise Invalid(f"subscriptions/{name}: the topic keeps none")
        wanted, present = {"properties": properties, "replicated": is_replicated}, there["subscriptions"].get(name)
        if present == wanted and partitions == there["partitions"]:
            return

        async def make() -> None:
            for part in self._catalogue.topics.parts(names.parse(topic)):
                ask = self._request.app[OWNERS].ask
                subscribe = Subscribe(part, subscription=name, may_create=True, new=True,
                                      position=LATEST, properties=properties)
                if not await ask(subscribe):
                    await ask(Properties(part, subscription=name, properties=properties))
                await ask(Replicated(part, subscription=name, replicated=is_replicated))
        yield Change(f"{where}: subscription {name}" + (" changed" if present else ""), make)

    def _schedule(self, topic: names.TopicName, name: str, said: Any, present: JsonObject | None,
                  where: str) -> Iterator[Change]:
        """Yield the change of a schedule if it differs.  Its message is encoded when the topic has its schemas."""
        if said == present:
            return
        try:
            wanted = schedules.read(said)
        except (WrongTiming, outgoing.Wrong) as error:
            raise Invalid(f"schedules/{name}: {error}") from None

        async def make() -> None:
            try:
                made = schedules.Made(self._request.app[TOPICS], topic, name, wanted)
            except (WrongTiming, outgoing.Wrong) as error:
                raise web.HTTPBadRequest(text=f"{where}/schedules/{name}: {error}") from None
            await schedules.keep(self._request.app[OWNERS], self._catalogue, made)
        yield Change(f"{where}: schedule {name}" + (" changed" if present else ""), make)

    def _grants(self, name: str, value: Any, where: str) -> Iterator[Change]:
        topic = names.parse(name)
        self._in_a_namespace(topic)
        for policy, grants in _object(value, where, (PERMISSIONS,)).items():
            yield from self._policy(str(topic), policy, _rights(policy, grants),
                                    self._there["grants"].get(name, {}).get(PERMISSIONS), f"{where}/{policy}")

    # -- of namespaces and topics

    def _scope(self, scope: str, value: JsonObject, there: JsonObject, where: str, *,
               is_topic: bool) -> Iterator[Change]:
        """Yield changes of the policies and properties of a namespace or topic."""
        if "policies" in value:
            wanted, present = _object(value["policies"], f"{where}/policies"), there.get("policies", {})
            for name in {**present, **wanted}:
                kept = self._read(scope, name, wanted[name], is_topic=is_topic) if name in wanted else None
                yield from self._policy(scope, name, kept, present.get(name), f"{where}/{name}")
        if "properties" in value and (properties := as_properties(value["properties"])) != there.get("properties", {}):
            yield Change(f"{where}: its properties", lambda: self._catalogue.properties.set(scope, properties))

    def _read(self, scope: str, name: str, value: Any, *, is_topic: bool) -> Any:
        if name in (PERMISSIONS, SUBSCRIPTION_PERMISSIONS):
            return _rights(name, value)
        policy = TABLE.get(name)
        route = route_of(name, is_topic=is_topic)
        if policy is None or route is None:
            raise Invalid(f"unknown key {name!r} of policies")
        try:
            return read_value(policy, route, value, self._choice(scope, is_topic=is_topic),
                              names.parse(scope) if is_topic else None)
        except web.HTTPException as error:
            raise Invalid(f"{name}: {error.text}") from None

    def _choice(self, scope: str, *, is_topic: bool) -> Choice:
        """Return the clusters that a list of a namespace or topic may name, after the import."""
        namespace = names.parse(scope).namespace if is_topic else scope
        known = frozenset({*all_of(self._request), *self._wanted.get("clusters", {})})
        made = choice_of(self._catalogue, self._request.app[TOPICS].cluster_name, known, namespace)
        of_tenant = self._wanted.get("tenants", {}).get(made.tenant, {}).get(_CLUSTERS)
        of_namespace = self._wanted.get("namespaces", {}).get(namespace, {}).get("policies", {}).get(_CLUSTERS)
        # A value that is no list of texts is refused where it stands.
        return made._replace(of_tenant=made.of_tenant if of_tenant is None else frozenset(of_tenant),
                             of_namespace=frozenset(one for one in of_namespace if isinstance(one, str))
                             if isinstance(of_namespace, list) else made.of_namespace)

    def _policy(self, scope: str, name: str, wanted: Any, present: Any, where: str) -> Iterator[Change]:
        """Yield the change of one policy if its value differs.  wanted: None removes it."""
        if wanted != present:
            text = f"{where}: {wanted}" if wanted is not None else f"{where}: not set any more"
            yield Change(text, lambda: self._catalogue.policies.set(scope, name, wanted),
                         "" if scope.startswith("/") else scope)


def _object(value: Any, where: str, known: tuple[str, ...] = ()) -> JsonObject:
    """Return the value if it is a JSON object with known members only.  Raises 400."""
    if not isinstance(value, dict):
        raise web.HTTPBadRequest(text=f"{where}: expected an object")
    if known and (unknown := [name for name in value if name not in known]):
        raise web.HTTPBadRequest(text=f"{where}: unknown key {unknown[0]!r}; there are {', '.join(known)}")
    return value


def _texts(value: Any, what: str, allowed: tuple[str, ...] = ()) -> None:
    if not isinstance(value, list) or not all(isinstance(one, str) and (not allowed or one in allowed)
                for one in value):
        raise Invalid(f"{what}: expected a list of {', '.join(allowed) or 'texts'}")


def _rights(name: str, value: Any) -> dict[str, list[str]]:
    if not isinstance(value, dict):
        raise Invalid(f"{name}: expected an object")
    for of, some in value.items():
        _texts(some, f"{name} of {of}", GRANTED if name == PERMISSIONS else ())
    return value


# -- over HTTP

@routes.get("/ops/v1/definitions")
async def told(request: web.Request) -> web.Response:
    """Answer with tenants, namespaces, topics, policies and rights, as a file to restore."""
    return web.json_response(exported(catalogue_of(request), with_secrets=sees_secrets(request)))


@routes.post("/ops/v1/definitions")
async def bring_about(request: web.Request) -> web.Response:
    """Import definitions, and answer {"changes": [text]}; with ?dry-run=true nothing is changed."""
    wanted = await body_of(request.clone(client_max_size=_BODY_MAX))
    changes = _Import(request, wanted).changes()
    if not is_set(request, "dry-run"):
        for at in range(0, len(changes), _AT_ONCE):
            await _make(request, changes[at:at + _AT_ONCE])
    return web.json_response({"changes": [change.text for change in changes]})


async def _make(request: web.Request, changes: list[Change]) -> None:
    """Make changes of an import, commit them, and wait until all owners apply them."""
    catalogue = catalogue_of(request)
    asked = [made for change in changes if (made := change.make()) is not None and asyncio.iscoroutine(made)]
    catalogue.commit()
    request.app[TOPICS].storage = catalogue.options.applied_to(request.app[TOPICS].config.storage)
    owners = request.app[OWNERS]
    if any(change.text.startswith("configuration/") for change in changes):
        await owners.tell_all(ApplyOptions())
    for scope in dict.fromkeys(change.scope for change in changes if change.scope):
        await owners.tell_all(ApplyPolicies(scope=scope))
    for one in asked:
        await one

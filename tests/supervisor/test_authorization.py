"""Authorization over HTTP and over the binary protocol, with a real broker that asks for tokens."""
import contextlib
import json
from pathlib import Path

import pytest
from aiohttp import web

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import TABLE
from geminga.proto.names import POSITION_PROPERTY
from geminga.storage.catalogue import policy_table
from geminga.supervisor.admin import app
from geminga.supervisor.admin.requests import audit
from geminga.supervisor.admin.requests import rights as demanded
from geminga.supervisor.admin.resources import brokers, http_messages, websockets
from geminga.supervisor.main import main

from ..harness import HANG_SECONDS, Broker, eventually
from ..proto.client_frames import T, command, entry_of, frame, message_metadata, send
from .sweep import rights

RIGHTS = Path(__file__).with_name("rights_of_routes.txt")
KEY = b"a secret key of thirty-two bytes"
CONFIG = """
workers = 2
owners = 2
[authentication]
methods = ["token"]
secret_keys = ["{key}"]
anonymous_role = "anonymous"
[authorization]
enabled = true
super_user_roles = ["admin"]
proxy_roles = ["proxy"]
replicator_roles = ["far"]
wildcards = true
"""
ADMINS = {"admin", "tenant-admin"}
PRODUCERS, CONSUMERS = {"namespace-producer", "wild-east"}, {"namespace-consumer"}
MAY = {     # by what a route demands: the roles that may
    demanded.SUPER: {"admin"}, demanded.TENANTS: ADMINS, demanded.TENANT: ADMINS,
    demanded.NAMESPACE: ADMINS, demanded.TOPIC: ADMINS, demanded.TOPIC_POLICY: ADMINS,
    demanded.LISTS: ADMINS | PRODUCERS | CONSUMERS,
    demanded.DISCARDS: ADMINS | CONSUMERS, demanded.PRODUCES: ADMINS | PRODUCERS | {"topic-producer"},
    demanded.CONSUMES: ADMINS | CONSUMERS | {"topic-consumer"},
    demanded.WRITES: ADMINS | PRODUCERS | {"topic-producer"},
    demanded.READS: ADMINS | CONSUMERS | {"topic-consumer"},
    demanded.LOOKS_UP: ADMINS | PRODUCERS | CONSUMERS | {"topic-producer", "topic-consumer"},
    demanded.RESOLVES: ADMINS | PRODUCERS | CONSUMERS | {"topic-producer", "topic-consumer"}}


class Guarded:
    """A broker with authorization, and requests to it by each role."""

    def __init__(self, folder, options=""):
        (folder / "key").write_bytes(KEY)
        (folder / "geminga.toml").write_text(CONFIG.format(key=folder / "key") + options)
        self.process = Broker(folder / "data", "--config", str(folder / "geminga.toml")).start()
        self.people = rights.Broker(self.process.http_url, self.process.service_url, KEY)
        self._connections = []

    def close(self):
        for connection in self._connections:
            connection.close()
        self.process.close()

    def connect(self, role, original="", **about):
        self._connections.append(rights.Connection(self.people, role, original, **about))
        return self._connections[-1]

    def ask(self, *asked):
        status, text = self.people.ask(*asked)
        return status, json.loads(text) if text.startswith(("{", "[")) else text

    def done(self, *asked):
        status, said = self.ask("admin", *asked)
        assert status in (200, 204), said
        return said


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    made = Guarded(tmp_path_factory.mktemp("guarded"))
    yield made
    made.close()


@pytest.fixture
def fresh(tmp_path):
    made = Guarded(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def place(guarded):
    """A namespace with topics and grants, as the sweep makes them; no test changes it."""
    return guarded.people.place(with_parted=True)


# -- the table of routes

def all_routes():
    application = web.Application()
    for part in app.PARTS:
        application.add_routes(part.routes)
    application.add_routes(brokers.LAST)
    application.add_routes(websockets.routes)
    application.add_routes(http_messages.routes)
    return {("GET" if route.method == "HEAD" else route.method, route.resource.canonical)
            for route in application.router.routes()}


def test_every_route_says_what_it_demands():
    """A route that is added needs a row in the table, and no row is left of a route that is gone."""
    assert all_routes() == demanded.DEMANDS.keys()


NAMES = {"-": None} | {name: getattr(demanded, name) for name in (
    "SUPER", "TENANTS", "TENANT", "NAMESPACE", "TOPIC", "TOPIC_POLICY", "LISTS", "DISCARDS", "LOOKS_UP", "PRODUCES",
    "CONSUMES", "WRITES", "READS", "RESOLVES")}


def rights_of_policies():
    """Return {(method, path): demand} for policies: who administers a namespace or topic may read and change them."""
    rights = {}
    for policy in policy_table.TABLE.values():
        for route, place, demand in (
                (policy.namespace, "namespaces/{tenant}/{namespace}", demanded.NAMESPACE),
                (policy.topic, "{domain}/{tenant}/{namespace}/{topic}", demanded.TOPIC_POLICY)):
            if route is not None and not route.kind:
                methods = ("GET", route.path), (route.method, route.path), ("DELETE", route.remove or route.path)
                rights |= {(method, f"/admin/v2/{place}/{path}"): demand
                           for method, path in methods[:2 + route.removable]}
    return rights


def test_every_row_of_the_table_is_as_it_was_decided():
    """The table is written out here, so that a row changes only on purpose; of policies only the exceptions are."""
    assert NAMES == {
        "SUPER": ("", "administer", 401, False, False), "TENANTS": ("tenant", "administer", 401, True, False),
        "TENANT": ("tenant", "administer", 401, False, False),
        "NAMESPACE": ("namespace", "administer", 403, False, False),
        "TOPIC": ("topic", "administer", 401, False, False),
        "TOPIC_POLICY": ("topic", "administer", 403, False, False),
        "LISTS": ("namespace", "lookup", 403, False, False), "DISCARDS": ("namespace", "consume", 403, False, False),
        "LOOKS_UP": ("topic", "lookup", 401, False, False),
        "WRITES": ("topic", "produce", 403, False, False), "READS": ("topic", "consume", 403, False, False),
        "PRODUCES": ("topic", "produce", 401, False, False), "CONSUMES": ("topic", "consume", 401, False, False),
        "RESOLVES": ("topic", "lookup", 401, False, True), "-": None}
    rows = [line.split() for line in RIGHTS.read_text().splitlines() if not line.startswith("#")]
    written = {(method, path): NAMES[name] for name, method, path in rows}
    assert len(rows) == len(written)
    assert rights_of_policies() | written == demanded.DEMANDS


def test_a_route_that_forgot_is_for_super_users():
    assert demanded.demand_of("GET", "/admin/v2/new") == demanded.SUPER


# -- role x action x level

QUESTIONS = {       # a question that changes nothing for each kind of demand
    demanded.SUPER: ("GET", "/admin/v2/brokers/configuration"),
    demanded.TENANTS: ("GET", "/admin/v2/tenants/{tenant}"),
    demanded.TENANT: ("GET", "/admin/v2/namespaces/{tenant}"),
    demanded.NAMESPACE: ("GET", "/admin/v2/namespaces/{place}/permissions"),
    demanded.LISTS: ("GET", "/admin/v2/namespaces/{place}/topics"),
    demanded.DISCARDS: ("POST", "/admin/v2/namespaces/{place}/clearBacklog/nobodys"),
    demanded.TOPIC: ("GET", "/admin/v2/persistent/{place}/plain/compaction"),
    demanded.TOPIC_POLICY: ("GET", "/admin/v2/persistent/{place}/plain/retention"),
    demanded.LOOKS_UP: ("GET", "/admin/v2/persistent/{place}/plain/partitions"),
    demanded.RESOLVES: ("GET", "/lookup/v2/topic/persistent/{place}/plain"),
    demanded.PRODUCES: ("POST", "/admin/v2/schemas/{place}/plain/schema"),
    demanded.CONSUMES: ("GET", "/admin/v2/persistent/{place}/plain/subscriptions"),
    demanded.WRITES: ("POST", "/topics/persistent/{place}/plain"),
    demanded.READS: ("POST", "/topics/persistent/{place}/plain/subscription/nobodys/nack"),
}


@pytest.mark.parametrize("demand", MAY, ids=lambda demand: "-".join(map(str, demand)))
def test_over_http_a_request_needs_what_its_route_demands(guarded, place, demand):
    method, path = QUESTIONS[demand]
    path = path.format(place=place, tenant=place.partition("/")[0])
    found = {role: guarded.ask(role, method, path) for role in rights.ROLES}
    assert {role for role, (status, _) in found.items() if status not in (401, 403)} == MAY[demand]
    assert {status for role, (status, _) in found.items() if role not in MAY[demand]} == {demand.status}
    assert all(said["reason"] for role, (_, said) in found.items() if role not in MAY[demand])


def test_who_may_consume_sees_what_waits_and_only_administrators_change_it(guarded, place):
    path = f"/ops/v1/delayed/persistent/{place}/plain"
    for asked, allowed, refused in ((("GET", path), MAY[demanded.CONSUMES], 401),
                                    (("DELETE", f"{path}/999:0"), ADMINS, 403),
                                    (("PATCH", f"{path}/999:0", {"deliver_at": "1h"}), ADMINS, 403)):
        found = {role: guarded.ask(role, *asked)[0] for role in rights.ROLES}
        expected = 200 if asked[0] == "GET" else 404
        assert found == {role: expected if role in allowed else refused for role in rights.ROLES}


def test_nobody_needs_a_right_to_what_is_open(guarded):
    for path in ("/status.html", "/ready", "/admin/v2/brokers/version", "/admin/v2/clusters", "/metrics"):
        assert guarded.ask("anonymous", "GET", path)[0] == 200
    assert guarded.ask("nobody", "GET", "/admin/v2/nothing")[0] == 404
    assert guarded.ask("nobody", "GET", "/admin/v2/persistent/missing/ns/topic/stats") == (
        404,
        {"reason": "Tenant does not exist"},
    )
    # this route asks the broker itself
    assert guarded.ask("admin", "GET", "/admin/v2/brokers/health") == (200, "ok")


def test_a_name_is_not_taken_for_another(guarded, place):
    """A tenant's administrator stays in the tenant, however the path is written."""
    tenant, _, name = place.partition("/")
    for path in (f"/admin/v2/namespaces/{tenant}%2F{name}/x/permissions", f"/admin/v2/namespaces/{tenant}%2Fx",
                 f"/admin/v2/namespaces/{tenant}/..%2Fdefault/permissions",
                 f"/admin/v2/namespaces/{tenant}%2F../{name}/permissions",
                 f"/admin/v2/namespaces/{tenant}/{name}%2F/permissions", f"/admin/v2/tenants/{tenant}%2F{name}"):
        for role in ("tenant-admin", "nobody"):
            assert guarded.ask(role, "GET", path)[0] == 404, (role, path)
    assert guarded.ask("tenant-admin", "GET", f"/admin/v2/namespaces/{tenant}/../public/default/permissions")[0] in (
        400,
        401,
        403,
        404,
    )


def over_binary(guarded, place, role, original=""):
    """Send every command in every role; return {command: outcome}."""
    connection = guarded.connect(role, original)
    assert connection.connected == "allowed"
    return {name: connection.ask(kind, **fields) for name, kind, fields in rights.commands(place)
            if "subscription" not in name}


TEXTS = {"PARTITIONED_METADATA": "Client is not authorized to Get Partition Metadata",
         "LOOKUP": "Client is not authorized to Lookup",
         "PRODUCER": "Client is not authorized to Produce", "SUBSCRIBE": "Client is not authorized to subscribe",
         "GET_TOPICS_OF_NAMESPACE": "Client is not authorized to GetTopicsOfNamespace",
         "WATCH_TOPIC_LIST": "Proxy Client is not authorized to watchTopicList",
         "GET_SCHEMA": "Client is not authorized to Get Schema",
         "GET_OR_CREATE_SCHEMA": "Client is not authorized to Get or Create Schema"}
OF_TOPIC = {"PARTITIONED_METADATA": demanded.LOOKS_UP, "LOOKUP": demanded.LOOKS_UP,
            "GET_SCHEMA": demanded.LOOKS_UP,
            "PRODUCER": demanded.PRODUCES, "SUBSCRIBE": demanded.CONSUMES,
            "GET_OR_CREATE_SCHEMA": demanded.PRODUCES,
            "GET_TOPICS_OF_NAMESPACE": demanded.LISTS, "WATCH_TOPIC_LIST": demanded.LISTS}


def may(what):
    """Return the roles that may: a topic's grants hold for the topic and its partitions."""
    if "missing tenant" in what:
        # a lookup without the right is answered as if nothing were there
        return set(rights.ROLES) if what.startswith("PART") else {"admin"}
    if "missing namespace" in what:
        return ADMINS
    found = MAY[OF_TOPIC[what.split()[0]]]
    if "new topic" in what:
        return found - {"topic-producer", "topic-consumer"}
    return found - {"topic-consumer"} if "partition" in what else found


@pytest.mark.parametrize("role", rights.ROLES)
def test_over_the_binary_protocol_a_command_needs_what_it_demands(guarded, place, role):
    """A role without the right gets the command's own error answer, and its connection stays open."""
    found = over_binary(guarded, place, role)
    assert {what for what, became in found.items() if became == "allowed"} == {what for what in found
                                                                               if role in may(what)}
    for what, became in found.items():
        if became != "allowed":
            assert became == f"AuthorizationError: {TEXTS[what.split()[0]]}"


# Fields of commands that need no right, beside those that they must have: all name ids of somebody else, such as 1.
OF_OTHERS = {
    T.FLOW: {"messagePermits": 10}, T.SEND: {"sequence_id": 7}, T.CONNECT: {"client_version": "again"},
    T.ACK: {"ack_type": api.CommandAck.Cumulative, "message_id": [api.MessageIdData(ledgerId=2**40, entryId=0)]},
    T.SEEK: {"message_publish_time": 2**41}, T.END_TXN: {"txn_action": api.COMMIT},
    T.AUTH_RESPONSE: {"response": {"auth_method_name": "token", "auth_data": b"bad"}},
}


def of_others(kind: int) -> dict:
    needed = {field.name: "x" if field.type == field.TYPE_STRING else 1
              for field in api.BaseCommand.DESCRIPTOR.fields_by_number[kind].message_type.fields if field.is_required}
    return needed | OF_OTHERS.get(kind, {})


def test_who_has_no_right_reaches_nothing_of_others_by_their_ids(guarded):
    """A role without rights sends every command that needs none: the owner of the ids goes on as before."""
    place = guarded.people.place()
    owner, topic = guarded.connect("admin"), f"persistent://{place}/plain"
    assert (
        owner.ask(
            T.SUBSCRIBE, topic=topic, consumer_id=1, subscription="of-others", subType=api.CommandSubscribe.Shared
        )
        == "allowed"
    )
    assert owner.ask(T.PRODUCER, topic=topic, producer_id=1) == "allowed"
    assert owner.ask(T.WATCH_TOPIC_LIST, namespace=place, topics_pattern=".*", watcher_id=1) == "allowed"
    for kind in [kind for kind, row in TABLE.items() if not row.right]:
        stranger = guarded.connect("nobody")
        entry = entry_of(message_metadata()) if kind == T.SEND else b""
        said = command(kind, **of_others(kind))[8:]
        stranger._socket.sendall(frame(said, entry))
        stranger._socket.sendall(command(T.PING))
        with contextlib.suppress(ConnectionResetError):
            # the command was carried out, or the connection has ended
            while (answer := stranger._receive()) is not None and answer.type != T.PONG:
                assert answer.type not in (T.MESSAGE, T.SEND_RECEIPT, T.PRODUCER_SUCCESS), (kind, answer)
    owner._socket.sendall(command(T.FLOW, consumer_id=1, messagePermits=1) + send(producer_id=1, sequence_id=3))
    assert {command_of(owner).type for _ in range(2)} == {T.SEND_RECEIPT, T.MESSAGE}
    stats = guarded.done("GET", f"/admin/v2/{topic.replace('://', '/')}/stats")
    assert len(stats["publishers"]) == 1 and stats["subscriptions"]["of-others"]["msgBacklog"] == 1
    assert stats["subscriptions"]["of-others"]["consumers"][0]["availablePermits"] == 0


def test_a_proxy_may_ask_for_what_both_may(guarded, place):
    path = f"/admin/v2/namespaces/{place}/permissions"
    guarded.done("POST", f"{path}/proxy", ["produce"])
    of_proxy = {original: over_binary(guarded, place, "proxy", original)
                for original in ("namespace-producer", "namespace-consumer", "nobody")}
    alone = {role: over_binary(guarded, place, role) for role in of_proxy}
    produces = over_binary(guarded, place, "namespace-producer")
    assert {"allowed"} < {became for found in of_proxy.values() for became in found.values()}
    for original, found in of_proxy.items():
        for what, became in found.items():
            if "missing" not in what:
                assert (became == "allowed") == (alone[original][what] == produces[what] == "allowed"), (original, what)


# -- replicators of other clusters

FLAGS = {"supports_repl_dedup_by_lid_and_eid": True}
REPLICATOR = {"producer_id": 1, "producer_name": "pulsar.repl.far-->standalone", "user_provided_producer_name": True}


def replicated(number, position):
    """Return a SEND of a replicator: the entry at this position of the cluster `far`."""
    properties = [api.KeyValue(key=POSITION_PROPERTY, value=position)]
    return send(entry_of(message_metadata(sequence_id=number, replicated_from="far", properties=properties)),
                producer_id=1, sequence_id=number)


def test_a_role_that_may_produce_cannot_have_messages_of_another_cluster_dropped(guarded):
    """It would name a position above all of that cluster's, and whatever the cluster sends would count as stored."""
    place = guarded.people.place()
    topic = f"persistent://{place}/plain"
    for role in ("svc", "far"):
        guarded.done("POST", f"/admin/v2/namespaces/{place}/permissions/{role}", ["produce", "consume"])
    intruder = guarded.connect("svc", feature_flags=FLAGS)
    refused = intruder.ask(T.PRODUCER, topic=topic, **REPLICATOR)
    assert refused.startswith("AuthorizationError: Client is not authorized to Produce under the name of a replicator")
    assert intruder.ask(T.PRODUCER, topic=topic, **REPLICATOR | {"producer_name": "pulsar.repl.far"}) == refused
    assert intruder.ask(T.PRODUCER, topic=topic, **REPLICATOR | {"producer_name": "pulsar.repl-own"}) == "allowed"
    source = guarded.connect("far", feature_flags=FLAGS)
    assert source.ask(T.PRODUCER, topic=topic, **REPLICATOR) == "allowed"
    source._socket.sendall(replicated(0, "7:0"))
    receipt = command_of(source).send_receipt
    assert (receipt.sequence_id, receipt.highest_sequence_id) == (7, 0)
    assert receipt.message_id.ledgerId != 2**64 - 1, "it counts as stored before"


@pytest.mark.slow
def test_a_replicator_goes_when_its_role_may_not_replicate_any_more(fresh):
    place = fresh.people.place()
    topic, granted = f"persistent://{place}/plain", f"/admin/v2/namespaces/{place}/permissions/far"
    fresh.done("POST", granted, ["produce"])
    source = fresh.connect("far", feature_flags=FLAGS)
    assert source.ask(T.PRODUCER, topic=topic, **REPLICATOR) == "allowed"
    fresh.done("DELETE", granted)
    assert command_of(source).type == T.CLOSE_PRODUCER


def test_a_role_that_may_consume_gives_up_nothing_that_another_cluster_lacks(guarded):
    """It needs an administrator to name a replication cursor; requests about all subscriptions leave them alone."""
    place = guarded.people.place()
    topic = f"/admin/v2/persistent/{place}/plain"
    guarded.done("POST", f"/admin/v2/namespaces/{place}/permissions/svc", ["consume"])
    guarded.done("PUT", "/admin/v2/clusters/cursors", {"brokerServiceUrl": "pulsar://192.0.2.1:6650"})
    tenant = place.partition("/")[0]
    guarded.done("POST", f"/admin/v2/tenants/{tenant}",
                 {"adminRoles": ["tenant-admin"], "allowedClusters": ["standalone", "cursors"]})
    guarded.done("POST", f"/admin/v2/namespaces/{place}/replication", ["standalone", "cursors"])
    producer = guarded.connect("admin")
    assert producer.ask(T.PRODUCER, topic=f"persistent://{place}/plain", producer_id=1) == "allowed"
    producer._socket.sendall(send(producer_id=1, sequence_id=1))
    assert command_of(producer).type == T.SEND_RECEIPT

    def waiting():
        return guarded.done("GET", f"{topic}/stats")["replication"]["cursors"]["replicationBacklog"]

    eventually(lambda: waiting() == 1, what="the message waits for the other cluster")
    cursor = f"{topic}/subscription/pulsar.repl.cursors"
    asked = [f"{cursor}/skip_all", f"{cursor}/skip/1", f"{cursor}/expireMessages/1",
             f"/admin/v2/namespaces/{place}/clearBacklog/pulsar.repl.cursors"]
    assert {guarded.ask("svc", "POST", path)[0] for path in asked} == {401, 403}
    assert guarded.ask("svc", "POST", f"/admin/v2/namespaces/{place}/clearBacklog")[0] == 204
    assert guarded.ask("svc", "POST", f"{topic}/all_subscription/expireMessages/1")[0] == 204
    assert waiting() == 1
    guarded.done("POST", f"{cursor}/skip_all")
    assert waiting() == 0


# -- rights that are taken away

def command_of(connection):
    """Return the next command that the broker sends unasked."""
    while (command := connection._receive()).type in (T.PING, T.ACTIVE_CONSUMER_CHANGE):
        pass
    return command


WAYS = {     # the ways in which a right is given and taken away: (request before, request then)
    "namespace": ([("POST", "{namespace}/permissions/svc", ["produce", "consume"])],
                  ("DELETE", "{namespace}/permissions/svc")),
    "wildcard": ([("POST", "{namespace}/permissions/sv*", ["produce", "consume"])],
                 ("DELETE", "{namespace}/permissions/sv*")),
    "topic": ([("POST", "{topic}/permissions/svc", ["produce", "consume"])],
              ("POST", "{topic}/permissions/svc", ["functions"])),
    "tenant": ([("POST", "{tenant}", {"adminRoles": ["svc"], "allowedClusters": ["standalone"]})],
               ("POST", "{tenant}", {"adminRoles": ["others"], "allowedClusters": ["standalone"]})),
    "mode": ([("POST", "{namespace}/permissions/svc", ["consume"])],
             ("POST", "{namespace}/subscriptionAuthMode", "Prefix")),
    "subscription": ([("POST", "{namespace}/permissions/svc", ["consume"])],
                     ("POST", "{namespace}/permissions/subscription/billing", ["others"])),
}


@pytest.mark.parametrize("way", WAYS)
def test_who_loses_a_right_is_told_to_go_before_that_is_answered(guarded, way):
    namespace = guarded.people.place()
    paths = {"namespace": f"/admin/v2/namespaces/{namespace}",
             "tenant": f"/admin/v2/tenants/{namespace.partition('/')[0]}",
             "topic": f"/admin/v2/persistent/{namespace}/plain"}
    before, then = WAYS[way]
    for method, path, body in before:
        guarded.done(method, path.format(**paths), body)
    kinds = (T.SUBSCRIBE,) if way in ("mode", "subscription") else (T.PRODUCER, T.SUBSCRIBE)
    fields = {T.PRODUCER: {"producer_id": 1},
              T.SUBSCRIBE: {"consumer_id": 1, "subscription": "billing", "subType": api.CommandSubscribe.Shared}}

    def ask(connection, kind):
        return connection.ask(kind, topic=f"persistent://{namespace}/plain", **fields[kind])

    people = {role: guarded.connect(role) for role in ("svc", "admin")}
    for connection in people.values():
        assert [ask(connection, kind) for kind in kinds] == ["allowed"] * len(kinds)
    method, path, *body = then
    guarded.done(method, path.format(**paths), *body)
    svc, admin = people.values()
    svc._socket.settimeout(HANG_SECONDS)
    told = {command_of(svc).type for _ in kinds}
    assert told == {T.CLOSE_PRODUCER if kind == T.PRODUCER else T.CLOSE_CONSUMER for kind in kinds}
    assert all(ask(svc, kind).startswith("AuthorizationError") for kind in kinds)
    assert admin.ask(T.GET_LAST_MESSAGE_ID, consumer_id=1) == "allowed"          # a role with another right stays
    stats = guarded.done("GET", f"{paths['topic']}/stats")
    assert [len(one["consumers"]) for one in stats["subscriptions"].values()] == [1]
    assert len(stats["publishers"]) == len(kinds) - 1


def test_who_waits_for_its_turn_is_told_to_go_when_it_has_lost_its_right(guarded):
    """It had the right when it asked.  It leaves the line before the revocation is answered, and never has its turn."""
    namespace = guarded.people.place()
    path = f"/admin/v2/namespaces/{namespace}/permissions/svc"
    guarded.done("POST", path, ["produce"])
    admin, svc = (guarded.connect(role) for role in ("admin", "svc"))
    asked = {"topic": f"persistent://{namespace}/plain", "producer_id": 1}
    assert admin.ask(T.PRODUCER, producer_access_mode=api.Exclusive, **asked) == "allowed"
    assert svc.ask(T.PRODUCER, producer_access_mode=api.WaitForExclusive, **asked) == "allowed"
    guarded.done("DELETE", path)
    svc._socket.settimeout(HANG_SECONDS)
    assert command_of(svc).error.error == api.ServiceNotReady      # it tries again, and gets the reason
    assert svc.ask(T.PRODUCER, producer_access_mode=api.WaitForExclusive, **asked).startswith("AuthorizationError")
    assert admin.ask(T.CLOSE_PRODUCER, producer_id=1) == "allowed"
    assert admin.ask(T.PRODUCER, producer_access_mode=api.Exclusive, **asked) == "allowed"


def test_who_watches_a_list_of_topics_hears_no_more_without_a_right(guarded):
    namespace = guarded.people.place()
    watching = {role: guarded.connect(role) for role in ("namespace-consumer", "admin")}
    for connection in watching.values():
        assert connection.ask(T.WATCH_TOPIC_LIST, namespace=namespace, topics_pattern=".*", watcher_id=1) == "allowed"
    guarded.done("DELETE", f"/admin/v2/namespaces/{namespace}/permissions/namespace-consumer")
    guarded.done("PUT", f"/admin/v2/persistent/{namespace}/secret")
    watching["admin"]._socket.settimeout(HANG_SECONDS)
    assert command_of(watching["admin"]).type == T.WATCH_TOPIC_UPDATE
    assert (
        watching["namespace-consumer"]
        .ask(T.LOOKUP, topic="persistent://public/default/x")
        .startswith("AuthorizationError")
    )


# -- how a broker is set up

@pytest.mark.slow
def test_the_tenant_that_every_broker_has_can_be_made_once_by_a_super_user(fresh):
    """Start scripts of clients' test suites create this tenant and ignore the answer; others then change it."""
    public = "/admin/v2/tenants/public"
    first, second = ({"adminRoles": [role], "allowedClusters": ["standalone"]} for role in ("anonymous", "others"))
    assert fresh.ask("anonymous", "PUT", public, first)[0] == 401
    fresh.done("PUT", public, first)
    assert fresh.ask("admin", "PUT", public, second)[0] == 409
    assert fresh.done("GET", public) == first
    default = "/admin/v2/namespaces/public/default"
    policies = {"auth_policies": {"namespace_auth": {"anonymous": ["produce", "consume"]}},
                "replication_clusters": ["standalone"]}
    fresh.done("PUT", default, policies)
    assert fresh.ask("admin", "PUT", default, policies)[0] == 409
    assert fresh.done("GET", default)["auth_policies"]["namespace_auth"] == {"anonymous": ["consume", "produce"]}
    fresh.done("PUT", "/admin/v2/tenants/private", {"adminRoles": [], "allowedClusters": ["standalone"]})
    of_token = {"auth_policies": {"namespace_auth": {"token-principal": ["produce", "consume"]}}}
    fresh.done("PUT", "/admin/v2/namespaces/private/auth", of_token)
    assert [fresh.connect(role).ask(T.PARTITIONED_METADATA, topic="persistent://private/auth/t")
            for role in ("anonymous", "token-principal")] == [f"AuthorizationError: {TEXTS['PARTITIONED_METADATA']}",
                                                              "allowed"]
    assert fresh.connect("anonymous").ask(T.PRODUCER, topic="public/default/t", producer_id=1) == "allowed"
    assert fresh.ask("anonymous", "PUT", "/admin/v2/namespaces/public/dedup-1")[0] == 204
    assert fresh.ask("anonymous", "GET", "/admin/v2/persistent/private/auth/t/partitions")[0] == 401
    fresh.done("POST", public, second)
    assert fresh.ask("anonymous", "PUT", "/admin/v2/namespaces/public/dedup-2")[0] == 401


def test_a_namespace_is_made_with_its_rights(guarded, place):
    tenant = place.partition("/")[0]
    path, topic = f"/admin/v2/namespaces/{tenant}/made", f"persistent://{tenant}/made/x"
    wrong = [{"namespace_auth": {"a": ["dance"]}}, {"namespace_auth": ["a"]},
             {"destination_auth": {"persistent://public/default/x": {}}},
             {"subscription_auth_roles": {"s": "a"}}, ["a"]]
    assert [guarded.ask("admin", "PUT", path, {"auth_policies": one})[0] for one in wrong] == [400] * len(wrong)
    rights_of = {"namespace_auth": {"svc": ["produce"]}, "destination_auth": {topic: {"reader": ["consume"]}},
                 "subscription_auth_roles": {"audit": ["auditor"]}}
    guarded.done("PUT", path, {"auth_policies": rights_of})
    assert guarded.done("GET", path)["auth_policies"] == rights_of
    reader = guarded.connect("reader")
    assert reader.ask(T.LOOKUP, topic=topic) == "allowed"


def test_over_http_a_subscription_for_certain_roles_is_for_these(guarded):
    place = guarded.people.place()
    for name, role in (("theirs", "others"), ("ours", "namespace-consumer")):
        guarded.done("POST", f"/admin/v2/namespaces/{place}/permissions/subscription/{name}", [role])
        guarded.done("PUT", f"/admin/v2/persistent/{place}/plain/subscription/{name}")
    found = {
        name: guarded.ask(
            "namespace-consumer", "POST", f"/admin/v2/persistent/{place}/plain/subscription/{name}/skip_all"
        )[0]
        for name in ("theirs", "ours", "%2574heirs", "%256furs")
    }
    assert found == {"theirs": 401, "ours": 204, "%2574heirs": 401, "%256furs": 204}      # encoded twice too


def test_rights_on_several_topics_are_granted_by_administrators(guarded, place):
    """The tenant stands in the request's body, not in its path."""
    body = [{"topic": f"persistent://{place}/plain", "role": "several", "actions": ["produce"]}]
    path = "/admin/v2/namespaces/grantPermissionsOnTopics"
    assert [
        guarded.ask(role, "POST", path, body)[0] for role in ("namespace-producer", "anonymous", "tenant-admin")
    ] == [401, 401, 204]


def test_can_i_tells_why_to_who_administers(guarded, place):
    path = f"/ops/v1/can-i/persistent/{place}/plain?role="
    assert guarded.ask("tenant-admin", "GET", f"{path}topic-producer&action=produce") == (
        200, {"allowed": True, "why": f"produce on persistent://{place}/plain is granted to topic-producer"})
    status, said = guarded.ask("tenant-admin", "GET", f"{path}topic-producer&action=consume&subscription=x")
    assert (status, said["allowed"], said["could_grant"]) == (200, False, ["admin", "tenant-admin"])
    assert "consume" in said["why"] and "topic-producer" in said["why"]
    assert guarded.ask("topic-producer", "GET", f"{path}topic-producer&action=produce")[0] == 403
    assert [guarded.ask("admin", "GET", path + rest)[0] for rest in ("", "x&action=dance", "&action=produce")] == [
        400
    ] * 3


def test_why_denied_tells_the_command_that_grants_what_is_missing(guarded, place, capsys, monkeypatch):
    topic = f"{place}/plain"
    monkeypatch.setenv("GEMINGA_AUTH_PARAMS", f"token:{guarded.people.token('tenant-admin')}")

    def told(*more: str, role: str = "topic-producer") -> list[str]:
        assert main(["why-denied", "--admin-url", guarded.process.http_url, role, topic, *more]) == 0
        return capsys.readouterr().out.splitlines()

    refused = f"on persistent://{topic} is not granted to 'topic-producer', who is no administrator of tenant"
    produce, consume, grant = told()
    assert produce == f"topic-producer may produce on {topic}: produce on persistent://{topic} is granted to " \
                      "topic-producer."
    assert consume.startswith(f"topic-producer may not consume on {topic}: consume {refused}")
    assert grant == f"  admin or tenant-admin could grant it: geminga admin topics grant-permission {topic} " \
                    "--role topic-producer --actions consume"
    assert told("--group", "others", "--group", "topic-producer", role="nobody")[0] == produce.replace(
        "topic-producer may", "nobody may")
    answers = json.loads("\n".join(told("-o", "json")))
    assert [(one["action"], one["allowed"], one["missing_grant"]) for one in answers] == [
        ("produce", True, None), ("consume", False, "consume")]


def test_why_denied_names_no_grant_where_a_grant_is_not_what_is_missing(guarded, place, capsys, monkeypatch):
    """A subscription may be for other roles than one with a grant to consume."""
    name = "reserved"
    guarded.done("POST", f"/admin/v2/namespaces/{place}/permissions/subscription/{name}", ["somebody"])
    monkeypatch.setenv("GEMINGA_AUTH_PARAMS", f"token:{guarded.people.token('tenant-admin')}")
    words = ["why-denied", "--admin-url", guarded.process.http_url, "namespace-consumer", f"{place}/plain", "-s", name]
    assert main(words) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith(f"Subscription {name} of {place} is for other roles than 'namespace-consumer'.")


# -- scalable topics

def test_over_http_a_right_to_a_scalable_topic_holds_for_its_names(guarded, place):
    """The regular name stands for the scalable topic, in lookups, in paths without a domain, and for can-i."""
    guarded.done("PUT", f"/admin/v2/scalable/{place}/many")
    guarded.done("POST", f"/admin/v2/scalable/{place}/many/permissions/one", ["consume"])
    schema = {"type": "STRING", "schema": "", "properties": {}}
    guarded.done("POST", f"/admin/v2/schemas/{place}/many/schema", schema)
    paths = [f"/lookup/v2/topic/topic/{place}/many", f"/lookup/v2/topic/persistent/{place}/many",
             f"/lookup/v2/destination/persistent/{place}/many", f"/admin/v2/schemas/{place}/many/schema"]
    for role, statuses in (("one", {200}), ("nobody", {401})):
        assert {guarded.ask(role, "GET", path)[0] for path in paths} == statuses
    assert guarded.ask("one", "GET", f"/lookup/v2/topic/persistent/{place}/plain")[0] == 401
    assert guarded.ask("one", "GET", f"/lookup/v2/topic/persistent/{place}/many-partition-0")[0] == 401
    for domain in ("topic", "persistent"):
        said = guarded.done("GET", f"/ops/v1/can-i/{domain}/{place}/many?role=one&action=consume")
        assert said == {"allowed": True, "why": f"consume on topic://{place}/many is granted to one"}
    (segment,) = guarded.done("GET", f"/admin/v2/scalable/{place}/many/stats")["layout"]["segments"].values()
    assert guarded.connect("one").ask(T.GET_SCHEMA, topic=segment["name"]) == "allowed"


def test_rights_to_a_topic_that_is_made_scalable_stay_and_are_its_partitions_too(guarded, place):
    guarded.done("PUT", f"/admin/v2/persistent/{place}/old/partitions", 2)
    guarded.done("POST", f"/admin/v2/persistent/{place}/old/permissions/one", ["consume"])
    assert guarded.ask("one", "POST", f"/admin/v2/scalable/{place}/old/migrate")[0] in (401, 403)
    guarded.done("POST", f"/admin/v2/scalable/{place}/old/migrate")
    guarded.done("POST", f"/admin/v2/scalable/{place}/old/permissions/two", ["consume"])
    names_of_it = [f"persistent://{place}/old-partition-0", f"persistent://{place}/old",
                   f"segment://{place}/old/0000-7fff-2"]
    denied = "AuthorizationError: Client is not authorized to Get Schema"
    for role, told in (("one", "allowed"), ("two", "allowed"), ("nobody", denied)):
        assert {guarded.connect(role).ask(T.GET_SCHEMA, topic=name) for name in names_of_it} == {told}
    guarded.done("DELETE", f"/admin/v2/scalable/{place}/old/permissions/one")
    assert {guarded.connect("one").ask(T.GET_SCHEMA, topic=name) for name in names_of_it} == {denied}


# -- the audit log

@pytest.fixture
def log(tmp_path):
    """log(folder): an audit log in this folder."""
    made = []

    def log(folder=tmp_path):
        made.append(audit.Audit(folder))
        return made[-1]

    yield log
    for one in made:
        one.close()


def lines(folder):
    return [json.loads(line) for line in (folder / audit.NAME).read_text().splitlines()]


def test_what_is_changed_or_refused_is_written_down_with_who(guarded, place):
    path = f"/admin/v2/namespaces/{place}"
    guarded.ask("tenant-admin", "POST", f"{path}/permissions/audited", ["functions"])
    guarded.ask("nobody", "DELETE", path)
    guarded.ask("admin", "POST", f"{path}/offloadPolicies", {
        "managedLedgerOffloadDriver": "aws-s3", "s3ManagedLedgerOffloadCredentialSecret": "hush"})
    guarded.ask("admin", "GET", path)
    guarded.ask("admin", "DELETE", "/admin/v2/persistent/public/default/not-there")
    granted, refused, policies = lines(guarded.process.data_dir)[-3:]
    assert granted == {"time": granted["time"], "role": "tenant-admin", "method": "token", "address": "127.0.0.1",
                       "status": 204, "request": f"POST {path}/permissions/audited", "body": ["functions"]}
    assert (refused["role"], refused["status"], refused["request"]) == ("nobody", 401, f"DELETE {path}")
    assert "nobody" in refused["reason"]
    assert (policies["role"], policies["request"]) == ("admin", f"POST {path}/offloadPolicies")
    assert "hush" not in (guarded.process.data_dir / audit.NAME).read_text()


def test_the_rights_that_a_namespace_is_made_with_are_written_down_and_nothing_else_of_it(guarded, place):
    path, rights_of = f"/admin/v2/namespaces/{place}-audited", {"namespace_auth": {"svc": ["produce"]}}
    guarded.done("PUT", path, {"auth_policies": rights_of, "properties": {"token": "secret"}})
    assert lines(guarded.process.data_dir)[-1]["body"] == {"auth_policies": rights_of}


def test_who_was_refused_by_a_worker_is_counted(guarded, place):
    def counted():
        told = guarded.done("GET", "/metrics").splitlines()
        return sum(float(line.split()[-1]) for line in told if line.startswith("geminga_commands_refused_total"))

    before = counted()
    connection = guarded.connect("nobody")
    assert connection.ask(T.LOOKUP, topic=f"persistent://{place}/plain").startswith("AuthorizationError")
    assert counted() == before + 1


def test_a_log_that_cannot_be_written_is_told_once_and_goes_on_when_it_can_be(log, tmp_path, capsys):
    found = log(tmp_path / "gone")
    for number in range(3):
        found.write({"number": number})
    [line] = capsys.readouterr().err.splitlines()
    assert "audit.log cannot be written" in line
    (tmp_path / "gone").mkdir()
    for number in range(3, 5):
        found.write({"number": number})
    assert [one["number"] for one in lines(tmp_path / "gone")] == [3, 4]
    assert "written down again" in capsys.readouterr().err


@pytest.mark.slow
def test_a_large_log_is_set_aside(log, tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "_FILE_BYTES", 1_000)
    found = log()
    for number in range(300):
        found.write({"number": number})
    assert len(list(tmp_path.glob("audit.log.*"))) > 1
    assert all(path.stat().st_size <= 1_000 for path in tmp_path.glob("audit.log*"))


@pytest.mark.slow
def test_who_is_refused_again_and_again_does_not_push_out_what_others_did(log, tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "_REFUSALS_MAX", 10)
    monkeypatch.setattr(audit, "_REFUSALS_PER_SECOND", 0)
    found = log()
    told = [found.may_tell_refusal() for _ in range(25)]
    assert told == [True] * 10 + [False] * 15
    found.write({"request": "a change"})
    found.write({"request": "another"})
    assert lines(tmp_path) == [{"request": "a change", "left_out": 15}, {"request": "another"}]

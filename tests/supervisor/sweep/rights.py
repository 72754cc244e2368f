"""Compares the rights of two brokers: every route and every command of the binary protocol, in many roles.

    python tests/supervisor/sweep/rights.py --key FILE [--only TEXT] HTTP_URL SERVICE_URL HTTP_URL SERVICE_URL

The second broker is compared with the first.  Both accept tokens of the secret key in FILE, have `admin` as a super
user, `proxy` as a role of proxies (not a super user), `anonymous` as the anonymous role, and wildcards allowed.  Each
question is asked about a namespace and topics of its own, with the same grants.  A line is printed for each question
that one broker allows and the other refuses, or refuses otherwise; rights-reasons.txt has reasons for known ones.

Exit status: 1 when there is a difference without a reason.
"""
import argparse
import base64
import concurrent.futures
import fnmatch
import hashlib
import hmac
import itertools
import json
import re
import socket
import struct
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from geminga.proto import pulsar_api_pb2 as api
from tests.proto.client_frames import T, command, field_of

from ...harness import HANG_SECONDS

HERE = Path(__file__).parent
# From the role with the fewest rights to the one with the most, so that no allowed change hinders a later role.
ROLES = ("anonymous", "nobody", "topic-producer", "topic-consumer", "wild-east", "namespace-producer",
         "namespace-consumer", "tenant-admin", "admin")
_AT_ONCE = 4
# the first body that the route can read is sent
_BODIES = {}, ["produce"], 5, True, {"k": "v"}, ["Shared"], "FULL", "Prefix", "latest"
_REFUSED = api.AuthenticationError, api.AuthorizationError
_CLASS = "org.apache.pulsar.broker.PulsarServerException: "        # the beginning of some of Pulsar's texts
_VALUES = {"domain": "persistent", "cluster": "elsewhere", "broker": "nobody:1", "bundle": "0x00000000_0xffffffff",
           "version": "0", "time_ms": "0", "number": "1", "ledger": "1", "entry": "1", "entries": "1", "seconds": "100",
           "role": "somebody",
           "name": "subscribeRatePeriodPerConsumerInSecond", "value": "30", "key": "k", "group": "g", "policy": "p",
           "allocator": "default", "subscription": "billing"}


class Question(NamedTuple):
    method: str
    path: str           # as the route has it


class Broker:
    def __init__(self, http_url: str, service_url: str, key: bytes) -> None:
        self.http_url, self.service_url, self._key = http_url.rstrip("/"), service_url, key
        self._run, self._numbers = uuid.uuid4().hex[:6], itertools.count()

    def token(self, role: str) -> str:
        def part(data: bytes) -> bytes:
            return base64.urlsafe_b64encode(data).rstrip(b"=")
        signed = part(b'{"alg":"HS256"}') + b"." + part(json.dumps({"sub": role}).encode())
        return (signed + b"." + part(hmac.digest(self._key, signed, hashlib.sha256))).decode()

    def ask(self, role: str, method: str, path: str, body: Any = None) -> tuple[int, str]:
        asked = urllib.request.Request(self.http_url + path, method=method,
                                       data=None if body is None else json.dumps(body).encode())
        if role != "anonymous":
            asked.add_header("Authorization", f"Bearer {self.token(role)}")
        if body is not None:
            asked.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(asked, timeout=HANG_SECONDS) as answer:
                return answer.status, answer.read().decode(errors="replace")
        except TimeoutError:
            return 405, ""         # a few routes of Pulsar never answer
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode(errors="replace")

    def place(self, *, with_parted: bool = False) -> str:
        """Make a namespace, `tenant/namespace`, with topics `plain` and `parted` and grants to the roles."""
        tenant = f"t{self._run}-{next(self._numbers)}"
        namespace, topics = f"{tenant}/n", f"/admin/v2/persistent/{tenant}/n"
        for method, path, body in (
                ("PUT", f"/admin/v2/tenants/{tenant}",
                 {"adminRoles": ["tenant-admin"], "allowedClusters": ["standalone"]}),
                ("PUT", f"/admin/v2/namespaces/{namespace}", None),
                ("PUT", f"{topics}/plain", None),
                ("POST", f"/admin/v2/namespaces/{namespace}/permissions/namespace-producer", ["produce"]),
                ("POST", f"/admin/v2/namespaces/{namespace}/permissions/namespace-consumer", ["consume"]),
                ("POST", f"/admin/v2/namespaces/{namespace}/permissions/wild-*", ["produce"]),
                ("POST", f"{topics}/plain/permissions/topic-producer", ["produce"]),
                ("POST", f"{topics}/plain/permissions/topic-consumer", ["consume"]),
                *((("PUT", f"{topics}/parted/partitions", 2),
                   ("POST", f"{topics}/parted/permissions/topic-producer", ["produce"]))
                  if with_parted else ())):
            status, text = self.ask("admin", method, path, body)
            assert status < 300, (self.http_url, method, path, status, text)
        return namespace


def questions() -> list[Question]:
    """Return every route of ours that Pulsar may have too."""
    from geminga.supervisor.admin.app import PARTS
    found = {Question(route.method, canonical(route.path)) for part in PARTS for route in part.routes}
    return sorted(one for one in found if one.path.startswith(("/admin", "/lookup"))
                  and one.path != "/admin/v2/brokers/shutdown")


def canonical(path: str) -> str:
    """Return the path with {name} in place of {name:pattern}."""
    return re.sub(r"\{(\w+):[^{}]*\}", r"{\1}", path)


def over_http(broker: Broker, question: Question) -> Iterator[tuple[str, str]]:
    """Ask one question over HTTP in each role; yield (role, outcome)."""
    tenant, _, name = broker.place().partition("/")
    path = question.path
    for key, value in (_VALUES | {"tenant": tenant, "namespace": name, "topic": "plain"}).items():
        path = path.replace("{" + key + "}", value)
    bodies = (None,) if question.method in ("GET", "DELETE") else _BODIES
    body = next((one for one in bodies if broker.ask("anonymous", question.method, path, one)[0] not in (400, 415)),
                None)
    for role in ROLES:
        status, text = broker.ask(role, question.method, path, body)
        is_none = status == 405 or (status == 404 and "<html" in text)
        yield role, "none" if is_none else str(status) if status in (401, 403) else "allowed"


# -- the binary protocol

class Connection:
    """A connection in a role; a proxy's is made on behalf of an original role."""

    def __init__(self, broker: Broker, role: str, original: str = "", **about: Any) -> None:
        """about: more fields of CONNECT."""
        address = urlsplit(broker.service_url)
        self._socket = socket.create_connection((address.hostname, address.port), 30)
        self._numbers = itertools.count(1)
        shown: dict[str, Any] = about if role == "anonymous" else {
            **about, "auth_method_name": "token", "auth_data": broker.token(role).encode()}
        if original:
            shown["original_principal"] = original
        self._socket.sendall(command(T.CONNECT, client_version="sweep", protocol_version=21, **shown))
        self.connected = outcome(self._answer())

    def ask(self, kind: int, **fields: Any) -> str:
        """Send a command; return the outcome."""
        self._socket.sendall(command(kind, request_id=next(self._numbers), **fields))
        return outcome(self._answer())

    def _answer(self) -> api.BaseCommand | None:
        """Return the next answer; commands that come unasked are passed over."""
        while (answer := self._receive()) is not None and answer.type in (T.PING, T.ACTIVE_CONSUMER_CHANGE):
            pass
        return answer

    def _receive(self) -> api.BaseCommand | None:
        head = self._exactly(8)
        if head is None:
            return None
        total, size = struct.unpack(">II", head)
        return api.BaseCommand.FromString(self._exactly(total - 4)[:size])

    def _exactly(self, count: int) -> bytes | None:
        found = b""
        while len(found) < count:
            if not (some := self._socket.recv(count - len(found))):
                return None
            found += some
        return found

    def close(self) -> None:
        self._socket.close()


def outcome(answer: api.BaseCommand | None) -> str:
    """Return "allowed" or the refusal; any other error means that the command was allowed."""
    if answer is None:
        return "closed"
    body = getattr(answer, field_of(answer.type))
    for code, text in (("error", "message"), ("error_code", "error_message")):
        if code in body.DESCRIPTOR.fields_by_name and body.HasField(code) and getattr(body, code) in _REFUSED:
            return f"{api.ServerError.Name(getattr(body, code))}: {getattr(body, text)}".replace(_CLASS, "")
    return "allowed"


def commands(namespace: str) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield (name, type, fields) of every command."""
    tenant = namespace.partition("/")[0]
    ids = itertools.count(1)
    schema = {"name": "s", "schema_data": b'"string"', "type": api.Schema.String}
    for name, topic in (("a topic", f"persistent://{namespace}/plain"),
                        ("a partition", f"persistent://{namespace}/parted-partition-1"),
                        ("a new topic", f"persistent://{namespace}/new"),
                        ("a missing namespace", f"persistent://{tenant}/missing/x"),
                        ("a missing tenant", "persistent://missing/missing/x")):
        yield f"PARTITIONED_METADATA of {name}", T.PARTITIONED_METADATA, {"topic": topic,
                                                                          "metadata_auto_creation_enabled": False}
        yield f"LOOKUP of {name}", T.LOOKUP, {"topic": topic}
        if "missing" in name:
            continue
        yield f"GET_SCHEMA of {name}", T.GET_SCHEMA, {"topic": topic}
        for subscription in ("billing", "audit"):
            yield f"SUBSCRIBE {subscription} to {name}", T.SUBSCRIBE, {
                "topic": topic, "subscription": subscription, "subType": api.CommandSubscribe.Shared,
                "consumer_id": next(ids)}
        yield f"PRODUCER to {name}", T.PRODUCER, {"topic": topic, "producer_id": next(ids)}
        for subscription in ("initial", "audit"):
            yield f"PRODUCER with subscription {subscription} to {name}", T.PRODUCER, {
                "topic": topic, "producer_id": next(ids), "initial_subscription_name": subscription}
    yield "GET_OR_CREATE_SCHEMA", T.GET_OR_CREATE_SCHEMA, {"topic": f"persistent://{namespace}/plain", "schema": schema}
    yield "GET_TOPICS_OF_NAMESPACE", T.GET_TOPICS_OF_NAMESPACE, {"namespace": namespace}
    yield "WATCH_TOPIC_LIST", T.WATCH_TOPIC_LIST, {"namespace": namespace, "topics_pattern": ".*", "watcher_id": 1}


def over_binary(broker: Broker) -> Iterator[tuple[str, str, str]]:
    """Send each command in each role; yield (name, role, outcome)."""
    for mode in ("", "with subscriptionAuthMode"):
        namespace = broker.place(with_parted=True)
        path = f"/admin/v2/namespaces/{namespace}"
        changes = [("POST", f"{path}/permissions/subscription/audit", ["auditor", "namespace-consumer"])]
        if mode:
            changes.append(("POST", f"{path}/subscriptionAuthMode", "Prefix"))
        else:
            changes += [("POST", f"{path}/permissions/{role}", ["produce", "consume"]) for role in ("proxy", "both")]
        for change in changes:
            status, text = broker.ask("admin", *change)
            assert status < 300, (change, status, text)
        people = [(role, "") for role in ROLES] + [("proxy", original)
                                                   for original in ("", "both", "nobody", "admin", "proxy")]
        for role, original in people + [("nobody", "admin"), ("admin", "admin")]:
            connection = Connection(broker, role, original)
            who = f"{role} for {original}" if original else role
            yield f"CONNECT {mode}", who, connection.connected
            if connection.connected == "allowed":
                for name, kind, fields in commands(namespace):
                    found = connection.ask(kind, **fields)
                    yield f"{name} {mode}", who, found.replace(namespace, "NAMESPACE")
                    if found == "closed":
                        connection = Connection(broker, role, original)
            connection.close()


# -- both

def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--key", type=Path, required=True, help="file of the secret key that both know")
    parser.add_argument("--only", default="", help="what contains this text")
    parser.add_argument("urls", nargs=4, metavar="URL")
    options = parser.parse_args()
    key = options.key.read_bytes()
    brokers = [Broker(http_url, service_url, key)
               for http_url, service_url in zip(options.urls[::2], options.urls[1::2], strict=True)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        theirs, ours = pool.map(lambda broker: _all(broker, options.only), brokers)
    return _report(theirs, ours)


def _all(broker: Broker, only: str) -> dict[tuple[str, str], str]:
    """Return {(question, role): outcome}."""
    asked = [one for one in questions() if only in " ".join(one)]
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = pool.map(lambda one: list(over_http(broker, one)), asked)
    found = {(" ".join(one), role): became for one, some in zip(asked, answers, strict=True) for role, became in some}
    return found | {(what.strip(), role): became for what, role, became in over_binary(broker) if only in what}


def _report(theirs: dict[tuple[str, str], str], ours: dict[tuple[str, str], str]) -> int:
    path = HERE / "rights-reasons.txt"
    reasons = [line for line in path.read_text().splitlines() if line and not line.startswith((" ", "#"))]
    unexplained = explained = 0
    for what, role in theirs:
        before, after = theirs[what, role], ours.get((what, role), "not asked")
        if before == after or "none" in (before, after):
            continue
        kind = "text of " if before.partition(":")[0] == after.partition(":")[0] else ""
        if any(fnmatch.fnmatchcase(f"{kind}{what} as {role}", reason) for reason in reasons):
            explained += 1
            continue
        unexplained += 1
        print(f"{what} as {role}\n    {before}\n    {after}")
    print(
        f"{len(theirs)} questions, {explained} answered differently for a reason that is known, {unexplained} for none",
        file=sys.stderr,
    )
    return int(unexplained > 0)


if __name__ == "__main__":
    sys.exit(main())

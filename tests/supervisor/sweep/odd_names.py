"""What a broker answers to odd names of tenants, namespaces, clusters, topics and subscriptions, over every way in.

    python -m tests.supervisor.sweep.odd_names HTTP_URL SERVICE_URL > answers.json

odd_names.json has the answers of Apache Pulsar 4.0.7, with webSocketServiceEnabled and transactionCoordinatorEnabled,
on an empty data folder. `tests/supervisor/test_odd_names.py` compares with them. Answers are statuses over HTTP, and
over the binary protocol names of errors, "ok", "closed" and "silence". Each way has a namespace of its own, so that no
way finds what another one has created.
"""
import http.client
import json
import sys
from collections.abc import Callable, Iterable
from urllib.parse import quote, urlsplit

from geminga.proto import pulsar_api_pb2 as api

from ...harness import HANG_SECONDS
from ...proto.client_frames import T, command, field_of
from ...workers.peer import Closed, Peer

BLANKS = (" ", "  ", "\t", "\n", "\r", "\x0b", "\x1f", "\x85", "\u00a0", "\u2003", "\u2028", "\u3000", "\u200b",
          "\ufeff")
AROUND = (" a", "a ", "a b", "a\tb", "a\nb", "\u3000a")
SIGNS = (*".-=:_~@$!^|\"'<>,;&+*?#%\\()[]{}", "..", "a.b", "a:b", "a=b", "a_b", "a,b", "a;b", "a&b", "a+b", "a?b",
         "a#b", "a%b", "a%20b", "a\\b", "a|b", "a*b", "\x7f", "a\x01b")
LETTERS = ("é", "ключ", "日本", "🔑", "٣", "A", "0", "x" * 200)
PATHS = ("a/b", "/", "a/", "//", "persistent://x/y/z", "public/default/x")
PARTS = ("a-partition-0", "a-partition-00", "a-partition--1", "-partition-0", " -partition-0", "a-partition-",
         "a-partition-x", "a-partition-2147483648", "a-partition-0-partition-1", "A-PARTITION-0")
SYSTEM = ("__change_events", "__transaction_buffer_snapshot", "a__transaction_pending_ack", "pulsar.repl.x",
          "pulsar.dedup", "__compaction", "null")
NAMES = (*BLANKS, *AROUND, *SIGNS, *LETTERS, *PATHS, *PARTS, *SYSTEM)
TENANT = "odd"
SILENT_SECONDS = 5      # Pulsar answers some commands never


def _put(path: str, body: object = None) -> tuple[str, str, object]:
    return "PUT", "/admin/v2/" + path, body


def _get(path: str) -> tuple[str, str, object]:
    return "GET", path, None


# {way: (method, path, body)}: {name} is the odd name, {ns} a namespace of the way's own.
REQUESTS: dict[str, tuple[str, str, object]] = {
    "PUT tenant": _put("tenants/{name}", {"allowedClusters": ["standalone"]}),
    "GET tenant": _get("/admin/v2/tenants/{name}"),
    "PUT namespace": _put("namespaces/" + TENANT + "/{name}"),
    "PUT namespace of an odd tenant": _put("namespaces/{name}/ns"),
    "GET topics of an odd namespace": _get("/admin/v2/persistent/" + TENANT + "/{name}"),
    "PUT cluster": _put("clusters/{name}", {"serviceUrl": "http://far:8080", "brokerServiceUrl": "pulsar://far:6650"}),
    "PUT topic": _put("persistent/" + TENANT + "/{ns}/{name}"),
    "PUT non-persistent topic": _put("non-persistent/" + TENANT + "/{ns}/{name}"),
    "PUT partitioned topic": _put("persistent/" + TENANT + "/{ns}/{name}/partitions", 2),
    "PUT non-persistent partitioned topic": _put("non-persistent/" + TENANT + "/{ns}/{name}/partitions", 2),
    "PUT topic in an odd namespace": _put("persistent/" + TENANT + "/{name}/t"),
    "PUT topic of an odd tenant": _put("persistent/{name}/ns/t"),
    "GET partitions": _get("/admin/v2/persistent/" + TENANT + "/{ns}/{name}/partitions"),
    "GET stats": _get("/admin/v2/persistent/" + TENANT + "/{ns}/{name}/stats"),
    "GET lookup": _get("/lookup/v2/topic/persistent/" + TENANT + "/{ns}/{name}"),
    "GET schema": _get("/admin/v2/schemas/" + TENANT + "/{ns}/{name}/schema"),
    "PUT subscription": _put("persistent/" + TENANT + "/{ns}/t/subscription/{name}"),
    "PUT subscription of an odd topic": _put("persistent/" + TENANT + "/{ns}/{name}/subscription/s"),
    "POST message TTL of an odd topic": (
        "POST", "/admin/v2/persistent/" + TENANT + "/{ns}/{name}/messageTTL?messageTTL=9", None),
    "GET transactions in a topic (v3)": _get("/admin/v3/transactions/pendingAckStats/" + TENANT + "/{ns}/{name}/s"),
    "POST message over HTTP": ("POST", "/topics/persistent/" + TENANT + "/{ns}/{name}",
                               {"valueSchema": '{"name":"","schema":"","type":"STRING","properties":{}}',
                                "messages": [{"payload": "x"}]}),
    "WebSocket producer": _get("/ws/v2/producer/persistent/" + TENANT + "/{ns}/{name}"),
    "WebSocket consumer": _get("/ws/v2/consumer/persistent/" + TENANT + "/{ns}/t/{name}"),
    "WebSocket reader": _get("/ws/v2/reader/persistent/" + TENANT + "/{ns}/{name}"),
}
# {way: (command, its fields)}
COMMANDS: dict[str, tuple[int, dict]] = {
    "PARTITIONED_METADATA": (T.PARTITIONED_METADATA, {"topic": "persistent://odd/{ns}/{name}"}),
    "LOOKUP": (T.LOOKUP, {"topic": "persistent://odd/{ns}/{name}"}),
    "PRODUCER": (T.PRODUCER, {"topic": "persistent://odd/{ns}/{name}", "producer_id": 1}),
    "PRODUCER, non-persistent": (T.PRODUCER, {"topic": "non-persistent://odd/{ns}/{name}", "producer_id": 1}),
    "PRODUCER in an odd namespace": (T.PRODUCER, {"topic": "persistent://odd/{name}/t", "producer_id": 1}),
    "PRODUCER of an odd name": (T.PRODUCER, {"topic": "persistent://odd/{ns}/t", "producer_id": 1,
                                             "producer_name": "{name}"}),
    "SUBSCRIBE": (T.SUBSCRIBE, {"topic": "persistent://odd/{ns}/{name}", "subscription": "s", "subType": 0,
                                "consumer_id": 1}),
    "SUBSCRIBE with an odd subscription": (T.SUBSCRIBE, {"topic": "persistent://odd/{ns}/t", "subscription": "{name}",
                                                         "subType": 0, "consumer_id": 1}),
    "GET_SCHEMA": (T.GET_SCHEMA, {"topic": "persistent://odd/{ns}/{name}"}),
    "GET_TOPICS_OF_NAMESPACE": (T.GET_TOPICS_OF_NAMESPACE, {"namespace": "odd/{name}"}),
}


def played(http_url: str, service_url: str, names: Iterable[str] = NAMES) -> dict[str, dict[str, str]]:
    """Return {way: {name: answer}} of one broker, in which the tenant `odd` does not exist yet."""
    where = urlsplit(http_url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=HANG_SECONDS)

    def ask(method: str, path: str, body: object = None) -> str:
        return _asked(connection, method, path, body)

    assert ask("PUT", f"/admin/v2/tenants/{TENANT}", {"allowedClusters": ["standalone"]}) == "204"
    found: dict[str, dict[str, str]] = {}
    for number, (way, (method, path, body)) in enumerate(REQUESTS.items()):
        namespace = f"rest-{number}"
        _prepare(ask, namespace)
        filled = path.replace("{ns}", namespace)
        found[way] = {name: ask(method, filled.replace("{name}", quote(name, safe="")), body) for name in names}
    for number, (way, (kind, fields)) in enumerate(COMMANDS.items()):
        namespace = f"wire-{number}"
        _prepare(ask, namespace)
        found[way] = {name: _told(service_url, kind, fields, namespace, name) for name in names}
    connection.close()
    return found


def _prepare(ask: Callable[..., str], namespace: str) -> None:
    assert ask("PUT", f"/admin/v2/namespaces/{TENANT}/{namespace}") == "204"
    assert ask("PUT", f"/admin/v2/persistent/{TENANT}/{namespace}/t") == "204"


def _asked(connection: http.client.HTTPConnection, method: str, path: str, body: object) -> str:
    """Return the status that answers a request."""
    headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
               "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="} if path.startswith("/ws/") else {}
    data = None if body is None else json.dumps(body).encode()
    try:
        connection.request(method, path, data, headers | ({"Content-Type": "application/json"} if data else {}))
        answer = connection.getresponse()
        if answer.status != 101:
            answer.read()
        else:
            connection.close()
        return str(answer.status)
    except (http.client.HTTPException, ConnectionError):
        connection.close()
        return "closed"


def _told(service_url: str, kind: int, fields: dict, namespace: str, name: str) -> str:
    """Return how a command is answered: "ok", the name of an error, or "closed"."""
    filled = {field: value.replace("{ns}", namespace).replace("{name}", name) if isinstance(value, str) else value
              for field, value in fields.items()}
    with Peer(service_url) as peer:
        peer.socket.settimeout(SILENT_SECONDS)
        try:
            if "topic" in filled:      # a broker of Pulsar serves a topic only after its lookup
                peer.say(command(T.LOOKUP, request_id=6, topic=filled["topic"]))
                peer.hear()
            peer.say(command(kind, request_id=7, **filled))
            heard = peer.hear()
        except Closed:
            return "closed"
        except TimeoutError:
            return "silence"
    said = getattr(heard, field_of(heard.type))
    for field in ("error", "error_code"):
        if field in said.DESCRIPTOR.fields_by_name and said.HasField(field):
            return api.ServerError.Name(getattr(said, field))
    return "ok"


def as_text(found: dict[str, dict[str, str]]) -> str:
    """Return answers as the recorded file has them: {way: {"": the most frequent answer, other answer: [names]}}."""
    lines = []
    for way, answers in found.items():
        most = max(sorted(set(answers.values())), key=[*answers.values()].count)
        others = {answer: [name for name in answers if answers[name] == answer]
                  for answer in sorted(set(answers.values()) - {most})}
        told = [f'"": {json.dumps(most)}', *(f"{json.dumps(answer)}: {json.dumps(some)}"
                                              for answer, some in others.items())]
        lines.append(f"{json.dumps(way)}: {{\n  " + ",\n  ".join(told) + "}")
    return "{" + ",\n".join(lines) + "}\n"


def recorded(text: str) -> dict[str, dict[str, str]]:
    """Return {way: {name: answer}} of answers in the form of `as_text`."""
    found = {}
    for way, told in json.loads(text).items():
        found[way] = dict.fromkeys(NAMES, told.pop(""))
        found[way].update({name: answer for answer, some in told.items() for name in some})
    return found


if __name__ == "__main__":
    print(as_text(played(*sys.argv[1:])), end="")

"""Functions of verbs that send more than one request, or that build JSON from several options."""
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from geminga.proto.json_object import JsonObject
from geminga.storage.runtime import units
from geminga.supervisor.cli.admin.verb import Values
from geminga.supervisor.cli.output import Failed
from geminga.workers.pulsar_client.rest import REFUSED, Broker, Refused, plain, quoted, subscription_path

_POLL_SECONDS = 0.2
_NOT_FOUND, _NOT_ALLOWED, _NO_ENTRY = 404, 405, (404, 412)      # the last: the topic is partitioned; no entry
EARLIEST = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1, "batchIndex": -1}
LATEST = {"ledgerId": (1 << 63) - 1, "entryId": (1 << 63) - 1, "partitionIndex": -1, "batchIndex": -1}
_TIMES = ("from", "to", "deliver_at", "publish_time")      # fields of rows about delayed messages


def position_of(text: str) -> dict[str, int]:
    """Return a message id as JSON, from earliest, latest or LEDGER:ENTRY[:PARTITION[:BATCH]].  Raises ValueError."""
    if text in ("earliest", "latest"):
        return EARLIEST if text == "earliest" else LATEST
    try:
        ids = [int(part) for part in text.split(":")]
    except ValueError:
        ids = []
    if not 2 <= len(ids) <= 4:
        raise ValueError(f"{text!r} is no message id: earliest, latest or LEDGER:ENTRY, such as 12:0")
    return dict(zip(EARLIEST, [*ids, -1, -1][:4], strict=True))


def list_topics(below: str) -> Callable[[Broker, Values], list[str]]:
    """Return a function that lists persistent and non-persistent topics, or those of the wanted kind.

    below: end of the path.
    """
    def run(broker: Broker, values: Values) -> list[str]:
        asked = values.get("topic_domain")
        query = {"includeSystemTopic": values["include_system_topic"]}
        if values.get("bundle"):
            query["bundle"] = values["bundle"]
        return [name for domain in ("persistent", "non-persistent") if asked in (None, domain.replace("-", "_"))
                for name in broker.ask("GET", f"/admin/v2/{domain}/{values['namespace']}{below}", query).value()]
    return run


def list_scalable(broker: Broker, values: Values) -> list[str]:
    """Return the names of a namespace's scalable topics that have all wanted properties."""
    wanted = "&".join(f"property={quoted(f'{name}={value}')}" for name, value in (values["property"] or {}).items())
    path = f"/admin/v2/scalable/{values['namespace']}"
    topics: list[str] = broker.ask("GET", f"{path}?{wanted}" if wanted else path).value()
    return topics


def seek_scalable(broker: Broker, values: Values) -> None:
    """Move a subscription of a scalable topic to a time, so many ms ago."""
    path = f"/admin/v2/scalable/{values['scalable_topic']}/subscriptions/{quoted(values['subscription'])}/seek"
    broker.ask("POST", path, {"timestamp": max(0, int(time.time() * 1000) - values["time"])})


def lookup_partitions(broker: Broker, values: Values) -> JsonObject:
    topic = values["topic"]
    count = broker.ask("GET", f"/admin/v2/{topic}/partitions").value()["partitions"]
    if not count:
        raise Refused(404, "The topic has no partitions")
    domain, _, rest = topic.partition("/")
    names = [f"{rest}-partition-{index}" for index in range(count)]
    urls = {f"{domain}://{name}": broker.ask("GET", f"/lookup/v2/topic/{domain}/{name}").value()["brokerUrl"]
            for name in names}
    if not values["sort_by_broker"]:
        return urls
    return {url: [name for name, its in urls.items() if its == url] for url in sorted(set(urls.values()))}


def partition_of_key(broker: Broker, values: Values) -> list[JsonObject]:
    from geminga.workers.pulsar_client import key_hashing
    count = broker.ask("GET", f"/admin/v2/{values['topic']}/partitions").value()["partitions"]
    if not count:
        raise Refused(404, "The topic has no partitions")
    if not values["message_key"]:
        raise ValueError("messages without a key go to all partitions in turn")
    return key_hashing.partitions_of(values["message_key"], count, values["client"])


def new_subscription(values: Values) -> JsonObject:
    more = {"properties": values["property"], "excluded": False} if values["property"] else {}
    return position_of(values["messageId"]) | more


def is_enabled(values: Values) -> bool:
    if values["enable"] == values["disable"]:
        raise ValueError("give --enable or --disable")
    return bool(values["enable"])


_PULSARS_GRANULARITY_MS, _PULSARS_TICK_MS = 300_000, 1_000      # defaults of PIP-26


def enable_delays(broker: Broker, values: Values) -> None:
    """Enable delayed delivery, and keep the other fields of the policy.

    Without options, granularity and tick are the defaults of PIP-26.
    """
    path, policy = _delays_of(broker, values)
    granularity, tick = values["time_partition_granularity"], values["tick_duration"]
    if granularity is None and tick is None:
        granularity, tick = _PULSARS_GRANULARITY_MS, _PULSARS_TICK_MS
    if granularity is None:
        granularity = policy.get("timePartitionGranularityInMillis", _PULSARS_GRANULARITY_MS)
    tick = (policy.get("tickTime") or _PULSARS_TICK_MS) if tick is None else tick
    changes = {"active": True, "tickTime": tick, "timePartitionGranularityInMillis": granularity}
    broker.ask("POST", path, body=policy | changes)


def disable_delays(broker: Broker, values: Values) -> None:
    path, policy = _delays_of(broker, values)
    broker.ask("POST", path, body=policy | {"active": False})


def _delays_of(broker: Broker, values: Values) -> tuple[str, JsonObject]:
    where = f"namespaces/{values['namespace']}" if "namespace" in values else values["policies_topic"]
    path = f"/admin/v2/{where}/delayedDelivery"
    return path, broker.ask("GET", path).value() or {}


def compaction_status(broker: Broker, values: Values) -> JsonObject:
    """Return the state of a topic's last compaction, after its end with --wait-complete.

    Raises Failed if it failed, as pulsar-admin fails then too.
    """
    topic = values["topic"] if "topic" in values else f"scalable/{values['scalable_topic']}"
    while True:
        state: JsonObject = broker.ask("GET", f"/admin/v2/{topic}/compaction").value()
        if state["status"] != "RUNNING" or not values["wait_complete"]:
            break
        time.sleep(_POLL_SECONDS)
    if state["status"] == "ERROR":
        raise Failed(REFUSED, f"The last compaction failed: {state['lastError']}")
    return state


def reset_cursor(broker: Broker, values: Values) -> None:
    at_ms = None if values["time"] is None else int(time.time() * 1_000) - values["time"]
    _move(broker, values, "resetcursor", values["messageId"], at_ms, "give --time or --messageId")


def expire(broker: Broker, values: Values) -> None:
    _move(broker, values, "expireMessages", values["position"], values["expireTime"], "give --expireTime or --position")


def _move(broker: Broker, values: Values, verb: str, message: str | None, time: int | None,
          missing: str) -> None:
    """Move a subscription to a message, or by a time."""
    where = f"/admin/v2/{values['topic']}/subscription/{subscription_path(values['subscription'])}/{verb}"
    if message:
        broker.ask("POST", where, body=position_of(message) | {"excluded": values["exclude_reset_position"]})
    elif time is not None:
        broker.ask("POST", f"{where}/{time}")
    else:
        raise ValueError(missing)


def message_id_at(broker: Broker, values: Values) -> Any:
    from datetime import datetime
    try:
        when = datetime.fromisoformat(values["datetime"])
    except ValueError:
        raise ValueError(f"{values['datetime']!r} is no time such as 2026-01-31T12:00:00Z") from None
    return broker.ask("GET", f"/admin/v2/{values['topic']}/messageid/{int(when.timestamp() * 1_000)}").value()


def readable_times(answer: JsonObject) -> JsonObject:
    """Return an answer about delayed messages with its times in ISO 8601 instead of ms."""
    rows = [{name: units.instant(value) if name in _TIMES else value for name, value in row.items()}
            for row in answer["rows"]]
    due_ms = answer["next_due_at"]
    return answer | {"next_due_at": due_ms if due_ms is None else units.instant(due_ms), "rows": rows}


def new_time(values: Values) -> dict[str, str]:
    if (values["at"] is None) == (values["after"] is None):
        raise ValueError("give --at or --after")
    return {"deliver_at": values["at"] if values["after"] is None else f"{values['after'] // 1_000}s"}


_OF_CLUSTERS = {
    "url": "serviceUrl", "url_secure": "serviceUrlTls", "broker_url": "brokerServiceUrl",
    "broker_url_secure": "brokerServiceUrlTls", "tls_enable": "brokerClientTlsEnabled",
    "tls_trust_certs_filepath": "brokerClientTrustCertsFilePath", "tls_allow_insecure": "tlsAllowInsecureConnection",
    "auth_plugin": "authenticationPlugin", "auth_parameters": "authenticationParameters",
    "listener_name": "listenerName"}


def cluster_record(values: Values) -> JsonObject:
    """Return a cluster's record, with the fields that options set."""
    return {field: values[option] for option, field in _OF_CLUSTERS.items() if values[option]}


def create_tenant(broker: Broker, values: Values) -> None:
    """Create a tenant, which may use all clusters unless the options name some."""
    clusters = values["allowed_clusters"] or broker.ask("GET", "/admin/v2/clusters").value()
    broker.ask("PUT", f"/admin/v2/tenants/{values['tenant']}",
               body={"adminRoles": values["admin_roles"], "allowedClusters": clusters})


def update_tenant(broker: Broker, values: Values) -> None:
    """Update a tenant; fields that no option sets keep their values."""
    path = f"/admin/v2/tenants/{values['tenant']}"
    new = {"adminRoles": values["admin_roles"], "allowedClusters": values["allowed_clusters"]}
    if not all(new.values()):
        new = broker.ask("GET", path).value() | {name: value for name, value in new.items() if value}
    broker.ask("POST", path, body=new)


def new_namespace(values: Values) -> JsonObject:
    bundles = {"numBundles": values["bundles"]} if values["bundles"] else None
    fields = {"replication_clusters": values["clusters"], "bundles": bundles}
    return {name: value for name, value in fields.items() if value}


def schema_file(values: Values) -> JsonObject:
    try:
        with open(values["filename"], encoding="utf-8") as file:
            schema: JsonObject = json.load(file)
    except (ValueError, RecursionError) as error:
        why = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else f"it is no JSON: {error}"
        raise ValueError(f"{values['filename']}: {why}") from None
    return schema


def get_schema(broker: Broker, values: Values) -> Any:
    where = f"/admin/v2/schemas/{values['schema_topic']}/schema"
    if values["all_version"]:
        return broker.ask("GET", where + "s").value()
    return broker.ask("GET", where + ("" if values["version"] is None else f"/{values['version']}")).value()


def peek(broker: Broker, values: Values) -> Iterator[Any]:
    """Iterate over the next messages in a subscription's backlog, of a partitioned topic one partition after the other.

    Each request to the broker is for one entry.
    """
    topic, left = values["topic"], values["count"]
    # Without one, Pulsar shows all messages.
    subscriptions = broker.ask("GET", f"/admin/v2/{topic}/subscriptions").value()
    if values["subscription"] not in subscriptions:
        raise Refused(_NOT_FOUND, f"Subscription {plain(values['subscription'])} not found")
    try:
        yield from _peek(broker, topic, values["subscription"], left)
        return
    except Refused as refused:
        if refused.status != _NOT_ALLOWED:
            raise
    for number in range(broker.ask("GET", f"/admin/v2/{topic}/partitions").value()["partitions"]):
        for message in _peek(broker, f"{topic}-partition-{number}", values["subscription"], left):
            yield message
            left -= 1
        if not left:
            return


def _peek(broker: Broker, topic: str, subscription: str, left: int) -> Iterator[Any]:
    from geminga.supervisor.cli.admin import messages
    where = f"/admin/v2/{topic}/subscription/{subscription_path(subscription)}/position"
    for position in range(1, left + 1):
        try:
            answer = broker.ask("GET", f"{where}/{position}")
        except Refused as refused:
            if refused.status in _NO_ENTRY:
                return      # the backlog has fewer entries, or the partition was never used
            raise
        for message in messages.read(answer)[:left]:
            yield message
            left -= 1
        if not left:
            return


def read_entry(path: str, *query: tuple[str, str]) -> Callable[[Broker, Values], Iterator[Any]]:
    """Return a function that asks the broker for one entry and yields its messages.

    query: pairs (parameter of the request, name of the option's value).
    """
    def run(broker: Broker, values: Values) -> Iterator[Any]:
        from geminga.supervisor.cli.admin import messages
        yield from messages.read(broker.ask("GET", "/admin/v2/" + path.format_map(values),
                                            {name: values[key] for name, key in query}))
    return run


def ask_bundle(broker: Broker, values: Values, what: str, method: str = "PUT") -> None:
    """Send a request about a namespace, or about one of its bundles if --bundle is given."""
    bundle = f"/{quoted(values['bundle'])}" if values["bundle"] else ""
    broker.ask(method, f"/admin/v2/namespaces/{values['namespace']}{bundle}/{what}")


def clear_backlog(broker: Broker, values: Values) -> None:
    if not values["force"]:
        from click import confirm
        confirm("Skip all these messages?", abort=True)
    ask_bundle(broker, values, "clearBacklog" + (f"/{quoted(values['sub'])}" if values["sub"] else ""), "POST")

"""Shell completion of what a broker knows: tenants, namespaces, topics, clusters, subscriptions, connections."""
import functools
from collections.abc import Callable
from typing import Any

import click

from geminga.supervisor.configuration import contexts, target
from geminga.workers.pulsar_client.rest import Broker, NotReachable, Refused, quoted, topic_path

_TIMEOUT_S = 0.5         # a shell waits for its completions
_ADDRESSES = {"url", "admin_url"}      # parameters of commands that talk to a broker
_PARTITION = "-partition-"
_PARTS = {"tenant": 1, "namespace": 2}      # parts of a name; 3 for all others


_Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _at_once(complete: _Complete) -> _Complete:
    """Decorate a completion: it has nothing to offer if the broker does not answer at once."""
    @functools.wraps(complete)
    def offered(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
        try:
            return [name for name in complete(context, parameter, typed) if name.startswith(typed)]
        except (Refused, NotReachable, click.UsageError, ValueError):
            return []
    return offered


@_at_once
def complete_name(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Return names for the argument `tenant`, `namespace`, `cluster`, or else of a topic."""
    broker, parts = _broker(context), _PARTS.get(parameter.name or "", 3)
    if parameter.name == "cluster":
        return list(broker.ask("GET", "/admin/v2/clusters").value())
    return _names(broker, typed, parts) if parts < 3 else _topics(broker, typed)


@_at_once
def complete_topic(context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """Return names of topics; a text without a slash may also begin the name of a topic in public/default."""
    return _topics(_broker(context), typed)


def _topics(broker: Broker, typed: str) -> list[str]:
    topics = _names(broker, typed, 3)
    if "/" not in typed:
        prefix = "public/default/"
        topics += [name.removeprefix(prefix) for name in _names(broker, prefix + typed, 3)]
    return topics


@_at_once
def complete_subscription(context: click.Context, _parameter: click.Parameter, _typed: str) -> list[str]:
    """Return names of the subscriptions of the topic that the argument `topic`, or the first of `topics`, names."""
    topics = context.params.get("topics") or ()
    path = topic_path(context.params.get("topic") or "".join(topics[:1]))
    return sorted({row["subscription"] for row in _rows(context, f"subscriptions/{path}")})


@_at_once
def complete_transaction(context: click.Context, _parameter: click.Parameter, _typed: str) -> list[str]:
    """Return ids of open transactions, such as 0,17."""
    return [row["transaction"].strip("()") for row in _rows(context, "transactions")]


@_at_once
def complete_address(context: click.Context, _parameter: click.Parameter, _typed: str) -> list[str]:
    """Return addresses of connected clients, such as 10.0.0.7:51450."""
    return [row["address"] for row in _rows(context, "clients")]


def _rows(context: click.Context, table: str) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = _broker(context).ask("GET", f"/ops/v1/{table}").value()["rows"]
    return rows


def _broker(context: click.Context) -> Broker:
    """Return the broker that the options of a command, or of a group above it, name.  Raises UsageError."""
    inner: click.Context | None = context
    while inner is not None and _ADDRESSES.isdisjoint(inner.params):
        inner = inner.parent
    params = inner.params if inner is not None else {}
    values: dict[str, Any] = {option.name or "": params.get(option.name or "") for option in target.admin_parameters()}
    try:
        if params.get("url") and not params.get("admin_url"):
            values["admin_url"] = contexts.with_addresses({"url": params["url"]})["admin_url"]
        with context.scope(cleanup=False):
            return target.of(values).broker(timeout_s=_TIMEOUT_S)
    except (target.NoDefaults, contexts.Unusable, ValueError) as error:
        raise click.UsageError(str(error)) from None


def _names(broker: Broker, typed: str, parts: int) -> list[str]:
    """Return completions of the typed text for names of `parts` parts separated by slashes.

    Only one part is completed at a time. If one name alone matches that part, the next part is completed too.
    Partitions are named only where the text begins a partition's number.
    """
    *above, _ = typed.split("/")
    place = "/".join(map(quoted, above))
    path = ("tenants", f"namespaces/{place}", f"persistent/{place}")[min(len(above), 2)]
    names = _listed(broker, path)
    if len(above) >= 2 and _PARTITION not in typed:
        partitioned = _listed(broker, path + "/partitioned")
        names = partitioned + [name for name in names if name.rpartition(_PARTITION)[0] not in partitioned]
    matches = [name for name in names if name.startswith(typed)]
    if len(above) + 1 == parts:
        return matches
    return _names(broker, matches[0] + "/", parts) if len(matches) == 1 else [name + "/" for name in matches]


def _listed(broker: Broker, path: str) -> list[str]:
    return [name.rpartition("://")[2] for name in broker.ask("GET", f"/admin/v2/{path}").value()]

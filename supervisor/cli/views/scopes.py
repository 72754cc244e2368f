"""Scopes that a table is about: everything, a namespace, a topic, or a pattern of topics."""
from typing import Any, NamedTuple

from geminga.supervisor.cli.missing_names import DEFAULT_NAMESPACE, unknown
from geminga.workers.pulsar_client.rest import Broker, Refused, namespace_path, topic_path

_WILDCARDS = frozenset("*?[")


class Scope(NamedTuple):
    """The topics that a table shows: all of them, a namespace, one topic, or a pattern."""

    text: str              # as it was typed
    path: str              # behind /ops/v1/TABLE
    match: str             # wildcards

    @property
    def query(self) -> dict[str, str]:
        return {"match": self.match} if self.match else {}


def scope_of(text: str | None) -> Scope:
    """Return the scope that an argument names.  Raises ValueError.

    `orders` is a topic, `acme/eu` a namespace, `acme/eu/orders` a topic, and `orders-*`, `acme/eu/*-dead`, `*/eu/*`
    are patterns.
    """
    if text is None:
        return Scope("", "", "")
    name = text.rpartition("://")[2]
    parts = name.split("/")
    if _WILDCARDS.isdisjoint(name):
        path = namespace_path(text) if len(parts) == 2 and name == text else topic_path(text)
        return Scope(text, "/" + path, "")
    if len(parts) > 3:
        raise ValueError(f"{text!r} is no pattern of topics: [TENANT/NAMESPACE/]TOPIC, with * and ?")
    if len(parts) == 1:
        parts = [*DEFAULT_NAMESPACE.split("/"), *parts]
    if len(parts) == 2:
        parts.append("*")
    namespace = "/".join(parts[:2])
    if _WILDCARDS.isdisjoint(namespace):
        return Scope(text, "/" + namespace_path(namespace), parts[2])
    return Scope(text, "", "/".join(parts))


def ask(broker: Broker, method: str, path: str, scope: Scope, query: dict[str, Any] | None = None) -> Any:
    """Send a request about a scope, and return the answer's value.  Raises Unknown, Refused, NotReachable."""
    try:
        return broker.ask(method, path, query).value()
    except Refused as refused:
        if refused.status != 404 or not scope.text:
            raise
        raise unknown(broker, scope.text, refused) from None

"""Names that a broker does not have: which part of one is missing, and the names that are like it."""
from typing import NamedTuple

from geminga.storage.runtime.similar_names import question, question_of_topic
from geminga.workers.pulsar_client.rest import Broker, NotReachable, Refused, namespace_path, plain, quoted

DEFAULT_NAMESPACE = "public/default"      # of a topic whose name has no slash


class Unknown(Exception):
    """An error: there is no such topic, namespace or subscription; the text has the nearest names."""

    exit_status = 1


def unknown(broker: Broker, text: str, refused: Refused) -> Unknown:
    """Return the error for a name that the broker refused with 404, with names that are like it."""
    if (missing := _missing(broker, text)) is None:
        return Unknown(str(refused))
    hint = missing.hint or ("  geminga topics shows all." if missing.kind == "topic" else "")
    return Unknown(f"There is no {missing.kind} {plain(missing.name)}.{hint}")


def hint_for(broker: Broker, text: str) -> str:
    """Return a question such as "  Did you mean ...?" for a tenant, namespace or topic that does not exist, else ""."""
    missing = _missing(broker, text)
    return missing.hint if missing else ""


class _Missing(NamedTuple):
    kind: str      # of the first part of a name that does not exist
    name: str
    hint: str


def _missing(broker: Broker, text: str) -> _Missing | None:
    """Return what does not exist of a name's tenant, namespace and topic; None if all do."""
    parts = text.rpartition("://")[2].split("/")
    if len(parts) == 1:
        parts = [*DEFAULT_NAMESPACE.split("/"), *parts]
    tenants = listed(broker, "/admin/v2/tenants")
    if parts[0] not in tenants:
        return _Missing("tenant", parts[0], question(parts[0], tenants))
    namespace = "/".join(parts[:2])
    namespaces = listed(broker, f"/admin/v2/namespaces/{quoted(parts[0])}")
    if namespace not in namespaces:
        return _Missing("namespace", namespace, question(namespace, namespaces))
    topic, topics = "/".join(parts), topics_of(broker, namespace)
    if len(parts) < 3 or topic in topics:
        return None
    scalable = f"topic://{topic}"
    if text != scalable and scalable in listed(broker, f"/admin/v2/scalable/{namespace_path(namespace)}"):
        return _Missing("topic", topic, f"  Did you mean {scalable}?")
    locals_of = {name.removeprefix(f"{namespace}/") for name in topics}
    return _Missing("topic", topic, question_of_topic(topic, locals_of))


def topics_of(broker: Broker, namespace: str) -> list[str]:
    """Return the names of a namespace's topics, without domain and each partitioned topic once; [] if it is refused."""
    names: dict[str, None] = {}
    for domain in ("persistent", "non-persistent"):
        place = f"/admin/v2/{domain}/{namespace_path(namespace)}"
        names |= dict.fromkeys(listed(broker, place + "/partitioned") + listed(broker, place))
    short = [name.rpartition("://")[2] for name in names]
    whole = set(short)
    return list(dict.fromkeys(name for name in short if name.rpartition("-partition-")[0] not in whole))


def listed(broker: Broker, path: str) -> list[str]:
    """Return the names that the broker lists under a path; [] if it refuses."""
    try:
        value = broker.ask("GET", path).value()
    except (Refused, NotReachable):
        return []
    return value if isinstance(value, list) else []

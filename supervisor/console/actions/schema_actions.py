"""Actions on the schemas of topics: upload a version, delete all."""
import json
from typing import Any

from geminga.supervisor.console.actions.action import Actions, Field, Plan, Values, Wrong, command
from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.rendering import counted, text, topic_path
from geminga.supervisor.wording import human

actions = Actions()
_TYPES = ("AVRO", "JSON", "PROTOBUF", "PROTOBUF_NATIVE", "KEY_VALUE", "STRING", "BYTES", "BOOLEAN", "INT8", "INT16",
          "INT32", "INT64", "FLOAT", "DOUBLE", "DATE", "TIME", "TIMESTAMP")
_WITH_DEFINITION = _TYPES[:5]


def _path(topic: str) -> str:
    return f"/admin/v2/schemas/{topic_path(topic).partition('/')[2]}"


async def _versions(ask: Asking, topic: str) -> list[dict[str, Any]]:
    return list((await ask.get(f"{_path(topic)}/schemas"))["getSchemaResponses"])


@actions.named("upload-schema", "topic", Field("type", "choice", "AVRO", _TYPES),
               Field("schema", "area", is_required=False), Field("properties", is_required=False))
async def upload(ask: Asking, values: Values) -> Plan:
    topic, kind, definition = values["topic"], values["type"], values["schema"].strip()
    if kind in _WITH_DEFINITION and not definition:
        raise Wrong(text("action.upload-schema.empty"))
    body = {"type": kind, "schema": definition, "properties": _properties(values["properties"])}
    versions = await _versions(ask, topic)
    policies = await ask.maybe(f"/ops/v1/policies/{topic_path(topic)}") or []
    strategy = next((str(row["value"]) for row in policies if row["policy"] == "schemaCompatibilityStrategy"), "")
    effect = counted("action.upload-schema.effect", len(versions))
    if versions and strategy:
        effect += " " + text("action.upload-schema.checked", strategy=strategy)
    return Plan("POST", f"{_path(topic)}/schema", effect,
                command("admin", "schemas", "upload", human.short(topic), "-f", "schema.json"), body)


def _properties(typed: str) -> dict[str, str]:
    """Return properties that somebody typed as key=value with commas.  Raises Wrong."""
    pairs = [pair.partition("=") for pair in typed.split(",") if pair.strip()]
    if not all(separator and key.strip() for key, separator, _ in pairs):
        raise Wrong(text("action.upload-schema.pairs"))
    return {key.strip(): value.strip() for key, _, value in pairs}


@actions.named("delete-schema", "topic", is_dangerous=True)
async def delete(ask: Asking, values: Values) -> Plan:
    topic, versions = values["topic"], await _versions(ask, values["topic"])
    if not versions:
        raise Wrong(text("action.delete-schema.none"))
    return Plan("DELETE", f"{_path(topic)}/schema", counted("action.delete-schema.effect", len(versions)),
                command("admin", "schemas", "delete", human.short(topic)))


def pretty(definition: str) -> str:
    """Return the definition of a schema with a line for each of its parts, if it is JSON."""
    try:
        return json.dumps(json.loads(definition), indent=2, ensure_ascii=False)
    except ValueError:
        return definition

"""Actions on messages: publish one."""
import base64
import binascii
import json
import time
from typing import Any

from geminga.storage.runtime import units
from geminga.storage.schemas.registry import InvalidSchema
from geminga.supervisor.console.actions.action import Actions, Field, Plan, Values, Wrong, command, topic_named
from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.payloads import words
from geminga.supervisor.console.rendering import counted, text, topic_path
from geminga.supervisor.wording import human
from geminga.workers.messages import outgoing, schema_files

actions = Actions()
TEXT_MAX = 6_000             # characters of a payload, because the dialog's address has them
_FORMS = "text", "value", "base64", "null"


@actions.named("publish", "topic", Field("form", "choice", "text", _FORMS),
               Field("payload", "area", is_required=False), Field("key", is_required=False),
               Field("properties", "area", is_required=False), Field("delay", is_required=False))
async def publish(ask: Asking, values: Values) -> Plan:
    topic = topic_named(values["topic"])
    if len(values["payload"]) > TEXT_MAX:
        raise Wrong(text("action.publish.too_long"))
    body, size = await content(ask, topic, values)
    body |= about(values)
    subscriptions = await ask.maybe(f"/admin/v2/{topic_path(topic)}/subscriptions")      # None: only consumers see them
    told = {"topic": human.short(topic), "size": human.size(size)}
    if subscriptions:
        effect = counted("action.publish.effect", len(subscriptions), **told)
    else:
        effect = text("action.publish.effect_only" if subscriptions is None else "action.publish.effect_0", **told)
    if "deliverAfter" in body:
        due_ms = time.time_ns() // 1_000_000 + units.millis(body["deliverAfter"])
        effect += " " + text("action.publish.later", time=units.instant(due_ms))
    return Plan("POST", f"/ops/v1/messages/{topic_path(topic)}", effect, _command(topic, values, body), body)


async def content(ask: Asking, topic: str, values: Values) -> tuple[dict[str, Any], int]:
    """Return the fields of a body that say the payload, and its bytes.  Raises Wrong."""
    payload = values["payload"]
    match values["form"]:
        case "null":
            return {"isNull": True}, 0
        case "base64":
            try:
                return {"payloadBase64": payload.strip()}, len(base64.b64decode(payload.strip(), validate=True))
            except binascii.Error as error:
                raise Wrong(str(error)) from None
        case "value":
            try:
                value = json.loads(payload)
            except (ValueError, RecursionError) as error:
                raise Wrong(text("action.publish.no_json", reason=error)) from None
            return {"value": value}, len(await _encoded(ask, topic, value))
    return {"payload": payload}, len(payload.encode(errors="replace"))


async def _encoded(ask: Asking, topic: str, value: Any) -> bytes:
    """Return a value as the topic's newest schema encodes it.  Raises Wrong."""
    from geminga.workers.messages.schema_encoding import NotEncodable, SchemaEncoder  # slow to import
    schema = await ask.maybe(f"/admin/v2/schemas/{topic_path(topic).partition('/')[2]}/schema")
    if schema is None:
        raise Wrong(text("action.publish.no_schema"))
    try:
        definition = schema_files.of_parts(schema["type"], schema["data"], schema["properties"])
        return SchemaEncoder(definition).of_value(value).payload
    except (outgoing.Wrong, NotEncodable, InvalidSchema, ValueError) as error:
        raise Wrong(getattr(error, "message", str(error))) from None


def about(values: Values) -> dict[str, Any]:
    """Return the fields of a body about key, properties and, where the dialog has it, delay.  Raises Wrong."""
    fields: dict[str, Any] = {"key": values["key"]} if values["key"] else {}
    properties: dict[str, str] = {}
    for line in filter(None, map(str.strip, values["properties"].splitlines())):
        name, is_pair, value = line.partition("=")
        if not is_pair or not name:
            raise Wrong(text("action.publish.no_property", line=line))
        properties[name] = value
    if properties:
        fields["properties"] = properties
    if delay := values.get("delay", "").strip():
        try:
            units.millis(delay)
        except ValueError as error:
            raise Wrong(str(error)) from None
        fields["deliverAfter"] = delay
    return fields


def _command(topic: str, values: Values, body: dict[str, Any]) -> str:
    if "isNull" in body or "payloadBase64" in body:
        return f"echo {words(json.dumps(body))} | geminga produce {words(topic)} --jsonl -"
    options = options_of(body)
    options += ["--deliver-after", body["deliverAfter"]] if "deliverAfter" in body else []
    options += ["--schema"] if "value" in body else []
    return command("produce", human.short(topic), *options, *as_last(values["payload"]))


def as_last(payload: str) -> list[str]:
    """Return a payload as the last argument of a command: one that begins with - would be an option otherwise."""
    return ["--", payload] if payload.startswith("-") else [payload]


def options_of(body: dict[str, Any]) -> list[str]:
    """Return the options of a command for the key and the properties of a message."""
    options = [option for name, value in body.get("properties", {}).items() for option in ("-p", f"{name}={value}")]
    return options + (["-k", body["key"]] if "key" in body else [])

"""The messages of an entry, from the broker's answer."""
import json
from collections.abc import Iterator
from typing import Any

from geminga.supervisor.configuration import units
from geminga.supervisor.pulsar_client.rest import Answer, plain

_PREFIX = "x-pulsar-"


def read(answer: Answer) -> list[dict[str, Any]]:
    """The messages of an entry, a batch's in its order."""
    said = {name[len(_PREFIX):]: _text(value) for name, value in answer.headers.items() if name.startswith(_PREFIX)}
    common = {"id": said.get("message-id"), "publishTime": said.get("publish-time"), "eventTime": said.get("event-time"),
              "deliverAt": said.get("deliver-at-time"), "producer": said.get("producer-name"), "sequenceId": said.get("sequence-id"),
              "key": said.get("partition-key"), "orderingKey": said.get("base64-ordering-key"),
              "isEncrypted": True if said.get("is-encrypted") == "true" else None,
              "properties": json.loads(said.get("property") or "{}"), "payload": answer.body}
    if common["sequenceId"] is not None:
        common["sequenceId"] = int(common["sequenceId"])
    if "num-batch-message" in said and not common["isEncrypted"]:
        return [_known(common | {"id": f"{common['id']}:{index}"} | one) for index, one in enumerate(_unpacked(answer.body))]
    return [_known(common)]


def _known(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if value is not None}


def _text(header: str) -> str:
    """A header's text: UTF-8, though some write Latin-1."""
    raw = header.encode("latin-1")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return header


def _unpacked(batch: bytes) -> Iterator[dict[str, Any]]:
    """Four bytes of length, metadata and payload, for each message."""
    import base64

    from geminga.proto import pulsar_api_pb2 as api  # slow to import, so only for batches
    at = 0
    while at < len(batch):
        end = at + 4 + int.from_bytes(batch[at:at + 4])
        found = api.SingleMessageMetadata.FromString(batch[at + 4:end])
        at = end + found.payload_size
        yield {"key": found.partition_key if found.HasField("partition_key") else None,
               "orderingKey": base64.b64encode(found.ordering_key).decode() if found.HasField("ordering_key") else None,
               "eventTime": units.instant(found.event_time) if found.event_time else None,
               "sequenceId": found.sequence_id if found.HasField("sequence_id") else None,
               "properties": {each.key: each.value for each in found.properties}, "payload": batch[end:at]}


def as_json(message: dict[str, Any]) -> dict[str, Any]:
    """The payload as text if it is one, else in base64."""
    payload = _printable(message["payload"])
    if payload is not None:
        return message | {"payload": payload}
    import base64
    rest = {name: value for name, value in message.items() if name != "payload"}
    return rest | {"payloadBase64": base64.b64encode(message["payload"]).decode()}


def text(message: dict[str, Any]) -> str:
    """For people: names and values, then the payload, as hexadecimal numbers if it is no text."""
    named = {name: value for name, value in message.items() if name not in ("payload", "properties")}
    lines = [plain(f"{name:<12} {value}") for name, value in named.items()]
    lines += [plain(f"property     {name} = {value}") for name, value in message["properties"].items()]
    payload = _printable(message["payload"])
    return "\n".join([*lines, *([payload] if payload is not None else _hexadecimal(message["payload"]))])


def _printable(payload: bytes) -> str | None:
    try:
        found = payload.decode()
    except UnicodeDecodeError:
        return None
    return found if all(char.isprintable() or char in "\n\t\r" for char in found) else None


def _hexadecimal(payload: bytes) -> Iterator[str]:
    for at in range(0, len(payload), 16):
        row = payload[at:at + 16]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{at:08x}  {row.hex(' '):<47}  {shown}"

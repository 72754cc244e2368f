"""Reading of the messages of an entry from a broker's HTTP answer."""
import json
from collections.abc import Iterator
from typing import Any

from geminga.storage.runtime import units
from geminga.workers.messages.message import hexadecimal, printable, text_of, texts_of
from geminga.workers.pulsar_client.rest import Answer, plain

_PREFIX = "x-pulsar-"


def read(answer: Answer) -> list[dict[str, Any]]:
    """Return the messages of an entry; an entry that is a batch has several, in order."""
    fields = {name[len(_PREFIX):]: _text(value) for name, value in answer.headers.items() if name.startswith(_PREFIX)}
    common = {"id": fields.get("message-id"), "publishTime": fields.get("publish-time"),
              "eventTime": fields.get("event-time"), "deliverAt": fields.get("deliver-at-time"),
              "producer": fields.get("producer-name"), "sequenceId": fields.get("sequence-id"),
              "key": fields.get("partition-key"), "orderingKey": fields.get("base64-ordering-key"),
              "isEncrypted": True if fields.get("is-encrypted") == "true" else None,
              "properties": json.loads(fields.get("property") or "{}"), "payload": answer.body}
    if common["sequenceId"] is not None:
        common["sequenceId"] = int(common["sequenceId"])
    if "num-batch-message" in fields and not common["isEncrypted"]:
        return [_known(common | {"id": f"{common['id']}:{index}"} | message)
                for index, message in enumerate(_unpacked(answer.body))]
    return [_known(common)]


def _known(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if value is not None}


def _text(header: str) -> str:
    """Return a header's text as UTF-8, or as Latin-1 if it is not UTF-8."""
    raw = header.encode("latin-1")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return header


def _unpacked(batch: bytes) -> Iterator[dict[str, Any]]:
    """Iterate over the messages of a batch: for each, four bytes of length, metadata and payload."""
    import base64

    from geminga.proto import pulsar_api_pb2 as api  # slow to import, so only for batches
    at = 0
    while at < len(batch):
        end = at + 4 + int.from_bytes(batch[at:at + 4])
        single = api.SingleMessageMetadata.FromString(batch[at + 4:end])
        at = end + single.payload_size
        has_ordering_key = single.HasField("ordering_key")
        yield {"key": text_of(single.partition_key) if single.HasField("partition_key") else None,
               "orderingKey": base64.b64encode(single.ordering_key).decode() if has_ordering_key else None,
               "eventTime": units.instant(single.event_time) if single.event_time else None,
               "sequenceId": single.sequence_id if single.HasField("sequence_id") else None,
               "properties": texts_of(single.properties), "payload": batch[end:at]}


def as_json(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as a JSON object, with its payload as text if printable, else in base64."""
    payload = printable(message["payload"])
    if payload is not None:
        return message | {"payload": payload}
    import base64
    rest = {name: value for name, value in message.items() if name != "payload"}
    return rest | {"payloadBase64": base64.b64encode(message["payload"]).decode()}


def text(message: dict[str, Any]) -> str:
    """Return a message as text for people: names and values, then the payload.

    A payload that is not printable is shown in hexadecimal.
    """
    named = {name: value for name, value in message.items() if name not in ("payload", "properties")}
    lines = [plain(f"{name:<12} {value}") for name, value in named.items()]
    lines += [plain(f"property     {name} = {value}") for name, value in message["properties"].items()]
    payload = printable(message["payload"])
    return "\n".join([*lines, *([payload] if payload is not None else hexadecimal(message["payload"]))])

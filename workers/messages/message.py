"""A message as applications see it, as JSON, and as text for people."""
import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from geminga.storage.runtime import units
from geminga.workers.pulsar_client.rest import plain

UNDECODED = object()      # the value of a message that no schema decoded


@dataclass(slots=True)
class Message:
    """One message: a batch has several, and the chunks of a large one are joined."""

    topic: str                          # a partition's own name
    ledger_id: int
    entry_id: int
    batch_index: int                    # -1: not in a batch
    batch_size: int                     # messages of the batch, 0: not in a batch
    partition: int                      # -1: the topic is not a partition
    payload: bytes                      # decompressed
    key: str | None                     # in base64 if its producer gave bytes
    ordering_key: bytes | None
    properties: dict[str, str]
    publish_time_ms: int
    event_time_ms: int                  # 0: none
    deliver_at_ms: int                  # 0: none
    producer: str
    sequence_id: int
    schema_version: bytes | None
    redelivery_count: int
    is_null: bool                       # sent as null: compaction removes its key
    is_key_base64: bool = False
    chunks: tuple[tuple[int, int], ...] = ()      # (ledger, entry) of each chunk, if it was sent in chunks
    schema_id: bytes | None = None      # of its schema in a registry of the application's own
    value: Any = UNDECODED              # the payload, decoded by its schema

    @property
    def id(self) -> str:
        """The position as LEDGER:ENTRY, and :INDEX in a batch."""
        index = f":{self.batch_index}" if self.batch_index >= 0 else ""
        return f"{self.ledger_id}:{self.entry_id}{index}"

    @property
    def has_value(self) -> bool:
        return self.value is not UNDECODED

    def as_json(self) -> dict[str, Any]:
        """Return the message as a JSON object, without the fields that it does not have.

        The payload is text if it is printable, else in base64.
        """
        payload = printable(self.payload)
        fields = {
            "id": self.id, "topic": self.topic, "publishTime": units.instant(self.publish_time_ms),
            "eventTime": units.instant(self.event_time_ms) if self.event_time_ms else None,
            "deliverAt": units.instant(self.deliver_at_ms) if self.deliver_at_ms else None,
            "producer": self.producer, "sequenceId": self.sequence_id, "key": self.key,
            "orderingKey": None if self.ordering_key is None else _base64(self.ordering_key),
            "schemaVersion": None if self.schema_version is None else int.from_bytes(self.schema_version),
            "schemaId": None if self.schema_id is None else _base64(self.schema_id),
            "redeliveryCount": self.redelivery_count or None, "isNull": self.is_null or None,
            "isKeyBase64": self.is_key_base64 or None,
            "properties": self.properties, "payload": payload,
            "payloadBase64": _base64(self.payload) if payload is None else None}
        known = {name: value for name, value in fields.items() if value is not None}
        return known | {"value": self.value} if self.has_value else known

    def as_text(self) -> str:
        """Return the message for people: names and values, a line each, then the payload or its decoded value."""
        lines = []
        for name, value in self.as_json().items():
            if name == "properties":
                lines += [plain(f"property     {key} = {text}") for key, text in value.items()]
            elif name not in ("payload", "payloadBase64", "value"):
                lines.append(plain(f"{name:<12} {value}"))
        if self.has_value:
            return "\n".join([*lines, value_text(self.value)])
        payload = printable(self.payload)
        return "\n".join([*lines, *([payload] if payload is not None else hexadecimal(self.payload))])


def value_text(value: Any) -> str:
    """Return a decoded value as text: JSON, but a text without quotes."""
    if isinstance(value, str):
        return value
    import json
    return json.dumps(value, ensure_ascii=False, default=str)


def text_of(value: str | bytes) -> str:
    """Return a string of protobuf as text.  The library returns strings that are not UTF-8 as bytes."""
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")


def texts_of(pairs: Iterable[Any]) -> dict[str, str]:
    """Return KeyValues of protobuf, such as a message's properties, as {key: value}."""
    return {text_of(pair.key): text_of(pair.value) for pair in pairs}


def printable(payload: bytes) -> str | None:
    """Return a payload as text, None if it is not printable UTF-8."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return None
    if text.isprintable():
        return text
    return text if all(char.isprintable() or char in "\n\t\r" for char in text) else None


def hexadecimal(payload: bytes) -> Iterator[str]:
    """Iterate over lines of sixteen bytes each: their place, their digits, and what of them is printable."""
    for at in range(0, len(payload), 16):
        row = payload[at:at + 16]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{at:08x}  {row.hex(' '):<47}  {shown}"


def text_or_base64(data: bytes) -> str:
    """Return bytes as text, in base64 if they are not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _base64(data)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()

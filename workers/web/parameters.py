"""Parameters of a door's address, with Pulsar's names, defaults and bounds.  Unknown names are ignored."""
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import DecodeError

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.names import source_cluster
from geminga.workers.pulsar_client import key_hashing

Value = TypeVar("Value")
_LAST = (1 << 31) - 1
_WINDOW = 1_000                  # messages that a consumer may have unacknowledged, and the most that it can ask for
_TIMEOUT_MIN_MS = 1_000
CODECS = dict(api.CompressionType.items())
_ROUTING = {"SinglePartition": False, "RoundRobinPartition": True, "CustomPartition": False}
_HASHES = {"JavaStringHash": key_hashing.java, "Murmur3_32Hash": key_hashing.murmur3}
_TYPES = {"Exclusive": api.CommandSubscribe.Exclusive, "Shared": api.CommandSubscribe.Shared,
          "Failover": api.CommandSubscribe.Failover, "Key_Shared": api.CommandSubscribe.Key_Shared}
_MODES = {"Durable": True, "NonDurable": False}
_POSITIONS = {"Latest": api.CommandSubscribe.Latest, "Earliest": api.CommandSubscribe.Earliest}
FAIL, DISCARD, CONSUME = "FAIL", "DISCARD", "CONSUME"      # what becomes of encrypted messages


class WrongParameter(Exception):
    """A value of a parameter cannot be used; the text names the parameter."""


class EncryptionKey(NamedTuple):
    """A key with which a client has encrypted, itself encrypted for somebody."""

    name: str
    value: bytes
    metadata: tuple[tuple[str, str], ...]


class Producing(NamedTuple):
    """Parameters of a producer."""

    name: str
    initial_sequence_id: int | None
    send_timeout_ms: int                     # 0: none
    batch_messages: int                      # in an entry at most; 1: batching is off
    batch_delay_ms: int
    codec: int
    is_round_robin: bool
    hash: Callable[[str], int]
    encryption_keys: tuple[EncryptionKey, ...]      # (): messages come unencrypted


class Consuming(NamedTuple):
    """Parameters of a consumer, and of a reader, which has the defaults of what it cannot say."""

    kind: Any                                # a SubType of CommandSubscribe
    is_durable: bool
    position: Any                            # an InitialPosition of CommandSubscribe
    start: api.MessageIdData | None          # of a reader: behind this message
    window: int                              # messages that may be unacknowledged
    name: str
    priority: int
    ack_timeout_ms: int                      # 0: none
    nack_delay_ms: int
    redeliveries_max: int                    # after which a message is a dead letter; 0: never
    dead_letter_topic: str                   # "": by the names of topic and subscription
    is_pulling: bool
    encrypted: str                           # FAIL, DISCARD or CONSUME


def producing(given: Mapping[str, str]) -> Producing:
    """Read a producer's parameters.  Raises WrongParameter."""
    is_batching = given.get("batchingEnabled", "").lower() == "true"
    batch, delay = 1, 0
    if is_batching:
        batch = number(given, "batchingMaxMessages", 1_000) or _LAST      # 0: no bound, as in Pulsar
        delay = number(given, "batchingMaxPublishDelay", 1, least=1)
        number(given, "maxPendingMessages", 0)
    name, keys = given.get("producerName"), _encryption_keys(given.get("encryptionKeys", ""))
    if name == "":
        raise WrongParameter("producerName must not be empty")
    if source_cluster(name or "") is not None:
        raise WrongParameter("producerName is the name of a replicator, which comes by the binary protocol")
    first = number(given, "initialSequenceId", 0, least=-(1 << 63), last=(1 << 63) - 2) \
        if "initialSequenceId" in given else None
    codec = _one_of(given, "compressionType", CODECS, "NONE")
    return Producing(
        name or "", first, number(given, "sendTimeoutMillis", 30_000), 1 if keys else batch, delay,
        api.NONE if keys else codec, _one_of(given, "messageRoutingMode", _ROUTING, "SinglePartition"),
        _one_of(given, "hashingScheme", _HASHES, "JavaStringHash"), keys)


def consuming(given: Mapping[str, str]) -> Consuming:
    """Read a consumer's parameters.  Raises WrongParameter."""
    timeout, name = number(given, "ackTimeoutMillis", 0), given.get("consumerName")
    if 0 < timeout < _TIMEOUT_MIN_MS:
        raise WrongParameter(f"ackTimeoutMillis must be 0 or at least {_TIMEOUT_MIN_MS}")
    if name == "":
        raise WrongParameter("consumerName must not be empty")
    most = number(given, "maxRedeliverCount", 0, least=1) if "maxRedeliverCount" in given else 0
    if "deadLetterTopic" in given and not most:
        raise WrongParameter("deadLetterTopic needs maxRedeliverCount")
    return Consuming(
        _one_of(given, "subscriptionType", _TYPES, "Exclusive"),
        _one_of(given, "subscriptionMode", _MODES, "Durable"),
        _one_of(given, "subscriptionInitialPosition", _POSITIONS, "Latest"), None,
        _window(given), name or "", number(given, "priorityLevel", 0), timeout,
        number(given, "negativeAckRedeliveryDelay", 60_000), most, given.get("deadLetterTopic", ""),
        given.get("pullMode", "").lower() == "true", _encrypted(given))


def reading(given: Mapping[str, str]) -> Consuming:
    """Read a reader's parameters.  Raises WrongParameter."""
    where, start = given.get("messageId", "").strip() or "latest", None
    if where not in ("latest", "earliest"):
        try:
            start = message_id_of(where)
        except ValueError as error:
            raise WrongParameter(f"messageId must be latest, earliest or an id as it was sent, not {where!r}: {error}"
                                 ) from None
    return Consuming(
        api.CommandSubscribe.Exclusive, False, _POSITIONS["Earliest" if where == "earliest" else "Latest"], start,
        _window(given), given.get("readerName", ""), 0, 0, 0, 0, "", False, _encrypted(given))


def message_id_of(text: str) -> api.MessageIdData:
    """Return a message id from its text in Base64.  Raises ValueError."""
    try:
        place = api.MessageIdData.FromString(base64_of(text))
    except DecodeError:
        raise ValueError("it is no message id") from None
    if not place.IsInitialized():      # the library reads bytes that lack the ledger or the entry, such as none at all
        raise ValueError("it lacks a ledger or an entry")
    return place


def base64_of(text: str) -> bytes:
    """Decode Base64 with or without padding.  Raises ValueError."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error:
        if len(text) % 4 < 2 or text.endswith("="):
            raise ValueError("it is not Base64") from None
    try:
        return binascii.a2b_base64(text + "=" * (4 - len(text) % 4), strict_mode=True)
    except binascii.Error:
        raise ValueError("it is not Base64") from None


def _window(given: Mapping[str, str]) -> int:
    return max(1, min(_WINDOW, number(given, "receiverQueueSize", _WINDOW)))


def _encrypted(given: Mapping[str, str]) -> str:
    action = given.get("cryptoFailureAction", FAIL)
    return action if action in (FAIL, DISCARD, CONSUME) else FAIL


def number(given: Mapping[str, str], name: str, default: int, *, least: int = 0, last: int = _LAST) -> int:
    """Read a parameter that is a whole number.  Raises WrongParameter."""
    text = given.get(name)
    if text is None:
        return default
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and least <= int(text) <= last):
        raise WrongParameter(f"{name} must be a whole number of {least} to {last}, not {text[:40]!r}")
    return int(text)


def _one_of(given: Mapping[str, str], name: str, values: Mapping[str, Value], default: str) -> Value:
    text = given.get(name, default)
    if text not in values:
        raise WrongParameter(f"{name} must be one of {', '.join(values)}, not {text[:40]!r}")
    return values[text]


def _encryption_keys(text: str) -> tuple[EncryptionKey, ...]:
    """Read the keys with which the client has encrypted.  Raises WrongParameter."""
    if not text:
        return ()
    try:
        keys = json.loads(base64_of(text.replace(" ", "+")))
        return tuple(EncryptionKey(name, base64_of(fields["keyValue"]),
                                   tuple((str(key), str(value))
                                         for key, value in (fields.get("metadata") or {}).items()))
                     for name, fields in keys.items())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise WrongParameter("encryptionKeys must be Base64 of JSON with keys that the client has encrypted with: the "
                             "broker has no keys of its own") from None

"""Responses of a broker, and the commands that it sends unasked: each function returns the bytes of a frame.

Clients test whether an optional field is present, not what it holds.  So a field without a meaning is left out.
"""
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from google.protobuf.message import Message

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto import varints
from geminga.proto.commands import TABLE
from geminga.proto.errors import ErrorCode
from geminga.proto.frames import NO_REQUEST, SIZE, SIZES, command_of, frame

VERSION, PULSAR_VERSION = "0.1.0", "4.0.7"
SERVER_VERSION = f"Pulsar Server {PULSAR_VERSION} (Geminga {VERSION})"
PROTOCOL_VERSION = 21
Type = api.BaseCommand.Type
_WORD = 0xFFFFFFFFFFFFFFFF

# Commands that the broker sends unasked -> the version of the protocol since which clients know them.
_SINCE: dict[int, int] = {
    Type.PING: 1, Type.CLOSE_PRODUCER: 5, Type.CLOSE_CONSUMER: 5, Type.REACHED_END_OF_TOPIC: 9,
    Type.ACTIVE_CONSUMER_CHANGE: 12, Type.AUTH_CHALLENGE: 14, Type.TOPIC_MIGRATED: 20}
ALL_SINCE = max(_SINCE.values())
_CLOSES = Type.CLOSE_PRODUCER, Type.CLOSE_CONSUMER
_NEW, _ENDED = Type.NEW_TXN_RESPONSE, Type.END_TXN_RESPONSE
_ACKNOWLEDGED = Type.ACK_RESPONSE
_ADDED_PARTITION, _ADDED_SUBSCRIPTION = Type.ADD_PARTITION_TO_TXN_RESPONSE, Type.ADD_SUBSCRIPTION_TO_TXN_RESPONSE


def frame_of(message: Message) -> bytes:
    """Return the frame of the command with that message, such as SUCCESS for a CommandSuccess."""
    return frame(command_of(message))


def select_known(frames: bytes, version: int) -> tuple[bytes, bool]:
    """Return (the frames that a client of the protocol version knows, whether its connection has to be closed).

    A client that does not know CLOSE_PRODUCER or CLOSE_CONSUMER learns of the end only by the end of its connection.
    """
    kept, at = b"", 0
    while at < len(frames):
        end = at + 4 + SIZE.unpack_from(frames, at)[0]
        kind = frames[at + 9]      # behind the sizes and the tag of `type`, which is the first field
        if version >= _SINCE.get(kind, 0):
            kept += frames[at:end]
        elif kind in _CLOSES:
            return kept, True
        at = end
    return kept, False


def connected(protocol_version: int, max_message_size: int) -> bytes:
    answer = api.CommandConnected(server_version=SERVER_VERSION, max_message_size=max_message_size)
    answer.protocol_version = min(PROTOCOL_VERSION, protocol_version)
    answer.feature_flags.supports_get_partitioned_metadata_without_auto_creation = True
    answer.feature_flags.supports_topic_watchers = True
    answer.feature_flags.supports_repl_dedup_by_lid_and_eid = True
    answer.feature_flags.supports_scalable_topics = True            # else no builder of the V5 client does anything
    answer.feature_flags.supports_tc_metadata_discovery = True      # WATCH_TC_ASSIGNMENTS
    return frame_of(answer)


def auth_challenge(method: str, protocol_version: int) -> bytes:
    """Ask the client to authenticate again."""
    challenge = api.AuthData(auth_method_name=method, auth_data=b"PulsarAuthRefresh")
    return frame_of(api.CommandAuthChallenge(
        challenge=challenge, protocol_version=min(PROTOCOL_VERSION, protocol_version)))


def success(request_id: int) -> bytes:
    return frame_of(api.CommandSuccess(request_id=request_id))


def error(request_id: int, code: ErrorCode, message: str) -> bytes:
    return frame_of(api.CommandError(request_id=request_id, error=code, message=message))


def refusal(command: api.BaseCommand, code: ErrorCode, message: str) -> bytes:
    """Return the frame that refuses a client's command; b"" if the client waits for no answer."""
    row = TABLE[command.type]
    request = getattr(command, row.field)
    if row.error is None or not request.HasField(row.id_field):      # an ACK may lack it
        return b""
    return refusal_by_ids(command.type, getattr(request, row.id_field), row.ids_of(request), code, message)


def refusal_by_ids(kind: int, request_id: int, ids: tuple[int, ...], code: ErrorCode, message: str) -> bytes:
    """Return the frame that refuses a command of which its type and ids are known.  ids: see `Command.ids_of`."""
    row = TABLE[kind]
    assert row.error is not None, row
    answer: Any = row.error(**{row.id_field: request_id}, **dict(zip(row.ids, ids, strict=True)))
    names = answer.DESCRIPTOR.fields_by_name
    if "response" in names:
        answer.response = answer.Failed
    error, text = ("error", "message") if "error" in names else ("error_code", "error_message")
    setattr(answer, error, code)
    setattr(answer, text, message)
    return frame_of(answer)


def send_error(producer_id: int, sequence_id: int, code: ErrorCode, message: str) -> bytes:
    return frame_of(api.CommandSendError(producer_id=producer_id, sequence_id=sequence_id, error=code, message=message))


PING, PONG = frame_of(api.CommandPing()), frame_of(api.CommandPong())


def producer_success(request_id: int, name: str, *, is_ready: bool = True, topic_epoch: int | None = None,
                     last_sequence_id: int = -1, schema_version: bytes = b"") -> bytes:
    answer = api.CommandProducerSuccess(request_id=request_id, producer_name=name, last_sequence_id=last_sequence_id,
                                        schema_version=schema_version, producer_ready=is_ready)
    if topic_epoch is not None:
        answer.topic_epoch = topic_epoch
    return frame_of(answer)


def repeated_success(frames: bytes, request_id: int) -> bytes:
    """Return an earlier PRODUCER_SUCCESS frame as the response to another request."""
    command = api.BaseCommand.FromString(frames[8:])
    command.producer_success.request_id = request_id
    return frame(command)


def close_producer(producer_id: int) -> bytes:
    return frame_of(api.CommandCloseProducer(producer_id=producer_id, request_id=NO_REQUEST))


def topic_migrated(kind: "api.CommandTopicMigrated.ResourceType.ValueType", object_id: int, url: str,
                   url_tls: str) -> bytes:
    """Return TOPIC_MIGRATED, which sends a producer or consumer to another cluster after it is closed."""
    answer = api.CommandTopicMigrated(resource_type=kind, resource_id=object_id)
    if url:
        answer.brokerServiceUrl = url
    if url_tls:
        answer.brokerServiceUrlTls = url_tls
    return frame_of(answer)


def close_consumer(consumer_id: int) -> bytes:
    return frame_of(api.CommandCloseConsumer(consumer_id=consumer_id, request_id=NO_REQUEST))


def partitions(request_id: int, count: int) -> bytes:
    return frame_of(api.CommandPartitionedTopicMetadataResponse(
        request_id=request_id, partitions=count, response=api.CommandPartitionedTopicMetadataResponse.Success))


def lookup(request_id: int, url: str, url_tls: str = "", *, stays: bool = False) -> bytes:
    """Return the answer that names the serving broker, which on one host is the one asked; empty URLs are left out.

    stays: the client connects to the address that it was configured with, and not to the URLs.
    """
    return frame_of(api.CommandLookupTopicResponse(
        request_id=request_id, brokerServiceUrl=url or None, brokerServiceUrlTls=url_tls or None,
        response=api.CommandLookupTopicResponse.Connect, authoritative=True, proxy_through_service_url=stays))


def ack_response(consumer_id: int, request_id: int) -> bytes:
    return _of_numbers(_ACKNOWLEDGED, b"\x08%b\x30%b" % (varints.encode(consumer_id), varints.encode(request_id)))


def ack_refused(consumer_id: int, request_id: int) -> bytes:
    """Return the answer to an ACK of a consumer that is closed, or never was."""
    return refusal_by_ids(api.BaseCommand.ACK, request_id, (consumer_id,), api.ConsumerNotFound, "Consumer not found")


def last_message_id(request_id: int, last: api.MessageIdData, mark_delete: api.MessageIdData | None) -> bytes:
    return frame_of(api.CommandGetLastMessageIdResponse(
        request_id=request_id, last_message_id=last, consumer_mark_delete_position=mark_delete))


def message_id(ledger_id: int, entry_id: int, partition: int, batch_index: int = -1) -> api.MessageIdData:
    """Return the MessageIdData of a position; -1 is sent as 2**64 - 1."""
    identity = api.MessageIdData(ledgerId=ledger_id & _WORD, entryId=entry_id & _WORD)
    if partition >= 0:
        identity.partition = partition
    if batch_index >= 0:
        identity.batch_index = batch_index
    return identity


def reached_end_of_topic(consumer_id: int) -> bytes:
    return frame_of(api.CommandReachedEndOfTopic(consumer_id=consumer_id))


def active_consumer_change(consumer_id: int, is_active: bool) -> bytes:
    return frame_of(api.CommandActiveConsumerChange(consumer_id=consumer_id, is_active=is_active))


def consumer_stats(request_id: int, **fields: Any) -> bytes:
    """Return a CONSUMER_STATS_RESPONSE with these fields of CommandConsumerStatsResponse."""
    return frame_of(api.CommandConsumerStatsResponse(request_id=request_id, **fields))


def schema(request_id: int, found: api.Schema, version: bytes) -> bytes:
    return frame_of(api.CommandGetSchemaResponse(request_id=request_id, schema=found, schema_version=version))


def schema_created(request_id: int, version: bytes) -> bytes:
    return frame_of(api.CommandGetOrCreateSchemaResponse(request_id=request_id, schema_version=version))


def topics_of_namespace(request_id: int, topics: list[str], topics_hash: str, *, is_filtered: bool,
                        has_changed: bool) -> bytes:
    return frame_of(api.CommandGetTopicsOfNamespaceResponse(
        request_id=request_id, topics=topics if has_changed else [], filtered=is_filtered, topics_hash=topics_hash,
        changed=has_changed))


def watch_topic_list_success(request_id: int, watcher_id: int, topics: list[str], topics_hash: str) -> bytes:
    return frame_of(api.CommandWatchTopicListSuccess(
        request_id=request_id, watcher_id=watcher_id, topic=topics, topics_hash=topics_hash))


def watch_topic_update(watcher_id: int, new: list[str], deleted: list[str], topics_hash: str) -> bytes:
    return frame_of(api.CommandWatchTopicUpdate(
        watcher_id=watcher_id, new_topics=new, deleted_topics=deleted, topics_hash=topics_hash))


# -- clients of Pulsar 5

def scalable_topic_update(session_id: int, layout: api.ScalableTopicDAG, name: str) -> bytes:
    """Return SCALABLE_TOPIC_UPDATE: the layout of a topic.  name: the topic's, topic://..."""
    return frame_of(api.CommandScalableTopicUpdate(session_id=session_id, dag=layout, resolved_topic_name=name))


def stream_assigned(request_id: int, assignment: api.ScalableConsumerAssignment) -> bytes:
    """Return SCALABLE_TOPIC_SUBSCRIBE_RESPONSE: the segments of a stream consumer that has registered."""
    return frame_of(api.CommandScalableTopicSubscribeResponse(request_id=request_id, assignment=assignment))


def stream_reassigned(consumer_id: int, assignment: api.ScalableConsumerAssignment) -> bytes:
    """Return SCALABLE_TOPIC_ASSIGNMENT_UPDATE.  consumer_id: that of the registration."""
    return frame_of(api.CommandScalableTopicAssignmentUpdate(consumer_id=consumer_id, assignment=assignment))


def scalable_topics(watch_id: int, topics: list[str]) -> bytes:
    """Return WATCH_SCALABLE_TOPICS_UPDATE: all topics that the watch shows."""
    return frame_of(api.CommandWatchScalableTopicsUpdate(
        watch_id=watch_id, snapshot=api.ScalableTopicsSnapshot(topics=topics)))


def scalable_topics_changed(watch_id: int, *, added: Iterable[str] = (), removed: Iterable[str] = ()) -> bytes:
    """Return WATCH_SCALABLE_TOPICS_UPDATE: topics that came or went."""
    return frame_of(api.CommandWatchScalableTopicsUpdate(
        watch_id=watch_id, diff=api.ScalableTopicsDiff(added=added, removed=removed)))


def coordinators(watch_id: int, count: int, url: str, url_tls: str) -> bytes:
    """Return WATCH_TC_ASSIGNMENTS_UPDATE: coordinators 0 to count - 1, which are all at one broker; "": no URL."""
    urls = {"broker_service_url": url, "broker_service_url_tls": url_tls}
    found = {name: value for name, value in urls.items() if value}
    answer = api.CommandWatchTcAssignmentsUpdate(watch_id=watch_id)
    answer.snapshot.parallelism = count
    answer.snapshot.assignments.extend(api.TcAssignment(tc_id=number, **found) for number in range(count))
    return frame_of(answer)


# -- transactions

def transaction_coordinator_connected(request_id: int) -> bytes:
    return frame_of(api.CommandTcClientConnectResponse(request_id=request_id))


def new_transaction(request_id: int, most: int, least: int) -> bytes:
    """Return NEW_TXN_RESPONSE.  most, least: the new transaction's id."""
    return _of_transaction(_NEW, request_id, most, least)


def added_partition(request_id: int, most: int, least: int) -> bytes:
    return _of_transaction(_ADDED_PARTITION, request_id, most, least)


def added_subscription(request_id: int, most: int, least: int) -> bytes:
    return _of_transaction(_ADDED_SUBSCRIPTION, request_id, most, least)


def ended_transaction(request_id: int, most: int, least: int) -> bytes:
    return _of_transaction(_ENDED, request_id, most, least)


def _of_transaction(kind: int, request_id: int, most: int, least: int) -> bytes:
    """Return the response to a command about a transaction, which has the same three fields for each kind."""
    return _of_numbers(kind, b"\x08%b%b" % (varints.encode(request_id), _id_fields(most, least)))


@lru_cache(4_096)      # each transaction has three or four answers, soon after each other
def _id_fields(most: int, least: int) -> bytes:
    return b"\x10%b\x18%b" % (varints.encode(least), varints.encode(most))


def _of_numbers(kind: int, inner: bytes) -> bytes:
    """Return the frame of a command whose own message is `inner`, of less than 128 bytes.

    For answers of which a pass may have many: the protobuf library takes ten times as long for each.
    """
    body = b"\x08%c%b%c%b" % (kind, varints.encode(kind << 3 | 2), len(inner), inner)
    return SIZES.pack(len(body) + 4, len(body)) + body

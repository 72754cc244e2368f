"""Responses of a broker, and the commands that it sends unasked: each function returns the bytes of a frame.

Clients test whether an optional field is present, not what it holds.  So a field without a meaning is left out.
"""
from typing import Any

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto import varints
from geminga.proto.errors import ErrorCode
from geminga.proto.frames import NO_REQUEST, SIZE, SIZES, frame

SERVER_VERSION = "Pulsar Server 4.0.7 (Geminga 0.1.0)"
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
_ADDED_PARTITION, _ADDED_SUBSCRIPTION = Type.ADD_PARTITION_TO_TXN_RESPONSE, Type.ADD_SUBSCRIPTION_TO_TXN_RESPONSE


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
    command = api.BaseCommand(type=Type.CONNECTED)
    answer = command.connected
    answer.server_version = SERVER_VERSION
    answer.protocol_version = min(PROTOCOL_VERSION, protocol_version)
    answer.max_message_size = max_message_size
    answer.feature_flags.supports_get_partitioned_metadata_without_auto_creation = True
    answer.feature_flags.supports_topic_watchers = True
    answer.feature_flags.supports_repl_dedup_by_lid_and_eid = True
    return frame(command)


def auth_challenge(method: str, protocol_version: int) -> bytes:
    """Ask the client to authenticate again."""
    challenge = api.AuthData(auth_method_name=method, auth_data=b"PulsarAuthRefresh")
    return frame(api.BaseCommand(type=Type.AUTH_CHALLENGE, authChallenge=api.CommandAuthChallenge(
        challenge=challenge, protocol_version=min(PROTOCOL_VERSION, protocol_version))))


def success(request_id: int) -> bytes:
    return frame(api.BaseCommand(type=Type.SUCCESS, success=api.CommandSuccess(request_id=request_id)))


def error(request_id: int, code: ErrorCode, message: str) -> bytes:
    answer = api.CommandError(request_id=request_id, error=code, message=message)
    return frame(api.BaseCommand(type=Type.ERROR, error=answer))


def send_error(producer_id: int, sequence_id: int, code: ErrorCode, message: str) -> bytes:
    answer = api.CommandSendError(producer_id=producer_id, sequence_id=sequence_id, error=code, message=message)
    return frame(api.BaseCommand(type=Type.SEND_ERROR, send_error=answer))


PING = frame(api.BaseCommand(type=Type.PING, ping=api.CommandPing()))
PONG = frame(api.BaseCommand(type=Type.PONG, pong=api.CommandPong()))


def producer_success(request_id: int, name: str, *, is_ready: bool = True, topic_epoch: int | None = None,
                     last_sequence_id: int = -1, schema_version: bytes = b"") -> bytes:
    answer = api.CommandProducerSuccess(request_id=request_id, producer_name=name, last_sequence_id=last_sequence_id,
                                        schema_version=schema_version, producer_ready=is_ready)
    if topic_epoch is not None:
        answer.topic_epoch = topic_epoch
    return frame(api.BaseCommand(type=Type.PRODUCER_SUCCESS, producer_success=answer))


def repeated_success(frames: bytes, request_id: int) -> bytes:
    """Return an earlier PRODUCER_SUCCESS frame as the response to another request."""
    command = api.BaseCommand.FromString(frames[8:])
    command.producer_success.request_id = request_id
    return frame(command)


def close_producer(producer_id: int) -> bytes:
    answer = api.CommandCloseProducer(producer_id=producer_id, request_id=NO_REQUEST)
    return frame(api.BaseCommand(type=Type.CLOSE_PRODUCER, close_producer=answer))


def topic_migrated(kind: "api.CommandTopicMigrated.ResourceType.ValueType", object_id: int, url: str,
                   url_tls: str) -> bytes:
    """Return TOPIC_MIGRATED, which sends a producer or consumer to another cluster after it is closed."""
    answer = api.CommandTopicMigrated(resource_type=kind, resource_id=object_id)
    if url:
        answer.brokerServiceUrl = url
    if url_tls:
        answer.brokerServiceUrlTls = url_tls
    return frame(api.BaseCommand(type=Type.TOPIC_MIGRATED, topicMigrated=answer))


def close_consumer(consumer_id: int) -> bytes:
    answer = api.CommandCloseConsumer(consumer_id=consumer_id, request_id=NO_REQUEST)
    return frame(api.BaseCommand(type=Type.CLOSE_CONSUMER, close_consumer=answer))


def partitions(request_id: int, count: int) -> bytes:
    answer = api.CommandPartitionedTopicMetadataResponse(
        request_id=request_id, partitions=count, response=api.CommandPartitionedTopicMetadataResponse.Success)
    return frame(api.BaseCommand(type=Type.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse=answer))


def partitions_failed(request_id: int, code: ErrorCode, message: str) -> bytes:
    answer = api.CommandPartitionedTopicMetadataResponse(
        request_id=request_id, response=api.CommandPartitionedTopicMetadataResponse.Failed, error=code, message=message)
    return frame(api.BaseCommand(type=Type.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse=answer))


def lookup(request_id: int, url: str, url_tls: str = "", *, stays: bool = False) -> bytes:
    """Return the answer that names the serving broker, which on one host is the one asked; empty URLs are left out.

    stays: the client connects to the address that it was configured with, and not to the URLs.
    """
    answer = api.CommandLookupTopicResponse(
        request_id=request_id, brokerServiceUrl=url or None, brokerServiceUrlTls=url_tls or None,
        response=api.CommandLookupTopicResponse.Connect, authoritative=True, proxy_through_service_url=stays)
    return frame(api.BaseCommand(type=Type.LOOKUP_RESPONSE, lookupTopicResponse=answer))


def lookup_failed(request_id: int, code: ErrorCode, message: str) -> bytes:
    answer = api.CommandLookupTopicResponse(
        request_id=request_id, response=api.CommandLookupTopicResponse.Failed, error=code, message=message)
    return frame(api.BaseCommand(type=Type.LOOKUP_RESPONSE, lookupTopicResponse=answer))


def ack_response(consumer_id: int, request_id: int, refusal: tuple[ErrorCode, str] | None = None) -> bytes:
    answer = api.CommandAckResponse(consumer_id=consumer_id, request_id=request_id)
    if refusal:
        answer.error, answer.message = refusal
    return frame(api.BaseCommand(type=Type.ACK_RESPONSE, ackResponse=answer))


def last_message_id(request_id: int, last: api.MessageIdData, mark_delete: api.MessageIdData | None) -> bytes:
    answer = api.CommandGetLastMessageIdResponse(
        request_id=request_id, last_message_id=last, consumer_mark_delete_position=mark_delete)
    return frame(api.BaseCommand(type=Type.GET_LAST_MESSAGE_ID_RESPONSE, getLastMessageIdResponse=answer))


def message_id(ledger_id: int, entry_id: int, partition: int, batch_index: int = -1) -> api.MessageIdData:
    """Return the MessageIdData of a position; -1 is sent as 2**64 - 1."""
    identity = api.MessageIdData(ledgerId=ledger_id & _WORD, entryId=entry_id & _WORD)
    if partition >= 0:
        identity.partition = partition
    if batch_index >= 0:
        identity.batch_index = batch_index
    return identity


def reached_end_of_topic(consumer_id: int) -> bytes:
    command = api.CommandReachedEndOfTopic(consumer_id=consumer_id)
    return frame(api.BaseCommand(type=Type.REACHED_END_OF_TOPIC, reachedEndOfTopic=command))


def active_consumer_change(consumer_id: int, is_active: bool) -> bytes:
    change = api.CommandActiveConsumerChange(consumer_id=consumer_id, is_active=is_active)
    return frame(api.BaseCommand(type=Type.ACTIVE_CONSUMER_CHANGE, active_consumer_change=change))


def consumer_stats(request_id: int, **fields: Any) -> bytes:
    """Return a CONSUMER_STATS_RESPONSE with these fields of CommandConsumerStatsResponse."""
    answer = api.CommandConsumerStatsResponse(request_id=request_id, **fields)
    return frame(api.BaseCommand(type=Type.CONSUMER_STATS_RESPONSE, consumerStatsResponse=answer))


def schema(request_id: int, found: api.Schema, version: bytes) -> bytes:
    answer = api.CommandGetSchemaResponse(request_id=request_id, schema=found, schema_version=version)
    return frame(api.BaseCommand(type=Type.GET_SCHEMA_RESPONSE, getSchemaResponse=answer))


def schema_missing(request_id: int, code: ErrorCode, message: str) -> bytes:
    answer = api.CommandGetSchemaResponse(request_id=request_id, error_code=code, error_message=message)
    return frame(api.BaseCommand(type=Type.GET_SCHEMA_RESPONSE, getSchemaResponse=answer))


def schema_created(request_id: int, version: bytes) -> bytes:
    answer = api.CommandGetOrCreateSchemaResponse(request_id=request_id, schema_version=version)
    return frame(api.BaseCommand(type=Type.GET_OR_CREATE_SCHEMA_RESPONSE, getOrCreateSchemaResponse=answer))


def schema_refused(request_id: int, code: ErrorCode, message: str) -> bytes:
    answer = api.CommandGetOrCreateSchemaResponse(request_id=request_id, error_code=code, error_message=message)
    return frame(api.BaseCommand(type=Type.GET_OR_CREATE_SCHEMA_RESPONSE, getOrCreateSchemaResponse=answer))


def topics_of_namespace(request_id: int, topics: list[str], topics_hash: str, *, is_filtered: bool,
                        has_changed: bool) -> bytes:
    answer = api.CommandGetTopicsOfNamespaceResponse(
        request_id=request_id, topics=topics if has_changed else [], filtered=is_filtered, topics_hash=topics_hash,
        changed=has_changed)
    return frame(api.BaseCommand(type=Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, getTopicsOfNamespaceResponse=answer))


def watch_topic_list_success(request_id: int, watcher_id: int, topics: list[str], topics_hash: str) -> bytes:
    answer = api.CommandWatchTopicListSuccess(
        request_id=request_id, watcher_id=watcher_id, topic=topics, topics_hash=topics_hash)
    return frame(api.BaseCommand(type=Type.WATCH_TOPIC_LIST_SUCCESS, watchTopicListSuccess=answer))


def watch_topic_update(watcher_id: int, new: list[str], deleted: list[str], topics_hash: str) -> bytes:
    update = api.CommandWatchTopicUpdate(
        watcher_id=watcher_id, new_topics=new, deleted_topics=deleted, topics_hash=topics_hash)
    return frame(api.BaseCommand(type=Type.WATCH_TOPIC_UPDATE, watchTopicUpdate=update))


# -- transactions: clients find the coordinator of an answer by its most bits, so refusals have them too

def transaction_coordinator_connected(request_id: int) -> bytes:
    answer = api.CommandTcClientConnectResponse(request_id=request_id)
    return frame(api.BaseCommand(type=Type.TC_CLIENT_CONNECT_RESPONSE, tcClientConnectResponse=answer))


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
    """Return the response to a command about a transaction, which has the same three fields for each kind.

    A transaction has three such responses or more, and the protobuf library takes ten times as long for each.
    """
    inner = b"\x08%b\x10%b\x18%b" % (varints.encode(request_id), varints.encode(least), varints.encode(most))
    body = b"\x08%c%b%c%b" % (kind, varints.encode(kind << 3 | 2), len(inner), inner)
    return SIZES.pack(len(body) + 4, len(body)) + body


def transaction_refused(kind: int, request_id: int, code: ErrorCode, message: str, most: int = 0,
                        least: int = 0) -> bytes:
    """Return the response to a command about transactions, of the response's own type, with an error.

    kind: the type of the refused command.  most, least: the transaction's id, as far as the command named it; a NEW_TXN
    names the coordinator as the most bits.
    """
    response, field = _TRANSACTIONS[kind]
    command = api.BaseCommand(type=response)
    answer = getattr(command, field)
    answer.request_id, answer.error, answer.message = request_id, code, message
    if kind != Type.TC_CLIENT_CONNECT_REQUEST:
        answer.txnid_most_bits, answer.txnid_least_bits = most, least
    return frame(command)


# Command -> its response, and the field of BaseCommand that has the response.
_TRANSACTIONS: dict[int, tuple["api.BaseCommand.Type.ValueType", str]] = {
    Type.TC_CLIENT_CONNECT_REQUEST: (Type.TC_CLIENT_CONNECT_RESPONSE, "tcClientConnectResponse"),
    Type.NEW_TXN: (Type.NEW_TXN_RESPONSE, "newTxnResponse"),
    Type.ADD_PARTITION_TO_TXN: (Type.ADD_PARTITION_TO_TXN_RESPONSE, "addPartitionToTxnResponse"),
    Type.ADD_SUBSCRIPTION_TO_TXN: (Type.ADD_SUBSCRIPTION_TO_TXN_RESPONSE, "addSubscriptionToTxnResponse"),
    Type.END_TXN: (Type.END_TXN_RESPONSE, "endTxnResponse"),
    Type.END_TXN_ON_PARTITION: (Type.END_TXN_ON_PARTITION_RESPONSE, "endTxnOnPartitionResponse"),
    Type.END_TXN_ON_SUBSCRIPTION: (Type.END_TXN_ON_SUBSCRIPTION_RESPONSE, "endTxnOnSubscriptionResponse"),
}

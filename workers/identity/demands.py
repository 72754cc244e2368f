"""The right that each command of a client demands."""
from collections.abc import Callable
from typing import Any, NamedTuple

from geminga.proto import names, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import ErrorCode
from geminga.workers.identity.authorization import CONSUME, LOOKUP, PRODUCE, REPLICATE, Right

T = api.BaseCommand.Type


class Demand(NamedTuple):
    """The right that a kind of command needs, and where the command names its topic or namespace."""

    field: str                                                  # of BaseCommand
    action: str
    text: str                                                   # for a client that lacks the right
    answer: Callable[[int, ErrorCode, str], bytes] = responses.error      # (request id, code, text) -> frame


# All commands that a client may send.  None: the command has no effect on other clients, or it is about a producer,
# consumer or watcher of its own connection, which was allowed when it was opened.
DEMANDS: dict[int, Demand | None] = {
    T.CONNECT: None, T.AUTH_RESPONSE: None, T.PING: None, T.PONG: None,
    T.PARTITIONED_METADATA: Demand("partitionMetadata", LOOKUP, "Client is not authorized to Get Partition Metadata",
                                   responses.partitions_failed),
    T.LOOKUP: Demand("lookupTopic", LOOKUP, "Client is not authorized to Lookup", responses.lookup_failed),
    T.PRODUCER: Demand("producer", PRODUCE, "Client is not authorized to Produce"),
    T.SUBSCRIBE: Demand("subscribe", CONSUME, "Client is not authorized to subscribe"),
    T.GET_SCHEMA: Demand("getSchema", LOOKUP, "Client is not authorized to Get Schema", responses.schema_missing),
    T.GET_OR_CREATE_SCHEMA: Demand("getOrCreateSchema", PRODUCE, "Client is not authorized to Get or Create Schema",
                                   responses.schema_refused),
    T.GET_TOPICS_OF_NAMESPACE: Demand("getTopicsOfNamespace", LOOKUP,
                                      "Client is not authorized to GetTopicsOfNamespace"),
    T.WATCH_TOPIC_LIST: Demand("watchTopicList", LOOKUP, "Proxy Client is not authorized to watchTopicList"),
    T.SEND: None, T.CLOSE_PRODUCER: None,
    T.FLOW: None, T.ACK: None, T.REDELIVER_UNACKNOWLEDGED_MESSAGES: None,
    T.UNSUBSCRIBE: None, T.CLOSE_CONSUMER: None, T.SEEK: None,
    T.GET_LAST_MESSAGE_ID: None, T.CONSUMER_STATS: None, T.WATCH_TOPIC_LIST_CLOSE: None,
    # A transaction belongs to the role that began it; what it publishes and acknowledges was allowed when the producer
    # or consumer was opened.
    T.TC_CLIENT_CONNECT_REQUEST: None, T.NEW_TXN: None,
    T.ADD_PARTITION_TO_TXN: None, T.ADD_SUBSCRIPTION_TO_TXN: None, T.END_TXN: None,
    T.END_TXN_ON_PARTITION: None, T.END_TXN_ON_SUBSCRIPTION: None,      # refused to everybody
}
_ABOUT_NAMESPACES = (T.GET_TOPICS_OF_NAMESPACE, T.WATCH_TOPIC_LIST)


def is_free(kind: int, right: Right) -> bool:
    """Whether every client that is authenticated may do this: ask where the coordinators of transactions are."""
    resource = right.resource
    return kind in (T.LOOKUP, T.PARTITIONED_METADATA) and not isinstance(resource, str) \
        and resource.base == names.COORDINATORS


def right_of(kind: int, request: Any) -> Right:
    """Return the right that a command needs.  kind: the command's type; request: the message inside the command.

    Raises Refusal: the command names no valid topic or namespace.
    """
    demand = DEMANDS[kind]
    assert demand is not None
    resource = names.parse_namespace(request.namespace) if kind in _ABOUT_NAMESPACES else names.parse(request.topic)
    if kind == T.PRODUCER and names.source_cluster(request.producer_name) is not None:
        return Right(REPLICATE, resource)
    return Right(demand.action, resource, request.subscription if kind == T.SUBSCRIBE else "")

"""Commands that a client may send: a row of TABLE for each.

The state machine of connections, the rights that are asked, the way to an owner and all refusals come from these rows.
A command that is not in the table breaks the protocol: an unknown one, or one that only a broker sends.
"""
import dataclasses
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from geminga.proto import pulsar_api_pb2 as api

T = api.BaseCommand.Type

NEW, AUTHENTICATING, CONNECTED = "NEW", "AUTHENTICATING", "CONNECTED"      # states of a connection
# Rights that commands need.  A right to produce or consume includes LOOKUP.
PRODUCE, CONSUME, LOOKUP = "produce", "consume", "lookup"


class Answerer(Enum):
    """The process that answers a command."""

    WORKER = auto()           # from the catalogue, or by what it knows about the connection
    TOPIC = auto()            # the owner of the topic that it names, which makes a producer or consumer
    PRODUCER = auto()         # the owner of the producer that it names
    CONSUMER = auto()         # the owner of the consumer that it names
    COORDINATOR = auto()      # the owner that coordinates the transaction that it names
    REGISTRAR = auto()        # the owner that knows all stream consumers of the topic's subscription


class Sends(Enum):
    """The SENDs that an owner has to have carried out before a command, among those that came before it."""

    ALL = auto()
    OF_ITS_TRANSACTION = auto()
    NONE = auto()


@dataclass(slots=True, eq=False)
class Command:
    """A kind of command, with its meaning to a connection, a worker and an owner."""

    kind: "T.ValueType"                          # type of BaseCommand
    answered_by: Answerer = Answerer.WORKER
    error: type[Message] | None = None           # the message that refuses it; None: its client waits for no answer
    # Ids in `error`, beside the request's, by which clients find what was refused -> fields of the command with them.
    ids: dict[str, str] = dataclasses.field(default_factory=dict)
    right: str = ""                              # to its topic or namespace; "": the command has no effect on others
    denial: str = ""                             # text for a client that lacks the right
    behind: Sends = Sends.ALL                    # an owner carries it out behind these; ACK: one in a transaction
    ends_with_owner: bool = False                # it closes what an owner holds, so the owner's end fulfils it
    is_light: bool = False                       # cheap to execute, and without a text that anybody reads
    state: str = CONNECTED                       # of the connection, in which the command may come
    next_state: str = CONNECTED
    id_field: str = "request_id"                 # of the command and of `error`: the id by which its client knows it
    field: Any = dataclasses.field(init=False)   # name of BaseCommand's field with the command's own message
    has_text: bool = dataclasses.field(init=False)     # it has strings, which have to be UTF-8

    def __post_init__(self) -> None:
        own = api.BaseCommand.DESCRIPTOR.fields_by_number[self.kind]      # types and fields have the same numbers
        assert own.message_type is not None, own.name
        self.field, self.has_text = own.name, not self.is_light and _has_text(own.message_type)

    def ids_of(self, request: Any) -> tuple[int, ...]:
        """Return the values of `ids`.  request: the command's own message."""
        return tuple([getattr(request, name) for name in self.ids.values()])


def _has_text(message: Descriptor, outer: frozenset[Descriptor] = frozenset()) -> bool:
    """Whether a message of that type can have strings.  outer: the types around it, which may be within each other."""
    outer |= {message}
    return any(part.type == part.TYPE_STRING if part.message_type is None else
               part.message_type not in outer and _has_text(part.message_type, outer) for part in message.fields)


_TRANSACTION = {"txnid_most_bits": "txnid_most_bits", "txnid_least_bits": "txnid_least_bits"}
# A producer, consumer, watcher or transaction belongs to the connection or role that opened it, which needed the right:
# commands about it need none.
TABLE: dict[int, Command] = {row.kind: row for row in (
    Command(T.CONNECT, state=NEW, next_state=AUTHENTICATING),
    Command(T.AUTH_RESPONSE),
    Command(T.PING, is_light=True),
    Command(T.PONG, is_light=True),

    Command(T.PARTITIONED_METADATA, error=api.CommandPartitionedTopicMetadataResponse,
            right=LOOKUP, denial="Client is not authorized to Get Partition Metadata"),
    Command(T.LOOKUP, error=api.CommandLookupTopicResponse,
            right=LOOKUP, denial="Client is not authorized to Lookup"),
    Command(T.GET_SCHEMA, error=api.CommandGetSchemaResponse,
            right=LOOKUP, denial="Client is not authorized to Get Schema"),
    Command(T.GET_OR_CREATE_SCHEMA, error=api.CommandGetOrCreateSchemaResponse,
            right=PRODUCE, denial="Client is not authorized to Get or Create Schema"),
    Command(T.GET_TOPICS_OF_NAMESPACE, error=api.CommandError,
            right=LOOKUP, denial="Client is not authorized to GetTopicsOfNamespace"),
    Command(T.WATCH_TOPIC_LIST, error=api.CommandError,
            right=LOOKUP, denial="Proxy Client is not authorized to watchTopicList"),
    Command(T.WATCH_TOPIC_LIST_CLOSE, error=api.CommandError),

    Command(T.PRODUCER, Answerer.TOPIC, api.CommandError,
            right=PRODUCE, denial="Client is not authorized to Produce"),
    Command(T.SEND, Answerer.PRODUCER),      # refused by SEND_ERROR, which names no request
    Command(T.CLOSE_PRODUCER, Answerer.PRODUCER, api.CommandError, ends_with_owner=True),

    Command(T.SUBSCRIBE, Answerer.TOPIC, api.CommandError,
            right=CONSUME, denial="Client is not authorized to subscribe"),
    Command(T.FLOW, Answerer.CONSUMER, is_light=True),
    Command(T.ACK, Answerer.CONSUMER, api.CommandAckResponse, {"consumer_id": "consumer_id"},
            behind=Sends.NONE, is_light=True),
    Command(T.REDELIVER_UNACKNOWLEDGED_MESSAGES, Answerer.CONSUMER),
    Command(T.SEEK, Answerer.CONSUMER, api.CommandError),
    Command(T.GET_LAST_MESSAGE_ID, Answerer.CONSUMER, api.CommandError),
    Command(T.CONSUMER_STATS, Answerer.CONSUMER, api.CommandConsumerStatsResponse),
    Command(T.UNSUBSCRIBE, Answerer.CONSUMER, api.CommandError),
    Command(T.CLOSE_CONSUMER, Answerer.CONSUMER, api.CommandError, ends_with_owner=True),

    # Clients find the coordinator of an answer by the most bits of the transaction's id, so refusals have these too.
    Command(T.TC_CLIENT_CONNECT_REQUEST, error=api.CommandTcClientConnectResponse),
    Command(T.NEW_TXN, Answerer.COORDINATOR, api.CommandNewTxnResponse, {"txnid_most_bits": "tc_id"},
            behind=Sends.NONE, is_light=True),
    Command(T.ADD_PARTITION_TO_TXN, Answerer.COORDINATOR, api.CommandAddPartitionToTxnResponse, _TRANSACTION,
            behind=Sends.NONE),
    Command(T.ADD_SUBSCRIPTION_TO_TXN, Answerer.COORDINATOR, api.CommandAddSubscriptionToTxnResponse, _TRANSACTION,
            behind=Sends.NONE),
    Command(T.END_TXN, Answerer.COORDINATOR, api.CommandEndTxnResponse, _TRANSACTION, behind=Sends.OF_ITS_TRANSACTION,
            is_light=True),
    # Only brokers of a cluster tell each other that a transaction has ended on one topic.
    Command(T.END_TXN_ON_PARTITION, error=api.CommandEndTxnOnPartitionResponse, ids=_TRANSACTION),
    Command(T.END_TXN_ON_SUBSCRIPTION, error=api.CommandEndTxnOnSubscriptionResponse, ids=_TRANSACTION),
    Command(T.WATCH_TC_ASSIGNMENTS, error=api.CommandWatchTcAssignmentsUpdate, id_field="watch_id"),
    Command(T.WATCH_TC_ASSIGNMENTS_CLOSE),

    # Clients of Pulsar 5.  An update of a watch is also the answer that opens or refuses the watch.
    Command(T.SCALABLE_TOPIC_LOOKUP, error=api.CommandScalableTopicUpdate, id_field="session_id",
            right=LOOKUP, denial="Client is not authorized to Lookup"),
    Command(T.SCALABLE_TOPIC_CLOSE),
    Command(T.SCALABLE_TOPIC_SUBSCRIBE, Answerer.REGISTRAR, api.CommandScalableTopicSubscribeResponse,
            right=CONSUME, denial="Client is not authorized to subscribe", behind=Sends.NONE),
    Command(T.SCALABLE_TOPIC_UNSUBSCRIBE, Answerer.REGISTRAR, api.CommandError, behind=Sends.NONE,
            ends_with_owner=True),
    Command(T.WATCH_SCALABLE_TOPICS, error=api.CommandWatchScalableTopicsUpdate, id_field="watch_id",
            right=LOOKUP, denial="Client is not authorized to watch scalable topics"),
    Command(T.WATCH_SCALABLE_TOPICS_CLOSE),
)}


def request_of(command: api.BaseCommand) -> Any:
    """Return a client's command's own message, such as `command.producer`."""
    return getattr(command, TABLE[command.type].field)


def requested_id(command: api.BaseCommand) -> int:
    """Return the id of the producer or consumer that a PRODUCER or SUBSCRIBE creates."""
    return command.producer.producer_id if command.type == T.PRODUCER else command.subscribe.consumer_id

"""Commands about positions: SEEK resets a subscription, GET_LAST_MESSAGE_ID asks for the last message of its topic."""
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto import responses
from geminga.proto.commands import T
from geminga.proto.errors import Refusal
from geminga.proto.varints import signed
from geminga.storage.commands.consumers import consumer_of
from geminga.storage.commands.requests import carries_out
from geminga.storage.commands.subscriptions import close_consumers, position_of, reset_subscription
from geminga.storage.open_topics import acknowledge
from geminga.storage.open_topics.answers import succeed
from geminga.storage.open_topics.clients import Clients
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.session import Session
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Subscription


def _stored(subscription: Subscription, what: str) -> Partition:
    """Return the subscription's partition.  Raises Refusal for a non-persistent topic.

    what: the command, for the error text.
    """
    topic = subscription.partition
    if not isinstance(topic, Partition):
        raise Refusal(api.NotAllowedError, f"{what} is not supported on a non-persistent topic")
    return topic


@carries_out(T.SEEK)
def seek(decisions: Decisions, clients: Clients, session: Session, request: api.CommandSeek) -> None:
    """SEEK: reset the consumer's subscription to a message id or a time.  Its consumers are closed, and reconnect."""
    subscription = consumer_of(session, request.consumer_id).subscription
    partition = _stored(subscription, "SEEK")
    view = partition.view if subscription.reads_compacted else None
    start = None
    if request.HasField("message_id"):
        start = position_of(request.message_id)
        position = partition.mark_delete_before(start, view)
    elif request.HasField("message_publish_time"):
        position = partition.mark_delete_before_time(signed(request.message_publish_time), view)
    else:
        raise Refusal(api.MetadataError, "SEEK names neither a message id nor a time")
    close_consumers(decisions, clients, subscription)
    reset_subscription(decisions, subscription, position)
    if start is not None:
        acknowledge.begin_within(decisions, subscription, start, request.message_id.ack_set, by_client=True)
    if not subscription.is_durable:
        clients.consumers.expected_readers[subscription] = decisions.now_ms
    succeed(decisions, session, request.request_id)


@carries_out(T.GET_LAST_MESSAGE_ID)
def get_last_message_id(decisions: Decisions, topics: TopicTable, session: Session,
                        request: api.CommandGetLastMessageId) -> None:
    """GET_LAST_MESSAGE_ID: answer with the last message of the topic, and with the mark-delete position.

    Raises Refusal in a sealed segment in which a transaction is open.  A checkpoint consumer of Pulsar 5 leaves a
    sealed segment when it has the last message, and would never get those of the transaction, nor those behind.  It
    asks again.
    """
    subscription = consumer_of(session, request.consumer_id).subscription
    partition = _stored(subscription, "GET_LAST_MESSAGE_ID")
    if partition.is_terminated and partition.limit is not None and topics.catalogue.topics.whole(
            partition.name).is_scalable:
        raise Refusal(api.ServiceNotReady, "A transaction is open in the sealed segment; try again")
    number = partition.name.partition
    ledger_id, entry_id, batch_index = _last_message(partition, subscription)
    mark_delete = subscription.cursor.mark_delete
    data = responses.last_message_id(
        request.request_id, responses.message_id(ledger_id, entry_id, number, batch_index),
        responses.message_id(*mark_delete, number))
    decisions.outbox(session.worker).reply(session.connection, data, request_id=request.request_id)


def _last_message(partition: Partition, subscription: Subscription) -> tuple[int, int, int]:
    """Return (ledger, entry, batch index) of the last message for the subscription's consumers, each -1 without one."""
    last, view = partition.last_message(), subscription.view or partition.view
    if not subscription.reads_compacted or view is None:
        return last
    # A subscription that has passed its view reads ledgers, from the mark-delete position on.
    read = subscription.cursor.mark_delete if subscription.view is None else view.horizon
    return last if last[:2] > read else view.last_message

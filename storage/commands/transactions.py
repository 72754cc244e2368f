"""Commands about transactions: begin, add partitions and subscriptions, end.  A coordinator carries them out."""
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto import responses
from geminga.proto.commands import T
from geminga.proto.errors import Refusal
from geminga.storage.commands.requests import carries_out
from geminga.storage.open_topics.options_in_force import OptionsInForce
from geminga.storage.open_topics.session import Session
from geminga.storage.transactions.coordinator import Coordinator

# Reading a name of the enum takes as long as a dozen lines.
_ADD_PARTITION, _ADD_SUBSCRIPTION, _END = int(T.ADD_PARTITION_TO_TXN), int(T.ADD_SUBSCRIPTION_TO_TXN), int(T.END_TXN)


@carries_out(T.NEW_TXN)
def new_transaction(options: OptionsInForce, coordinator: Coordinator, session: Session,
                    request: api.CommandNewTxn) -> None:
    """NEW_TXN."""
    _refuse_disabled(options)
    coordinator.new(session, request.request_id, request.tc_id, request.txn_ttl_millis)


@carries_out(T.ADD_PARTITION_TO_TXN)
def add_partitions(coordinator: Coordinator, session: Session, request: api.CommandAddPartitionToTxn) -> None:
    """ADD_PARTITION_TO_TXN: the transaction may publish to these topics."""
    coordinator.add(
        session, request.request_id, (request.txnid_most_bits, request.txnid_least_bits),
        [(topic, None) for topic in request.partitions], _ADD_PARTITION, responses.added_partition)


@carries_out(T.ADD_SUBSCRIPTION_TO_TXN)
def add_subscriptions(coordinator: Coordinator, session: Session, request: api.CommandAddSubscriptionToTxn) -> None:
    """ADD_SUBSCRIPTION_TO_TXN: the transaction may acknowledge on these subscriptions."""
    coordinator.add(
        session, request.request_id, (request.txnid_most_bits, request.txnid_least_bits),
        [(each.topic, each.subscription) for each in request.subscription], _ADD_SUBSCRIPTION,
        responses.added_subscription)


@carries_out(T.END_TXN)
def end_transaction(coordinator: Coordinator, session: Session, request: api.CommandEndTxn) -> None:
    """END_TXN: commit or abort."""
    if not request.HasField("txn_action"):
        raise Refusal(api.InvalidTxnStatus, "END_TXN has no action")
    coordinator.end(
        session, request.request_id, (request.txnid_most_bits, request.txnid_least_bits), _END,
        responses.ended_transaction, commits=request.txn_action == api.COMMIT)


def _refuse_disabled(options: OptionsInForce) -> None:
    if not options.current.transactions:
        raise Refusal(api.NotAllowedError, "Transactions are not enabled.")

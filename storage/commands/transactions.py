"""Commands about transactions: begin, add partitions and subscriptions, end.  A coordinator carries them out."""
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto import responses
from geminga.proto.errors import Refusal
from geminga.storage.topics.owner_context import OwnerContext
from geminga.storage.topics.session import Session


def new_transaction(owner: OwnerContext, session: Session, command: api.BaseCommand) -> None:
    """NEW_TXN."""
    _refuse_disabled(owner)
    request = command.newTxn
    owner.coordinator.new(session, request.request_id, request.tc_id, request.txn_ttl_millis)


def add_partitions(owner: OwnerContext, session: Session, command: api.BaseCommand) -> None:
    """ADD_PARTITION_TO_TXN: the transaction may publish to these topics."""
    request = command.addPartitionToTxn
    owner.coordinator.add(
        session, request.request_id, (request.txnid_most_bits, request.txnid_least_bits),
        [(topic, None) for topic in request.partitions], command.type, responses.added_partition)


def add_subscriptions(owner: OwnerContext, session: Session, command: api.BaseCommand) -> None:
    """ADD_SUBSCRIPTION_TO_TXN: the transaction may acknowledge on these subscriptions."""
    request = command.addSubscriptionToTxn
    owner.coordinator.add(
        session, request.request_id, (request.txnid_most_bits, request.txnid_least_bits),
        [(each.topic, each.subscription) for each in request.subscription], command.type,
        responses.added_subscription)


def end_transaction(owner: OwnerContext, session: Session, command: api.BaseCommand) -> None:
    """END_TXN: commit or abort."""
    request = command.endTxn
    if not request.HasField("txn_action"):
        raise Refusal(api.InvalidTxnStatus, "END_TXN has no action")
    owner.coordinator.end(
        session, request.request_id, (request.txnid_most_bits, request.txnid_least_bits), command.type,
        responses.ended_transaction, commits=request.txn_action == api.COMMIT)


def _refuse_disabled(owner: OwnerContext) -> None:
    if not owner.options.transactions:
        raise Refusal(api.NotAllowedError, "Transactions are not enabled.")

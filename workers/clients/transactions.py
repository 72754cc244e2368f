"""Transactions of clients: commands on their way to coordinators, and acknowledgements in transactions.

A coordinator's number is the index of its owner.  SENDs in transactions are in messages.py.
"""
from collections.abc import Callable
from typing import Any

from geminga.proto import names, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.acks import WORDS_MAX
from geminga.proto.errors import ErrorCode, ProtocolError
from geminga.workers.clients.client import Client
from geminga.workers.clients.forwarding import forward, pass_on
from geminga.workers.owners.links import OwnerLink

T = api.BaseCommand.Type
DISABLED = "Transactions are not enabled."


def connect(client: Client, command: api.BaseCommand) -> None:
    """TC_CLIENT_CONNECT_REQUEST: every owner is a coordinator, also while its process is being restarted."""
    request = command.tcClientConnectRequest
    if _is_disabled(client, request.request_id):
        return
    client.worker.counters.add("commands")
    if request.tc_id < client.worker.owners.count:
        return client.stream.write(responses.transaction_coordinator_connected(request.request_id))
    client.stream.write(responses.transaction_refused(
        command.type, request.request_id, api.TransactionCoordinatorNotFound, _unknown(request.tc_id)))


def begin(client: Client, command: api.BaseCommand) -> None:
    """NEW_TXN: forward it to the coordinator that the client has chosen."""
    request = command.newTxn
    if request.tc_id < client.worker.owners.count:
        return _coordinate(client, command, request, request.tc_id, 0)
    if not _is_disabled(client, request.request_id):
        _refuse(client, command, request, api.TransactionCoordinatorNotFound, _unknown(request.tc_id), request.tc_id, 0)


def use(client: Client, command: api.BaseCommand) -> None:
    """ADD_PARTITION_TO_TXN, ADD_SUBSCRIPTION_TO_TXN: forward it to the transaction's coordinator."""
    request = getattr(command, _FIELDS[command.type])
    most, least = request.txnid_most_bits, request.txnid_least_bits
    if names.transaction(most, least) is not None:
        return _coordinate(client, command, request, most, least)
    if not _is_disabled(client, request.request_id):
        _refuse(client, command, request, api.TransactionNotFound, f"There is no transaction ({most},{least})",
                most, least)


def end(client: Client, command: api.BaseCommand) -> None:
    """END_TXN: forward it to the transaction's coordinator.  Raises ProtocolError: it says neither commit nor abort."""
    if not command.endTxn.HasField("txn_action"):
        raise ProtocolError("END_TXN without an action")
    use(client, command)


_FIELDS = {T.ADD_PARTITION_TO_TXN: "addPartitionToTxn", T.ADD_SUBSCRIPTION_TO_TXN: "addSubscriptionToTxn",
           T.END_TXN: "endTxn"}


def _coordinate(client: Client, command: api.BaseCommand, request: Any, most: int, least: int) -> None:
    """Forward a command to the coordinator that the most bits of the transaction's id name."""
    if _is_disabled(client, request.request_id):
        return
    link = client.worker.owners.link_to(most)
    if link is None:      # clients try again for some time
        return _refuse(client, command, request, api.TransactionCoordinatorNotFound,
                       "The coordinator is being restarted; try again", most, least)
    forward(client, link, command, request, (most, least))


def _is_disabled(client: Client, request_id: int) -> bool:
    """Whether transactions are switched off; if so, answer the request with that."""
    if client.worker.options.transactions:
        return False
    client.worker.counters.add("commands")
    client.stream.write(responses.error(request_id, api.NotAllowedError, DISABLED))
    return True


def _refuse(client: Client, command: api.BaseCommand, request: Any, code: ErrorCode, message: str, most: int,
            least: int) -> None:
    client.worker.counters.add("commands")
    client.stream.write(responses.transaction_refused(
        command.type, request.request_id, code, message, most, least))


def _unknown(coordinator: int) -> str:
    return f"There is no transaction coordinator {coordinator}"


def refuse_brokers(client: Client, command: api.BaseCommand) -> None:
    """END_TXN_ON_PARTITION, END_TXN_ON_SUBSCRIPTION: only brokers of a cluster tell each other such things."""
    request = command.endTxnOnPartition if command.type == T.END_TXN_ON_PARTITION else command.endTxnOnSubscription
    _refuse(client, command, request, api.NotAllowedError, "Only the transaction as a whole can be ended",
            request.txnid_most_bits, request.txnid_least_bits)


def acknowledge(client: Client, link: OwnerLink, command: api.BaseCommand) -> None:
    """ACK in a transaction: forward it to the consumer's owner, behind everything that came before it."""
    request = command.ack
    most, least = request.txnid_most_bits, request.txnid_least_bits
    refusal: tuple[ErrorCode, str] | None = None
    if not client.worker.options.transactions:
        refusal = api.NotAllowedError, DISABLED
    elif names.transaction(most, least) is None:
        refusal = api.TransactionNotFound, f"There is no transaction ({most},{least})"
    if refusal is not None:
        if request.HasField("request_id"):
            client.stream.write(responses.ack_response(request.consumer_id, request.request_id, refusal))
        return
    for message_id in request.message_id:
        del message_id.ack_set[WORDS_MAX:]
    if request.HasField("request_id"):
        forward(client, link, command, request, (request.consumer_id,))
    else:
        pass_on(client, link, command)


COMMANDS: dict[int, Callable[[Client, api.BaseCommand], None]] = {
    T.TC_CLIENT_CONNECT_REQUEST: connect, T.NEW_TXN: begin, T.ADD_PARTITION_TO_TXN: use,
    T.ADD_SUBSCRIPTION_TO_TXN: use, T.END_TXN: end,
    T.END_TXN_ON_PARTITION: refuse_brokers, T.END_TXN_ON_SUBSCRIPTION: refuse_brokers,
}

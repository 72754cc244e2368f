"""Transactions of clients: commands on their way to coordinators, and acknowledgements in transactions.

A coordinator's number is the index of its owner.  SENDs in transactions are in messages.py.
"""
from geminga.proto import names, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.acks import WORDS_MAX
from geminga.proto.commands import request_of
from geminga.proto.errors import ProtocolError, Refusal
from geminga.workers.clients.client import Client
from geminga.workers.clients.forwarding import forward
from geminga.workers.owners.links import OwnerLink

DISABLED = "Transactions are not enabled."


def connect(client: Client, command: api.BaseCommand) -> None:
    """TC_CLIENT_CONNECT_REQUEST: every owner is a coordinator, also while its process is being restarted."""
    request = command.tcClientConnectRequest
    if _is_disabled(client, request.request_id):
        return
    client.worker.counters.add("commands")
    if request.tc_id >= client.worker.owners.count:
        raise _unknown(request.tc_id)
    client.stream.write(responses.transaction_coordinator_connected(request.request_id))


def watch(client: Client, request: api.CommandWatchTcAssignments) -> bytes:
    """Answer WATCH_TC_ASSIGNMENTS: all coordinators are here, and always will be, so no update follows.

    Raises Refusal: transactions are switched off.
    """
    worker = client.worker
    if not worker.options.transactions:
        raise Refusal(api.NotAllowedError, DISABLED)
    count, urls = min(worker.owners.count, names.COORDINATOR_MAX + 1), worker.directory.urls_at(client.stream.own_host)
    return responses.coordinators(request.watch_id, count, *urls)


def begin(client: Client, command: api.BaseCommand) -> None:
    """NEW_TXN: forward it to the coordinator that the client has chosen."""
    request = command.newTxn
    if _is_disabled(client, request.request_id):
        return
    if request.tc_id >= client.worker.owners.count:
        client.worker.counters.add("commands")
        raise _unknown(request.tc_id)
    _coordinate(client, command, request.tc_id)


def use(client: Client, command: api.BaseCommand) -> None:
    """Forward a command about a transaction to the transaction's coordinator."""
    request = request_of(command)
    if _is_disabled(client, request.request_id):
        return
    most, least = request.txnid_most_bits, request.txnid_least_bits
    if names.transaction(most, least) is None:
        client.worker.counters.add("commands")
        raise _missing(most, least)
    _coordinate(client, command, most)


def end(client: Client, command: api.BaseCommand) -> None:
    """END_TXN: forward it to the transaction's coordinator.  Raises ProtocolError: it says neither commit nor abort."""
    if not command.endTxn.HasField("txn_action"):
        raise ProtocolError("END_TXN without an action")
    use(client, command)


def _coordinate(client: Client, command: api.BaseCommand, coordinator: int) -> None:
    link = client.worker.owners.link_to(coordinator)
    if link is None:      # clients try again for some time
        client.worker.counters.add("commands")
        raise Refusal(api.TransactionCoordinatorNotFound, "The coordinator is being restarted; try again")
    forward(client, link, command, request_of(command))


def _is_disabled(client: Client, request_id: int) -> bool:
    """Whether transactions are switched off; if so, answer the request with that, by ERROR as Pulsar does."""
    if client.worker.options.transactions or client.is_replicator:      # which moves dead letters in transactions
        return False
    client.worker.counters.add("commands")
    client.stream.write(responses.error(request_id, api.NotAllowedError, DISABLED))
    return True


def _unknown(coordinator: int) -> Refusal:
    return Refusal(api.TransactionCoordinatorNotFound, f"There is no transaction coordinator {coordinator}")


def _missing(most: int, least: int) -> Refusal:
    return Refusal(api.TransactionNotFound, f"There is no transaction ({most},{least})")


def refuse_brokers(client: Client, command: api.BaseCommand) -> None:
    """END_TXN_ON_PARTITION, END_TXN_ON_SUBSCRIPTION: only brokers of a cluster tell each other such things."""
    client.worker.counters.add("commands")
    raise Refusal(api.NotAllowedError, "Only the transaction as a whole can be ended")


def acknowledge(client: Client, link: OwnerLink, command: api.BaseCommand) -> None:
    """ACK in a transaction: forward it to the consumer's owner, behind everything that came before it."""
    request = command.ack
    most, least = request.txnid_most_bits, request.txnid_least_bits
    if not (client.worker.options.transactions or client.is_replicator):
        raise Refusal(api.NotAllowedError, DISABLED)
    if names.transaction(most, least) is None:
        raise _missing(most, least)
    for message_id in request.message_id:
        del message_id.ack_set[WORDS_MAX:]
    forward(client, link, command, request)

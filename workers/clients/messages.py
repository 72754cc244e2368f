"""Messages of a client on their way to owners, and owners' receipts on their way back: SEND, ACK and FLOW.

Rows get the owner's handle here, and gather in the link to that owner until the end of the pass.
"""
import struct
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from geminga.proto import deliveries, envelope, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.acks import WORDS_MAX, EntryAck, EntryAcks
from geminga.proto.connection import Send, SendInTransaction, SendRefused, Sends, SendsInTransaction
from geminga.proto.errors import ProtocolError
from geminga.proto.sends import PRODUCER_ID, SEQUENCE_ID, choose
from geminga.workers.clients import transactions
from geminga.workers.clients.client import Client
from geminga.workers.clients.routes import Route
from geminga.workers.owners.links import OwnerLink

_ACK, _CUMULATIVE = api.BaseCommand.ACK, api.CommandAck.Cumulative
_DAMAGED_MAX = 100               # messages of one ACK that its client could not read; their owner is told of no more


# -- SEND

def publish_one(client: Client, send: Send) -> None:
    """Forward one SEND to the owner of its producer."""
    route = client.routes.publishing(send.row[PRODUCER_ID])
    if route is not None:
        link = route.link
        assert link is not None
        link.send(route.handle, client.number, send.row, send.entry)
        client.worker.owners.schedule_flush(link)


def publish_one_in_transaction(client: Client, send: SendInTransaction) -> None:
    """Forward one SEND in a transaction to the owner of its producer, which knows whether the transaction is open."""
    if not client.worker.options.transactions:
        return _refuse_disabled(client, send.row[PRODUCER_ID], send.row[SEQUENCE_ID])
    route = client.routes.publishing(send.row[PRODUCER_ID])
    if route is not None:
        link = route.link
        assert link is not None
        link.send_in_transaction(route.handle, client.number, send.row, send.entry)
        client.worker.owners.schedule_flush(link)


def publish_in_transaction(client: Client, sends: SendsInTransaction) -> None:
    """Forward a run of SENDs in transactions; see `publish`."""
    if client.worker.options.transactions:
        return publish(client, sends, envelope.SENDS_IN_TRANSACTIONS)
    for producer_id, sequence_id in zip(
            sends.rows["producer_id"].tolist(), sends.rows["sequence_id"].tolist(), strict=True):
        _refuse_disabled(client, producer_id, sequence_id)


def _refuse_disabled(client: Client, producer_id: int, sequence_id: int) -> None:
    """Refuse a SEND in a transaction because transactions are switched off."""
    refuse_send(client, SendRefused(producer_id, sequence_id, api.NotAllowedError, transactions.DISABLED))


def publish(client: Client, sends: Sends, kind: int = envelope.SENDS) -> None:
    """Forward many SENDs, rows (n,) SEND_ROW, to the owners of their producers.

    kind: of the envelope's section.
    """
    rows, data = sends.rows, sends.data
    ids = rows["producer_id"]
    rows["connection"] = client.number
    first = ids.item(0)
    if (ids == first).all():
        route = client.routes.publishing(first)
        if route is not None:
            rows["producer"] = route.handle
            assert route.link is not None
            _forward(client, route.link, rows, data, kind)
        return
    distinct, inverse = np.unique(ids, return_inverse=True)
    routes = [client.routes.publishing(producer_id) for producer_id in distinct.tolist()]
    rows["producer"] = np.array([route.handle if route else 0 for route in routes], np.uint64)[inverse]
    for link in {route.link for route in routes if route is not None and route.link is not None}:
        is_for_link = np.array([route is not None and route.link is link for route in routes])[inverse]
        _forward(client, link, *choose(rows, data, is_for_link), kind)


def _forward(client: Client, link: OwnerLink, rows: NDArray[np.void], data: bytes | memoryview, kind: int) -> None:
    link.sends(rows, data, kind)
    client.worker.owners.schedule_flush(link)


def refuse_send(client: Client, refused: SendRefused) -> None:
    """Answer SEND_ERROR to a SEND that breaks a limit.  Raises ProtocolError: the client has no such producer."""
    client.worker.counters.add("sends_refused")
    route = client.routes.publishing(refused.producer_id)
    if route is not None and route.is_replicator:
        return _end_replicator(client, route, refused)
    client.stream.write(responses.send_error(refused.producer_id, refused.sequence_id, refused.code, refused.message))


def _end_replicator(client: Client, route: Route, refused: SendRefused) -> None:
    """Close a replicator's producer because of a SEND that is refused, with the error that makes it send again.

    Its later SENDs are ignored: were one stored, the refused message would count as stored too when it comes again.
    The owner writes the error behind the receipts of earlier SENDs.
    """
    link, producer_id = route.link, route.object_id
    assert link is not None
    frame = responses.send_error(producer_id, refused.sequence_id, api.PersistenceError, refused.message)
    client.routes.drop(route)
    client.routes.remember_closed(producer_id)
    link.command(client.number, client.protocol_version,
                 b"%d %d " % (producer_id, route.handle) + frame + responses.close_producer(producer_id),
                 envelope.SEND_REFUSED)
    client.worker.owners.schedule_flush()


def write_receipts(clients: Mapping[int, Client], link: OwnerLink, rows: NDArray[np.void], data: memoryview) -> None:
    """Write SEND_RECEIPTs for the entries that an owner has stored: rows (n,) RECEIPT_ROW."""
    for connection, frames in deliveries.receipts(rows):
        client = clients.get(connection)
        if client is not None:
            client.stream.write(frames)


# -- FLOW and ACK

def flow(client: Client, command: api.BaseCommand) -> None:
    """Forward the permits of a FLOW to the consumer's owner.  Raises ProtocolError: a FLOW with 0 permits."""
    request = command.flow
    if request.messagePermits == 0:
        raise ProtocolError("FLOW with no permits")
    route = client.routes.consuming(request.consumer_id)
    if route is not None:
        assert route.link is not None
        route.link.flow(route.handle, request.messagePermits)
        client.worker.owners.schedule_flush()


def acknowledge_one(client: Client, ack: EntryAck) -> None:
    """Forward the acknowledgement of one entry, or of all up to it, to the consumer's owner."""
    route = client.routes.consuming(ack.consumer_id)
    if route is not None:
        link = route.link
        assert link is not None
        flags = envelope.CUMULATIVE if ack.is_cumulative else 0
        link.acks([(route.handle, ack.ledger_id, ack.entry_id, 0, flags, 0)])
        client.worker.owners.flush_acks_soon(link)


def acknowledge_many(client: Client, acks: EntryAcks) -> None:
    """Forward acknowledgements of whole entries, decoded as arrays, to the consumer's owner."""
    route = client.routes.consuming(acks.consumer_id)
    if route is None:
        return _refuse_ack(client, acks.consumer_id, acks.request_id)
    rows = np.zeros(len(acks.ledger_ids), envelope.ACK_ROW)
    rows["consumer"], rows["ledger_id"], rows["entry_id"] = route.handle, acks.ledger_ids, acks.entry_ids
    if acks.request_id is not None:
        rows["request_id"][-1], rows["flags"][-1] = acks.request_id, envelope.WANTS_RESPONSE
    link = route.link
    assert link is not None
    if acks.request_id is not None and not _awaits(client, link, acks.consumer_id, acks.request_id):
        return
    link.many_acks(rows)
    if acks.request_id is None:
        client.worker.owners.flush_acks_soon(link)
    else:
        client.worker.owners.schedule_flush(link)


def acknowledge(client: Client, command: api.BaseCommand) -> None:
    """Forward one ACK of any kind to the consumer's owner."""
    request = command.ack
    route = client.routes.consuming(request.consumer_id)
    if route is None:
        request_id = request.request_id if request.HasField("request_id") else None
        return _refuse_ack(client, request.consumer_id, request_id)
    link = route.link
    assert link is not None
    if request.txnid_most_bits or request.txnid_least_bits:
        return transactions.acknowledge(client, link, command)
    if request.HasField("validation_error") and request.validation_error == api.CommandAck.DecryptionError:
        # A client checks the checksum before it decrypts, so after DecryptionError its key is wrong, not the entry.
        client.worker.counters.add("acks_undecrypted", len(request.message_id))
    elif request.HasField("validation_error"):
        damaged = api.CommandAck(consumer_id=request.consumer_id, ack_type=request.ack_type,
                                 validation_error=request.validation_error,
                                 message_id=request.message_id[:_DAMAGED_MAX])
        link.command(client.number, client.protocol_version, damaged.SerializeToString(), envelope.DAMAGED)
    rows, words = _ack_rows(request, route.handle)
    if not request.HasField("request_id"):
        link.acks(rows, words)
        return client.worker.owners.flush_acks_soon(link)
    if not _awaits(client, link, request.consumer_id, request.request_id):
        return
    if not rows:
        rows.append((route.handle, 0, 0, 0, envelope.NOTHING, 0))
    rows[-1] = (*rows[-1][:3], request.request_id, rows[-1][4] | envelope.WANTS_RESPONSE, rows[-1][5])
    link.acks(rows, words)
    client.worker.owners.schedule_flush(link)


def _awaits(client: Client, link: OwnerLink, consumer_id: int, request_id: int) -> bool:
    """Record that a client waits for the answer to an ACK, so that it gets one if the owner ends first.

    Returns False, and refuses the ACK, if the client has too many requests without answers.
    """
    if client.requests.is_full:
        client.stream.write(responses.refusal_by_ids(_ACK, request_id, (consumer_id,), api.TooManyRequests,
                                                     "Too many requests are not answered yet"))
        return False
    client.requests.add(link, request_id, _ACK, (consumer_id,))
    return True


def _refuse_ack(client: Client, consumer_id: int, request_id: int | None) -> None:
    """Refuse an ACK of a consumer that was just closed, by an unload for example, if its client waits for an answer."""
    if request_id is not None:
        client.stream.write(responses.ack_refused(consumer_id, request_id))


def _ack_rows(request: api.CommandAck, handle: int) -> tuple[list[tuple[int, ...]], list[bytes]]:
    """Return (ACK_ROWs, words of the ack sets in them) for one ACK.

    A cumulative ACK with several ids gives no rows, as it acknowledges nothing in Pulsar.
    """
    flags = envelope.CUMULATIVE if request.ack_type == _CUMULATIVE else 0
    if flags and len(request.message_id) != 1:
        return [], []
    partial = flags | envelope.PARTIAL
    rows: list[tuple[int, ...]]
    rows = [(handle, message_id.ledgerId, message_id.entryId, 0, partial if message_id.ack_set else flags,
             min(len(message_id.ack_set), WORDS_MAX))
            for message_id in request.message_id]
    words = [struct.pack(f"<{min(len(message_id.ack_set), WORDS_MAX)}q", *message_id.ack_set[:WORDS_MAX])
             for message_id in request.message_id if message_id.ack_set]
    return rows, words

"""Commands of clients on their way to owners, and the answers to those that no owner answers."""
import json
from typing import Any

from geminga.proto import envelope, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import ErrorCode
from geminga.workers.clients.client import Client
from geminga.workers.owners.links import OwnerLink

T = api.BaseCommand.Type
# Commands that are not answered, or whose routes know of the answer.
_NOT_PENDING = T.PRODUCER, T.SUBSCRIBE, T.REDELIVER_UNACKNOWLEDGED_MESSAGES
_CLOSES = T.CLOSE_PRODUCER, T.CLOSE_CONSUMER
COORDINATED = T.NEW_TXN, T.ADD_PARTITION_TO_TXN, T.ADD_SUBSCRIPTION_TO_TXN, T.END_TXN      # answered by a coordinator


def forward(client: Client, link: OwnerLink, command: api.BaseCommand, request: Any,
            about: tuple[int, ...] = ()) -> None:
    """Send a command on to an owner, or refuse it if the client has too many requests without answers.

    request: the message inside the command, such as `command.producer`.  about: see `refused`.
    """
    if command.type not in _NOT_PENDING:
        if client.requests.is_full and command.type not in _CLOSES:
            client.worker.counters.add("commands")
            return client.stream.write(refused(command.type, request.request_id, api.TooManyRequests,
                                               "Too many requests are not answered yet", about))
        client.requests.add(link, request.request_id, command.type, about)
    pass_on(client, link, command)


def pass_on(client: Client, link: OwnerLink, command: api.BaseCommand) -> None:
    """Send a command on to an owner, for which nobody in this worker waits for an answer."""
    client.worker.counters.add("commands")
    if link not in client.introduced:
        introduce(client, link)
    link.command(client.number, client.protocol_version, command.SerializeToString())
    client.worker.owners.schedule_flush()


def refused(kind: int, request_id: int, code: ErrorCode, message: str, about: tuple[int, ...]) -> bytes:
    """Return the frame that refuses a command of this type.

    about: the transaction's most and least bits, for commands to a coordinator; the consumer's id, for an ACK.
    """
    if kind in COORDINATED:
        return responses.transaction_refused(kind, request_id, code, message, *about)
    if kind == T.ACK:
        return responses.ack_response(about[0], request_id, (code, message))
    return responses.error(request_id, code, message)


def introduce(client: Client, link: OwnerLink) -> None:
    """Tell an owner who the client is: before the first command to it, and when what was told is no longer true."""
    client.introduced.add(link)
    link.command(client.number, client.protocol_version, _introduction(client), envelope.INTRODUCED)


def _introduction(client: Client) -> bytes:
    """Describe the client in JSON: for statistics, and for rights to transactions."""
    return json.dumps({"address": f"/{client.stream.address}", "version": client.client_version,
                       "partial": client.supports_partial_producer, "positions": client.sends_positions,
                       "connected_ms": client.connected_ms,
                       "superuser": client.is_superuser,
                       "replicator": client.is_replicator,
                       "role": client.identity.role if client.identity is not None else ""}).encode()

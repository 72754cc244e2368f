"""Commands of clients on their way to owners."""
import json
from typing import Any

from geminga.proto import envelope
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import TABLE, Answerer
from geminga.proto.errors import Refusal
from geminga.workers.clients.client import Client
from geminga.workers.owners.links import OwnerLink


def forward(client: Client, link: OwnerLink, command: api.BaseCommand, request: Any) -> None:
    """Send a command on to an owner.  Raises Refusal: the client has too many requests without answers.

    request: the message inside the command, such as `command.producer`.
    """
    row = TABLE[command.type]
    # The route of a PRODUCER or SUBSCRIBE knows of the answer that it waits for.
    if row.answered_by != Answerer.TOPIC and row.error is not None and request.HasField("request_id"):
        if client.requests.is_full and not row.ends_with_owner:
            client.worker.counters.add("commands")
            raise Refusal(api.TooManyRequests, "Too many requests are not answered yet")
        client.requests.add(link, request.request_id, command.type, row.ids_of(request))
    client.worker.counters.add("commands")
    if link not in client.introduced:
        introduce(client, link)
    link.command(client.number, client.protocol_version, command.SerializeToString())
    client.worker.owners.schedule_flush()


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

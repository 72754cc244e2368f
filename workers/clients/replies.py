"""Owners' answers to one client: its producers and consumers are made and ended, its requests are answered.

If an owner's process ends, requests are answered from here, or repeated to its successor.
"""
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from geminga.proto import envelope, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import TABLE, Answerer
from geminga.proto.errors import Refusal
from geminga.proto.frames import NO_REQUEST
from geminga.workers.clients import commands, stream_consumers
from geminga.workers.clients.client import Client
from geminga.workers.clients.routes import Route
from geminga.workers.failures import attempt
from geminga.workers.owners.links import OwnerLink

_READY = envelope.PRODUCER_READY, envelope.CONSUMER_READY
_GONE = envelope.PRODUCER_GONE, envelope.PRODUCER_SEALED, envelope.CONSUMER_GONE


def handle_replies(clients: Mapping[int, Client], link: OwnerLink, rows: NDArray[np.void], data: memoryview) -> None:
    """Carry out an owner's answers: rows (n,) REPLY_ROW; data: their frames, one behind the other.

    Those to one client are written together.  Each write is a system call, and wakes a client that waits.
    """
    at, unwritten = 0, defaultdict[Client, list[bytes]](list)
    for connection, action, object_id, handle, request_id, size, partition in rows.tolist():
        frames = bytes(data[at:at + size])
        at += size
        if (client := clients.get(connection)) is None:
            continue
        attempt(client.stream, _answered, client, link, request_id)
        if action == envelope.WRITE:
            unwritten[client].append(frames)
        else:
            if client in unwritten:
                attempt(client.stream, client.stream.tell, b"".join(unwritten.pop(client)))
            attempt(client.stream, reply, client, link, action, object_id, handle, request_id, partition, frames)
    for client, answers in unwritten.items():
        attempt(client.stream, client.stream.tell, b"".join(answers))


def _answered(client: Client, link: OwnerLink, request_id: int) -> None:
    withheld = client.requests.answered(link, request_id)
    if withheld is not None:
        commands.answer_lookup(client, withheld.answer, withheld.since)


def reply(client: Client, link: OwnerLink, action: int, object_id: int, handle: int, request_id: int, partition: int,
          data: bytes) -> None:
    """Carry out one REPLY_ROW: register or remove a producer or consumer, then write the frames to the client."""
    route = None
    if action in _READY:
        route = _made(client, link, object_id, handle, request_id, is_producer=action == envelope.PRODUCER_READY)
        if route is None:
            pass      # the owner is told to close it
        elif route.is_producer:
            route.success = data
        else:
            route.partition = partition
    elif action in _GONE:
        is_producer = action != envelope.CONSUMER_GONE
        ended = client.routes.ended(link, object_id, handle, request_id, is_producer=is_producer)
        if ended is None and request_id == NO_REQUEST:
            return      # the client has closed it meanwhile, and may have used the id again
        if action == envelope.PRODUCER_SEALED and ended is not None and ended.follows_layout:
            return client.worker.sealed_producers.leave(client, object_id, data)
    elif action == envelope.CONSUMER_EPOCH and (consumer := client.routes.by_handle.get((link, object_id))) is not None:
        consumer.epoch = handle
    elif action == envelope.PAUSE_READING:
        client.stream.throttle(link)
    elif action == envelope.RESUME_READING:
        client.stream.unthrottle(link)
    elif action == envelope.PROBE:
        if not client.probed_by:
            client.worker.end_if_silent_soon(client)
        if link not in client.probed_by:
            client.probed_by.append(link)
        data = responses.PING
    elif action == envelope.STREAM_REGISTERED:
        stream_consumers.registered(client, link, object_id)
    elif action == envelope.STREAM_ASSIGNED:
        return stream_consumers.assigned(client, link, object_id, data)
    elif action == envelope.END:
        return client.stream.close()
    if data:
        client.stream.tell(data)
    if client.worker.rights is not None and route is not None:
        client.worker.rights.keeps(client, route)      # rights may have changed while the owner opened it


def _made(client: Client, link: OwnerLink, object_id: int, handle: int, request_id: int, *,
          is_producer: bool) -> Route | None:
    """Return the route of a producer or consumer that the owner has made.

    If the client has closed it meanwhile, the owner is told to end it and None is returned.
    """
    route = client.routes.made(link, object_id, handle, request_id, is_producer=is_producer)
    if route is None:
        client.expel(link, object_id, handle, is_producer=is_producer)
    return route


def owner_gone(client: Client, link: OwnerLink) -> None:
    """Close the client's producers and consumers at an owner that has ended, and answer requests that it left
    unanswered.
    """
    lost, unanswered = client.routes.owner_gone(link)
    for route in lost:
        client.tell_closed(route)
    client.probed_by = [probing for probing in client.probed_by if probing is not link]
    client.stream.unthrottle(link)
    client.introduced.discard(link)
    stream_consumers.owner_gone(client, link)
    for kind, request_id, ids, withheld in client.requests.owner_gone(link):
        row = TABLE[kind]
        if withheld is not None:
            commands.handle(client, withheld.command)
        elif row.ends_with_owner:
            client.stream.write(responses.success(request_id))
        else:
            # At either error clients send the command again.
            why = Refusal(api.ServiceNotReady, "The topic's owner ended before it answered")
            if row.answered_by == Answerer.COORDINATOR:
                why = Refusal(api.TransactionCoordinatorNotFound, "The coordinator ended before it answered")
            client.stream.write(responses.refusal_by_ids(kind, request_id, ids, why.code, why.message))
    for route in unanswered:
        _ask_successor(client, route)


def _ask_successor(client: Client, route: Route) -> None:
    """Repeat a PRODUCER or SUBSCRIBE at the owner's successor, once.

    A command that makes every owner fail must not be repeated for ever.
    """
    assert route.request is not None
    topic, command = route.request
    try:
        if route.is_repeated:
            raise Refusal(api.ServiceNotReady, "The topic's owner ended twice over this request")
        route.withdraw = client.worker.waiting.wait(client, topic, command)
        route.link, route.is_repeated, route.is_expelled = None, True, False
    except Refusal as refusal:
        client.routes.drop(route)
        client.refuse_opening(route, refusal)

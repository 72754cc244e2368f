"""Server-sent events: messages as a stream that stays open, for `curl -N` and the EventSource of browsers.

    id: 12:0:-1            the message id, which comes back as Last-Event-ID after a loss
    data: {...}            the message as JSON, in one line

A comment comes at once, and whenever there was no message for a while, so that both sides notice a lost connection.
"""
import json
import time

from aiohttp import web

from geminga.workers.http_messages import receiving
from geminga.workers.http_messages.receiver import Receiver
from geminga.workers.web.delivered import Delivered
from geminga.workers.web.session import TurnedAway

TYPE = "text/event-stream"
_HEARTBEAT_S = 15.0
_COMMENT = b":\n\n"


async def stream(request: web.BaseRequest, receiver: Receiver, count: int) -> web.StreamResponse:
    """Send messages as they come until the client goes, the credentials expire, or the consumer ends.

    count: messages that are written at once.
    """
    answer = web.StreamResponse(headers={"Content-Type": f"{TYPE}; charset=utf-8", "Cache-Control": "no-store"})
    await answer.prepare(request)
    await answer.write(_COMMENT)
    expires_s = receiver.handover.identity.expires_s
    deliveries: list[Delivered] = []
    own = receiver.stream()
    try:
        while (left_s := _HEARTBEAT_S if expires_s is None else expires_s - time.time()) > 0:
            deliveries = await receiver.take(count, min(left_s, _HEARTBEAT_S))
            receiver.streamed(own, deliveries)
            await answer.write(b"".join(map(_event, deliveries)) or _COMMENT)
            deliveries = []
        reason = "The credentials have expired"
    except TurnedAway as error:
        reason = error.text
    except BaseException:      # the client has gone
        receiver.give_back(deliveries)
        raise
    await answer.write(b"event: end\ndata: %s\n\n" % json.dumps({"reason": reason}).encode())
    return answer


def _event(delivery: Delivered) -> bytes:
    return f"id: {receiving.id_of(delivery)}\ndata: {receiving.text_of(delivery)}\n\n".encode()

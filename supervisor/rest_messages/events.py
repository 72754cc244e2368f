"""Server-sent events: messages as a stream that stays open, for `curl -N` and the EventSource of browsers.

    id: 12:0:-1            the message id, which comes back as Last-Event-ID after a loss
    data: {...}            the message as JSON, in one line

A comment comes at once, and whenever there was no message for a while, so that both sides notice a lost connection.
"""
import json
import time

from aiohttp import web

from geminga.supervisor.rest_messages import receiving
from geminga.supervisor.rest_messages.receiver import Receiver
from geminga.supervisor.web.delivered import Delivered
from geminga.supervisor.web.session import Turned

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
    expires_s = receiver.visit.identity.expires_s
    ones: list[Delivered] = []
    own = receiver.stream()
    try:
        while (left_s := _HEARTBEAT_S if expires_s is None else expires_s - time.time()) > 0:
            ones = await receiver.take(count, min(left_s, _HEARTBEAT_S))
            receiver.streamed(own, ones)
            await answer.write(b"".join(map(_event, ones)) or _COMMENT)
            ones = []
        reason = "The credentials have expired"
    except Turned as error:
        reason = error.text
    except BaseException:      # the client has gone
        receiver.give_back(ones)
        raise
    await answer.write(b"event: end\ndata: %s\n\n" % json.dumps({"reason": reason}).encode())
    return answer


def _event(one: Delivered) -> bytes:
    return f"id: {receiving.id_of(one)}\ndata: {receiving.text_of(one)}\n\n".encode()

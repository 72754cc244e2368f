"""Producers of sealed segments whose clients close them by themselves: those of Pulsar 5, which watch the layout.

Java's client of Pulsar 5.0.1 can lose a message when it is told that a producer has ended: by SEND_ERROR as by
CLOSE_PRODUCER it fails all messages of this producer at once.  A thread of the application may be about to add one
more, which is then neither sent nor failed, and all later messages of the topic wait for it.  A client that closes the
producer itself fails its messages when CLOSE_PRODUCER is answered.  So the broker leaves the close to the client, and
answers Java's a little later than it could.  C++'s client has no such gap, and its own close fails while it waits for
an answer.
"""
import asyncio
from typing import Protocol

from geminga.proto import responses
from geminga.workers.clients.routes import Routes
from geminga.workers.clients.stream import Stream

_ANSWERED_LATER = "Pulsar-Java"      # the start of a client's version
_ANSWER_SECONDS = 0.025      # in which a thread that has no processor gets one; sends wait as long
_CLOSE_SECONDS = 2.0         # in which a client has learned of the layout, and has closed its producers


class Closing(Protocol):
    """A client that may have to close producers."""

    stream: Stream
    routes: Routes
    client_version: str


class SealedProducers:
    """The producers of sealed segments that clients of one worker are about to close."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop

    def leave(self, client: Closing, producer_id: int, frames: bytes) -> None:
        """Leave it to a client to close a producer.  frames: they tell a client that does not close it in time."""
        client.routes.sealed[producer_id] = frames
        self._loop.call_later(_CLOSE_SECONDS, self._tell, client, producer_id, frames)

    def _tell(self, client: Closing, producer_id: int, frames: bytes) -> None:
        if client.routes.sealed.get(producer_id) is frames:      # else the client may have used the id again
            del client.routes.sealed[producer_id]
            if not client.stream.transport.is_closing():
                client.stream.tell(frames)

    def closed(self, client: Closing, producer_id: int, request_id: int) -> bool:
        """Answer CLOSE_PRODUCER for a producer that was left to its client; return whether the producer was.

        SENDs that come later are ignored as before: the client's threads may write them behind CLOSE_PRODUCER.
        """
        if client.routes.sealed.pop(producer_id, None) is None:
            return False
        if client.client_version.startswith(_ANSWERED_LATER):
            self._loop.call_later(_ANSWER_SECONDS, self._answer, client, request_id)
        else:
            self._answer(client, request_id)
        return True

    def _answer(self, client: Closing, request_id: int) -> None:
        if not client.stream.transport.is_closing():
            client.stream.write(responses.success(request_id))

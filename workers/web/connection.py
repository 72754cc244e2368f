"""One WebSocket: reads a client's frames for its session, and writes texts for the client as fast as it reads.

    OPENING --open--> OPEN --close--> CLOSING --the client's CLOSE, or a while--> CLOSED

The client is not read while its session is opened, but for what one read brings.
"""
import asyncio
from typing import cast

from geminga.workers.web import frames
from geminga.workers.web.frames import BAD_DATA, CLOSE, GOING_AWAY, NORMAL, PING, PONG, TEXT, Reader
from geminga.workers.web.session import Session

OPENING, OPEN, CLOSING, CLOSED = range(4)
_IDLE_S = 300.0              # without a frame in either direction, after which a connection ends
_GOODBYE_S = 2.0             # that a client has to answer a CLOSE
_UNSENT_MAX = 256 << 10      # bytes that wait for a client; beyond, its session holds back


class Connection(asyncio.Protocol):
    """A client's connection, from the hand-over to its end."""

    __slots__ = ("_early", "_reader", "_transport", "heard", "is_writable", "key", "open_ones", "session", "state")

    def __init__(self, open_ones: "set[Connection]", key: str) -> None:
        """open_ones: all connections of the process.  key: of the handshake."""
        self.open_ones, self.key = open_ones, key
        self.session: Session | None = None
        self.state, self.is_writable = OPENING, True
        self.heard = asyncio.get_running_loop().time()      # when the last frame came or went
        self._reader: Reader | None = None
        self._early = b""                                   # came before the session was open
        self._transport: asyncio.Transport                  # set by connection_made

    def __repr__(self) -> str:
        return f"<Connection state={self.state} {self.session!r}>"

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_MAX)
        self.open_ones.add(self)

    def data_received(self, data: bytes) -> None:
        if self.state == OPENING:
            # Nobody takes this yet, and the event loop begins to read whatever connection_made says.
            self._early += data
            return self._transport.pause_reading()
        if self.state >= CLOSED or self._reader is None:
            return
        self.heard = asyncio.get_running_loop().time()
        messages, violation = self._reader.read(data)
        texts: list[str] = []
        for opcode, payload in messages:
            if opcode == CLOSE:
                self._pass_on(texts)
                return self._answer_close(payload)
            if self.state != OPEN:
                continue
            if opcode == TEXT:
                try:
                    texts.append(payload.decode())
                except UnicodeDecodeError:
                    self._pass_on(texts)
                    return self.close(BAD_DATA, "A text is not UTF-8")
            elif opcode == PING and self.is_writable:      # a client that does not read needs no more answers
                self._transport.write(frames.frame(PONG, payload))
        self._pass_on(texts)
        if violation is not None:
            self.close(violation.code, violation.reason)

    def _pass_on(self, texts: list[str]) -> None:
        if texts and self.state == OPEN and self.session is not None:
            self.session.texts(texts)

    def _answer_close(self, payload: bytes) -> None:
        if self.state == OPEN:
            self._transport.write(frames.closing(frames.code_of(payload), ""))
        self._end()

    def eof_received(self) -> None:
        self._end()

    def pause_writing(self) -> None:
        self.is_writable = False
        if self.session is not None:
            self.session.socket_writable(is_writable=False)

    def resume_writing(self) -> None:
        self.is_writable = True
        if self.session is not None:
            self.session.socket_writable(is_writable=True)

    def connection_lost(self, error: Exception | None) -> None:
        self.state = CLOSED
        self.open_ones.discard(self)
        if self.session is not None:
            session, self.session = self.session, None
            session.closed()

    # -- calls of the process and of the session

    @property
    def is_closed(self) -> bool:
        return self.state >= CLOSING

    def refuse(self, status: int, phrase: str, body: bytes) -> None:
        """Answer the handshake with an error, and end the connection."""
        if self.state == OPENING:
            self._transport.resume_reading()      # unread bytes would make the kernel drop the answer
            self._transport.write(frames.refused(status, phrase, body))
            self._end()

    def open(self, session: Session, rest: bytes) -> None:
        """Accept the handshake.  rest: bytes that the client has sent behind it."""
        if self.state != OPENING:
            return session.closed()
        self.session, self.state, self._reader = session, OPEN, Reader()
        self._transport.write(frames.accepted(self.key))
        self.heard = asyncio.get_running_loop().time()
        self._transport.resume_reading()      # first, as the session may want a pause after what came early
        if early := rest + self._early:
            self._early = b""
            self.data_received(early)

    def send(self, texts: list[bytes]) -> None:
        """Send texts, each of which is UTF-8."""
        if self.state == OPEN:
            self.heard = asyncio.get_running_loop().time()
            self._transport.write(b"".join([frames.frame(TEXT, text) for text in texts]))

    def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Send CLOSE, and end the connection when the client has answered it.  A second call changes nothing."""
        if self.state == OPENING:
            return self.refuse(503, "Service Unavailable", b'{"reason":"The broker stops"}')
        if self.state != OPEN:
            return
        self.state = CLOSING
        self._transport.write(frames.closing(code, reason))
        # The rest of what the client sends is read: unread bytes would make the kernel drop the CLOSE.
        self._transport.resume_reading()
        asyncio.get_running_loop().call_later(_GOODBYE_S, self._transport.abort)
        if self.session is not None:
            session, self.session = self.session, None
            session.closed()

    def _end(self) -> None:
        if self.state != CLOSED:
            self.state = CLOSED
            self._transport.close()
            # A client that does not read would keep what was written for it.
            asyncio.get_running_loop().call_later(_GOODBYE_S, self._transport.abort)

    def pause_reading(self) -> None:
        """Stop reading from the client, which then cannot send more than sockets hold."""
        if self.state == OPEN:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.state == OPEN:
            self._transport.resume_reading()

    def end_if_idle(self, now: float) -> None:
        """End the connection if no frame came or went for long.  now: time of the event loop."""
        if self.state == OPEN and now - self.heard >= _IDLE_S:
            self.close(GOING_AWAY, "Idle timeout expired")



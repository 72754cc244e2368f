"""A client of raw bytes, which can say anything, correct or not, and hears what the broker answers."""
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.runtime import unix_sockets

from ..harness import HANG_SECONDS
from ..proto.client_frames import CONNECT, T, command, entry_of, field_of, message_metadata, send

SECONDS = HANG_SECONDS


class Closed(Exception):
    """The broker has ended the connection."""


class Peer:
    """One connection, and the frames that have come on it."""

    def __init__(self, service_url: str, first: bytes = CONNECT, *, receive_buffer: int = 0, source: str = ""):
        """service_url: pulsar://HOST:PORT, or unix:PATH.  source: the address from which the client connects."""
        address, is_unix = urlsplit(service_url), service_url.startswith(unix_sockets.UNIX)
        self.socket = socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET)
        if source:
            self.socket.bind((source, 0))
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(SECONDS)
        self._data = bytearray()
        self.answers_pings = True
        try:
            if is_unix:
                with unix_sockets.short_path(Path(address.path)) as path:
                    self.socket.connect(path)
            else:
                self.socket.connect((address.hostname, address.port))
            self.say(first)
            if first == CONNECT:
                assert self.hear().type == T.CONNECTED
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_) -> None:
        self.socket.close()

    def say(self, data: bytes) -> None:
        """Send bytes; a broker that has closed the connection meanwhile is noticed by the next hearing."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)

    def end(self) -> None:
        """End the client's own direction of the connection."""
        with suppress(OSError):      # the broker closed it first
            self.socket.shutdown(socket.SHUT_WR)

    def hear_frame(self) -> tuple[api.BaseCommand, bytes]:
        """Return (command, bytes behind it) of the next frame that is no PING.

        Raises Closed; TimeoutError when none comes for the socket's timeout, or for SECONDS without one.
        """
        until = time.monotonic() + (self.socket.gettimeout() or SECONDS)
        while True:
            if len(self._data) >= 8:
                total, size = struct.unpack_from(">II", self._data)
                if len(self._data) >= 4 + total:
                    heard = (
                        api.BaseCommand.FromString(bytes(self._data[8 : 8 + size])),
                        bytes(self._data[8 + size : 4 + total]),
                    )
                    del self._data[:4 + total]
                    if heard[0].type != T.PING:
                        return heard
                    if self.answers_pings:
                        self.say(command(T.PONG))
                    if time.monotonic() > until:
                        raise TimeoutError("nothing but PINGs has come")
                    continue
            try:
                data = self.socket.recv(1 << 20)
            except ConnectionResetError:
                data = b""
            if not data:
                assert not self._data, f"the connection ended inside a frame: {bytes(self._data)}"
                raise Closed
            self._data += data

    def hear(self) -> api.BaseCommand:
        return self.hear_frame()[0]

    def ask(self, kind: int, **fields) -> api.BaseCommand:
        """Send a command, and return the next command that comes."""
        self.say(command(kind, **fields))
        return self.hear()

    def until_closed(self) -> list[api.BaseCommand]:
        """Return every command until the broker ends the connection."""
        heard = []
        try:
            while True:
                heard.append(self.hear())
        except Closed:
            return heard

    # -- what correct clients do

    def open_producer(self, topic: str, producer_id: int = 1) -> None:
        answer = self.ask(T.PRODUCER, topic=topic, producer_id=producer_id, request_id=1)
        assert answer.type == T.PRODUCER_SUCCESS, answer

    def subscribe(self, topic: str, name: str = "sub", consumer_id: int = 1) -> None:
        answer = self.ask(T.SUBSCRIBE, topic=topic, subscription=name, subType=api.CommandSubscribe.Exclusive,
                          consumer_id=consumer_id, request_id=2, initialPosition=api.CommandSubscribe.Earliest)
        assert answer.type == T.SUCCESS, answer


def error_of(answer: api.BaseCommand) -> int:
    """Return the error code of an answer of any kind."""
    body = getattr(answer, field_of(answer.type))
    return body.error if hasattr(body, "error") else body.error_code


_CHECKSUM = 6      # bytes of an entry's magic number and checksum


class Bystander:
    """A correct client beside others: it publishes to a topic of its own and consumes from it."""

    def __init__(self, service_url: str, topic: str):
        # A client of version 0 is sent no PING.  Others are closed unless they answer, and nobody reads this connection
        # while a test runs, which takes a minute where the machine is slow.
        self.peer = Peer(service_url, command(T.CONNECT, client_version="bystander", protocol_version=0))
        assert self.peer.hear().type == T.CONNECTED
        self.peer.open_producer(topic)
        self.peer.subscribe(topic)
        self._rounds = 0

    def round(self) -> None:
        """Send one message to the broker and back, with its receipt."""
        self._rounds += 1
        body = entry_of(message_metadata(sequence_id=self._rounds), b"round %d" % self._rounds)
        self.peer.say(command(T.FLOW, consumer_id=1, messagePermits=1) + send(body, sequence_id=self._rounds))
        heard = {said.type: (said, entry) for said, entry in (self.peer.hear_frame(), self.peer.hear_frame())}
        assert heard.keys() == {T.SEND_RECEIPT, T.MESSAGE}
        assert heard[T.SEND_RECEIPT][0].send_receipt.sequence_id == self._rounds
        message, entry = heard[T.MESSAGE]
        assert entry in (body, body[_CHECKSUM:])      # clients of version 0 know no checksum
        self.peer.say(command(T.ACK, consumer_id=1, ack_type=api.CommandAck.Individual,
                              message_id=[message.message.message_id]))

    def close(self) -> None:
        self.peer.socket.close()

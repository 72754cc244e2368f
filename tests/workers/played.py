"""A real worker whose owners and clients are played by a test: it keeps what they are sent, and says what they say.

    worker = PlayedWorker(folder)             # the real Worker, with two owners
    client = worker.client()                  # the real Client, on a transport that keeps what is written
    client.say(command(T.PRODUCER, ...))
    owner = worker.owners[0]
    owner.commands()                          # what it was asked since the last time
    owner.says(lambda outbox: outbox.reply(...))      # an envelope, as owners seal it

Nothing waits: the loop turns when the test says so, and the test sets the clock.
"""
import asyncio
import os
import struct
from collections import deque
from pathlib import Path
from types import SimpleNamespace

from geminga.proto import envelope, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.catalogue.catalogue import open_catalogue
from geminga.storage.open_topics.decisions import Outbox
from geminga.storage.options import StorageOptions
from geminga.storage.runtime.counters import make_counters
from geminga.storage.runtime.lease import Lease
from geminga.storage.runtime.routing import owner_of
from geminga.workers.addresses import Addresses
from geminga.workers.clients import stream
from geminga.workers.clients.client import Client
from geminga.workers.clients.commands import HANDLERS
from geminga.workers.directory.directory import Directory
from geminga.workers.directory.schemas import SchemaThread
from geminga.workers.identity.authentication import Authenticator
from geminga.workers.identity.authorization import Authorization, Decision
from geminga.workers.identity.options import IdentityOptions
from geminga.workers.options import WorkerOptions
from geminga.workers.owners import links, waiting
from geminga.workers.ports.admission import make_admissions
from geminga.workers.process.worker import Worker

from ..proto.client_frames import CONNECT, field_of

OWNERS = 2


class PlayedLink:
    """The worker's link to an owner: keeps what went through it, in order, and passes on what the owner says."""

    command_cost = 0      # bytes in flight that each command counts for

    def __init__(self, loop: asyncio.AbstractEventLoop):
        # ("sends", rows, entries), ("send", handle, connection, entry), ("acks", rows, words),
        self.said: list[tuple] = []
        # ("flow", handle, permits), ("command", connection, kind, data)
        self.gathered = self.sent = self.taken = 0
        self.is_unheard = self.is_urgent = False
        self._fd, self._other = os.pipe()
        self.socket = SimpleNamespace(getsockopt=lambda _: self._fd, closed=False, inbox=deque())

    # -- what the worker calls

    @property
    def in_flight(self) -> int:
        return self.sent - self.taken

    @property
    def is_due(self) -> bool:
        return False

    has_queued = is_due

    def sends(self, rows, entries, kind=envelope.SENDS) -> None:
        name = "sends" if kind == envelope.SENDS else "sends in transactions"
        self.said.append((name, rows.copy(), entries))
        self.sent += len(entries)

    def send(self, producer, connection, row, entry) -> None:
        self.said.append(("send", producer, connection, entry))
        self.sent += len(entry)

    def send_in_transaction(self, producer, connection, row, entry) -> None:
        self.said.append(("send in a transaction", producer, connection, row, entry))
        self.sent += len(entry)

    def acks(self, rows, words=()) -> None:
        self.said.append(("acks", list(rows), [word for word, in struct.iter_unpack("<Q", b"".join(words))]))

    def many_acks(self, rows) -> None:
        self.said.append(("acks", [tuple(row) for row in rows.tolist()], []))

    def flow(self, consumer, permits) -> None:
        self.said.append(("flow", consumer, permits))

    def command(self, connection, protocol_version, data, kind=envelope.COMMAND) -> None:
        self.said.append(("command", connection, kind, data))
        self.sent += self.command_cost

    def flush(self) -> None:
        """Do nothing: everything is on its way as soon as it is said."""

    def seconds_taken(self) -> list[float]:
        return []

    def close(self) -> None:
        if not self.socket.closed:
            self.socket.closed = True
            os.close(self._fd)
            os.close(self._other)


class PlayedOwner:
    """One owner, over all its starts and ends."""

    def __init__(self, worker: Worker, index: int):
        self._worker, self.index = worker, index
        self.up()

    def up(self) -> None:
        """Start the owner, for the first time or again."""
        self._worker.owner_up(self.index, 1)
        self.link = self._worker.owners._links[self.index]

    def gone(self) -> None:
        self._worker.owner_gone(self.index)

    def heard(self, *kinds: str) -> list[tuple]:
        """Take rows of these kinds, or of any kind, that have come since the last call; the others stay."""
        found = [one for one in self.link.said if not kinds or one[0] in kinds]
        self.link.said[:] = [one for one in self.link.said if one not in found] if kinds else []
        return found

    def commands(self) -> list:
        """Return clients' commands since the last call, and (kind, data) of other messages about them but
        introductions.
        """
        found = [(kind, data) for _, _, kind, data in self.heard("command") if kind != envelope.INTRODUCED]
        return [api.BaseCommand.FromString(data) if kind == envelope.COMMAND else (kind, data) for kind, data in found]

    def says(self, *sayings, taken: int = 0) -> None:
        """Send an envelope to the worker; sayings: functions that each put something into the owner's outbox."""
        outbox = Outbox()
        for say in sayings:
            say(outbox)
        self.link.socket.inbox.append([bytes(part) for part in outbox.seal(taken)])
        self._worker.owners.receive(self.link)

    def replies(self, client: "PlayedClient", data: bytes = b"", **how) -> None:
        self.says(lambda outbox: outbox.reply(client.number, data, **how))


class Transport:
    """A transport that keeps what is written, and is read as the client wants."""

    def __init__(self, client: "PlayedClient"):
        self._client = client
        self.written = bytearray()
        self.unread = 0                    # bytes that the other end has not taken
        self.is_reading, self.is_closed, self.was_aborted = True, False, False
        self.high = 0

    def write(self, data) -> None:
        self.written += data

    def writelines(self, pieces) -> None:
        for piece in pieces:
            self.written += piece

    def get_extra_info(self, name):
        return ("192.0.2.1", 4711) if name == "peername" else None

    def set_write_buffer_limits(self, high) -> None:
        self.high = high

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._client.client.stream.connection_lost(None)

    def abort(self) -> None:
        self.was_aborted = True
        self.close()


class PlayedClient:
    """A client's end of one connection."""

    def __init__(self, worker: "PlayedWorker", connect: bytes):
        self._turn = worker.turn
        self.client = Client(worker.worker, HANDLERS)
        self.transport = Transport(self)
        self.client.stream.connection_made(self.transport)
        self.number = self.client.number
        self.say(connect)
        assert [heard.type for heard in self.hear()] == [api.BaseCommand.CONNECTED]

    def say(self, *frames: bytes) -> None:
        """Say frames in one piece, as far as there is room; they are dealt with at once unless the client is not read
        from.
        """
        data = b"".join(frames)
        while data and not self.transport.is_closed:
            buffer = self.client.stream.get_buffer(-1)
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            self.client.stream.buffer_updated(size)
            data = data[size:]
            while self.client.stream._is_waiting and not self.transport.is_closed:
                self._turn()

    def hear_frames(self) -> list[tuple]:
        """Return (command, bytes behind it) of the frames written since the last call."""
        found, data = [], bytes(self.transport.written)
        self.transport.written.clear()
        while data:
            total, size = int.from_bytes(data[:4], "big"), int.from_bytes(data[4:8], "big")
            found.append((api.BaseCommand.FromString(data[8:8 + size]), data[8 + size:4 + total]))
            data = data[4 + total:]
        return found

    def hear(self) -> list[api.BaseCommand]:
        return [command for command, _ in self.hear_frames()]

    def told(self) -> list[tuple]:
        """Return (type's name, request or object id, error code) of the frames written since the last call."""
        return [_told(command) for command in self.hear()]


def _told(command: api.BaseCommand) -> tuple:
    body = getattr(command, field_of(command.type))
    number = getattr(body, "request_id", None)
    if command.type in (api.BaseCommand.CLOSE_PRODUCER, api.BaseCommand.CLOSE_CONSUMER):
        number = body.producer_id if command.type == api.BaseCommand.CLOSE_PRODUCER else body.consumer_id
    name = api.BaseCommand.Type.Name(command.type)
    return (name, number, body.error) if hasattr(body, "error") else (name,) if number is None else (name, number)


class PlayedRights:
    """Rights by which everybody may do everything, until the test takes a topic away."""

    is_enabled = True

    def __init__(self):
        self.lost: set[str] = set()        # topics that nobody may use any more
        self._version = 0

    def withdraw(self, topic: str) -> None:
        self.lost.add(str(names.parse(topic)))
        self._version += 1

    def version(self) -> int:
        return self._version

    def allows(self, identity, action, resource, subscription="") -> bool:
        return str(resource) not in self.lost

    def decide(self, identity, action, resource, subscription="") -> Decision:
        return Decision(self.allows(identity, action, resource), "")

    decide_resolved = Authorization.decide_resolved


class PlayedWorker:
    """The real worker, with its loop and its owners."""

    def __init__(self, folder: Path, monkeypatch, *, rights: PlayedRights | None = None, **options):
        self.loop = asyncio.new_event_loop()
        monkeypatch.setattr(links, "OwnerLink", lambda *_: PlayedLink(self.loop))
        # On a busy machine the rest would wait for a turn, before which threads may have finished what they do.
        monkeypatch.setattr(waiting, "_RELEASE_SECONDS", 60)
        monkeypatch.setattr(stream, "_SLICE_SECONDS", 60)
        monkeypatch.setattr(links, "zmq_frames", SimpleNamespace(
            has_come=lambda socket: bool(socket.inbox), receive=lambda socket: socket.inbox.popleft()))
        self.counters = make_counters(1)[0]
        path = folder / "catalogue.sqlite"
        self.catalogue = open_catalogue(path)
        storage = StorageOptions()
        directory = Directory(self.catalogue, Addresses("pulsar://127.0.0.1:6650"), storage, OWNERS)
        authorization = rights or SimpleNamespace(is_enabled=False, configure=lambda _: None)
        self.schemas = SchemaThread(path, storage)

        async def made() -> Worker:
            return Worker(1, OWNERS, folder, folder, WorkerOptions(**options), directory, self.schemas, self.counters,
                          make_admissions(1)[0], Authenticator(IdentityOptions()), authorization, Lease())

        self.worker = self.loop.run_until_complete(made())
        self.owners = [PlayedOwner(self.worker, index) for index in range(OWNERS)]

    @staticmethod
    def storage(**options) -> StorageOptions:
        return StorageOptions(**options)

    def turn(self, seconds: float = 0) -> None:
        """Let the loop do what is due, and what falls due within the time."""
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def client(self, connect: bytes = CONNECT) -> PlayedClient:
        return PlayedClient(self, connect)

    def topic(self, index: int, which: int = 0) -> str:
        """Return the name of a topic that belongs to this owner."""
        names = (f"persistent://public/default/t{number}" for number in range(10_000))
        return [
            name
            for name, _ in zip(
                (name for name in names if owner_of(name, OWNERS) == index), range(which + 1), strict=False
            )
        ][which]

    def close(self) -> None:
        for owner in self.owners:
            owner.gone()
        self.turn()
        self.worker.owners._context.term()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.turn()
        self.loop.close()
        self.schemas.close()
        self.catalogue.close()

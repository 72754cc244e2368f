"""Requests: execute commands of clients and answer questions of administration that arrived in envelopes."""
import json
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from geminga.proto import envelope, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import TABLE, Sends, request_of
from geminga.proto.rows import Rows
from geminga.storage.admin.queries import Questions
from geminga.storage.commands.commands import Commands
from geminga.storage.errors import NotDurable
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.discovery import Discovery
from geminga.storage.open_topics.session import Session, Sessions
from geminga.storage.scalable.stream_consumers import StreamConsumers

if TYPE_CHECKING:
    from collections.abc import Callable



def _parsed(data: bytes) -> api.BaseCommand | None:
    """Return a client's command, None if it cannot be parsed."""
    try:
        return api.BaseCommand.FromString(data)
    except DecodeError:
        return None


def concerned(command: api.BaseCommand | None) -> "set[int] | None":
    """Return the transactions whose SENDs a command depends on; None if it depends on others too."""
    row = TABLE.get(command.type) if command is not None else None
    if command is None or row is None or row.behind == Sends.ALL:
        return None
    if row.behind == Sends.NONE:
        return set()
    request = request_of(command)
    transaction = names.transaction(request.txnid_most_bits, request.txnid_least_bits)
    return set() if transaction is None else {transaction}


class Requests:
    """Execution of clients' commands and of administrative questions for one owner."""

    def __init__(self, decisions: Decisions, sessions: Sessions, discovery: Discovery,
                 stream_consumers: StreamConsumers, commands: Commands, questions: Questions):
        self._decisions, self._sessions, self._discovery = decisions, sessions, discovery
        self._stream_consumers = stream_consumers
        self._commands, self._questions = commands, questions
        self.sign_of_life: Callable[[], None] = lambda: None      # called between commands: a pass may have many

    def __repr__(self) -> str:
        return f"<Requests {self._sessions!r}>"

    def answer_questions(self, worker: int, rows: Rows, data: memoryview) -> None:
        """Answer administrative questions: rows (n,) QUESTION_ROW, and their JSON in `data`."""
        at = 0
        for number, size in rows.tolist():
            self._decisions.outbox(worker).answer(number, self._questions.answer(bytes(data[at:at + size])))
            at += size

    def carry_out_commands(self, worker: int, rows: Rows, data: memoryview,
                           apply_before: "Callable[[api.BaseCommand | None], None]") -> None:
        """Execute commands, and apply events of connections: rows (n,) COMMAND_ROW, and their bytes in `data`.

        apply_before: applies what has arrived before, as far as a command depends on it; see `concerned`.
        """
        at = 0
        columns = (rows[name].tolist() for name in ("connection", "kind", "protocol_version", "size"))
        for connection, kind, protocol_version, size in zip(*columns, strict=True):
            key = worker, connection
            session = self._sessions.by_key.get(key)
            if session is None:
                session = Session(worker, connection, protocol_version)
                if kind in (envelope.COMMAND, envelope.INTRODUCED):
                    self._sessions.by_key[key] = session
            if not session.is_over or kind == envelope.CONNECTION_GONE:
                its = bytes(data[at:at + size])
                command = _parsed(its) if kind == envelope.COMMAND else None
                apply_before(command)
                try:
                    if command is not None:
                        self._commands.carry_out(session, command)
                    else:
                        self._apply_event(session, kind, its)
                except NotDurable:
                    raise
                except Exception:
                    self._commands.failed(session)
                if kind == envelope.CONNECTION_GONE:
                    self._sessions.by_key.pop(key, None)
            at += size
            self.sign_of_life()

    def _apply_event(self, session: Session, kind: int, data: bytes) -> None:
        """Apply one event of a connection.  Raises ValueError for another kind, as of a command that nobody can parse.
        """
        if kind == envelope.CONNECTION_GONE:
            self._commands.end_session(session, by_client=True)
        elif kind == envelope.CONNECTION_ALIVE:
            self._commands.resume(session, is_alive=True)
        elif kind == envelope.INTRODUCED:
            client = json.loads(data)
            session.address, session.client_version = client["address"], client["version"]
            session.supports_partial_producer, session.sends_positions = client["partial"], client["positions"]
            session.role, session.connected_ms = client["role"], client["connected_ms"]
            session.is_superuser, session.is_replicator = client["superuser"], client["replicator"]
        elif kind in (envelope.PRODUCER_EXPELLED, envelope.CONSUMER_EXPELLED):
            object_id, _, handle = data.partition(b" ")
            is_producer = kind == envelope.PRODUCER_EXPELLED
            self._commands.expel(session, int(object_id), int(handle or 0), is_producer=is_producer)
        elif kind == envelope.SEND_REFUSED:
            producer_id, handle, frames = data.split(b" ", 2)
            self._commands.refuse_send(session, int(producer_id), int(handle), frames)
        elif kind == envelope.DAMAGED:
            self._commands.report_damaged(session, api.CommandAck.FromString(data))
        elif kind == envelope.DISCOVERS:
            self._discovery.began(session.key, data.decode())
        elif kind == envelope.LOOKED_UP:
            request_id, _, name = data.decode().partition(" ")
            self._discovery.looked_up(names.parse(name), self._decisions.now_ms)
            self._decisions.outbox(session.worker).reply(session.connection, b"", request_id=int(request_id))
        elif kind == envelope.STREAM_RESTORED:
            request = api.CommandScalableTopicSubscribe.FromString(data)
            self._stream_consumers.restore(session.key, request, self._decisions.now_ms)
        elif kind == envelope.STREAM_EXPELLED:
            self._stream_consumers.expel(session.key, int(data))
        else:
            raise ValueError(f"a command of kind {kind}")

    def end_sessions(self, worker: int) -> None:
        """End all sessions of a worker whose process has ended."""
        for key in [key for key in self._sessions.by_key if key[0] == worker]:
            session = self._sessions.by_key[key]
            try:
                self._commands.end_session(session, by_client=False)
            except NotDurable:
                raise
            except Exception:
                self._commands.failed(session)
                self._sessions.by_key.pop(key, None)
            self.sign_of_life()
        self._discovery.worker_gone(worker)

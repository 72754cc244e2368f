"""Requests: execute commands of clients and answer questions of administration that arrived in envelopes."""
import json
import traceback
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from geminga.proto import envelope, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import TABLE, Sends, request_of
from geminga.proto.errors import Refusal
from geminga.proto.rows import Rows
from geminga.storage.admin import queries
from geminga.storage.admin.context import AdministeredOwner
from geminga.storage.commands import commands, consumers, producers
from geminga.storage.commands.requests import refuse
from geminga.storage.errors import CorruptFile, NotDurable, StorageFull, text_of
from geminga.storage.runtime.log import log
from geminga.storage.topics.session import Session
from geminga.storage.upkeep.discovery import Discovery

if TYPE_CHECKING:
    from collections.abc import Callable



def _parsed(data: bytes) -> api.BaseCommand | None:
    """Return a client's command, None if it cannot be parsed."""
    try:
        return api.BaseCommand.FromString(data)
    except DecodeError:
        return None


def _concerned(command: api.BaseCommand | None) -> "set[int] | None":
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

    def __init__(self, owner: AdministeredOwner, discovery: Discovery):
        self._owner, self._discovery = owner, discovery
        self.sign_of_life: Callable[[], None] = lambda: None      # called between commands: a pass may have many

    def __repr__(self) -> str:
        return f"<Requests sessions={len(self._owner.sessions)} parked={len(self._owner.parked)}>"

    def answer_questions(self, worker: int, rows: Rows, data: memoryview) -> None:
        """Answer administrative questions: rows (n,) QUESTION_ROW, and their JSON in `data`."""
        at = 0
        for number, size in rows.tolist():
            self._owner.outbox(worker).answer(number, queries.answer(self._owner, bytes(data[at:at + size])))
            at += size

    def carry_out_commands(self, worker: int, rows: Rows, data: memoryview,
                           apply_before: "Callable[[set[int] | None], None]") -> None:
        """Execute commands, and apply events of connections: rows (n,) COMMAND_ROW, and their bytes in `data`.

        apply_before: applies what has arrived before, as far as it concerns some transactions; see `_concerned`.
        """
        owner, at = self._owner, 0
        columns = (rows[name].tolist() for name in ("connection", "kind", "protocol_version", "size"))
        for connection, kind, protocol_version, size in zip(*columns, strict=True):
            key = worker, connection
            session = owner.sessions.get(key)
            if session is None:
                session = Session(worker, connection, protocol_version)
                if kind in (envelope.COMMAND, envelope.INTRODUCED):
                    owner.sessions[key] = session
            if not session.is_over or kind == envelope.CONNECTION_GONE:
                its = bytes(data[at:at + size])
                command = _parsed(its) if kind == envelope.COMMAND else None
                apply_before(_concerned(command))
                try:
                    if command is not None:
                        self.carry_out(session, command)
                    else:
                        self._apply_event(session, kind, its)
                except NotDurable:
                    raise
                except Exception:
                    self._failed(session)
                if kind == envelope.CONNECTION_GONE:
                    owner.sessions.pop(key, None)
            at += size
            self.sign_of_life()

    def _apply_event(self, session: Session, kind: int, data: bytes) -> None:
        """Apply one event of a connection.  Raises ValueError for another kind, as of a command that nobody can parse.
        """
        owner = self._owner
        if kind == envelope.CONNECTION_GONE:
            commands.end_session(owner, session, by_client=True)
        elif kind == envelope.CONNECTION_ALIVE:
            commands.resume(owner, session, is_alive=True)
        elif kind == envelope.INTRODUCED:
            client = json.loads(data)
            session.address, session.client_version = client["address"], client["version"]
            session.supports_partial_producer, session.sends_positions = client["partial"], client["positions"]
            session.role, session.connected_ms = client["role"], client["connected_ms"]
            session.is_superuser, session.is_replicator = client["superuser"], client["replicator"]
        elif kind in (envelope.PRODUCER_EXPELLED, envelope.CONSUMER_EXPELLED):
            object_id, _, handle = data.partition(b" ")
            is_producer = kind == envelope.PRODUCER_EXPELLED
            commands.expel(owner, session, int(object_id), int(handle or 0), is_producer=is_producer)
        elif kind == envelope.SEND_REFUSED:
            producer_id, handle, frames = data.split(b" ", 2)
            producers.refuse_send(owner, session, int(producer_id), int(handle), frames)
        elif kind == envelope.DAMAGED:
            consumers.report_damaged(owner, session, api.CommandAck.FromString(data))
        elif kind == envelope.DISCOVERS:
            self._discovery.began(session.key, data.decode())
        elif kind == envelope.LOOKED_UP:
            request_id, _, name = data.decode().partition(" ")
            self._discovery.looked_up(names.parse(name), owner.now_ms)
            owner.outbox(session.worker).reply(session.connection, b"", request_id=int(request_id))
        else:
            raise ValueError(f"a command of kind {kind}")

    def carry_out(self, session: Session, command: api.BaseCommand, *, probed: bool = False) -> None:
        """Execute a client's command, or answer it with an error.  probed: see `OwnerContext.carry_out`."""
        owner = self._owner
        try:
            commands.carry_out(owner, session, command, probed=probed)
        except Refusal as refusal:
            refuse(owner, session, command, refusal)
        except StorageFull as error:
            refuse(owner, session, command, Refusal(api.PersistenceError, str(error)))
        except CorruptFile as error:
            owner.log_once(f"{error}; its topic is refused", code="G121")
            refuse(owner, session, command, Refusal(api.PersistenceError, str(error)))
        except OSError as error:
            owner.log_once(text_of(error), code="G103")
            refuse(owner, session, command, Refusal(api.PersistenceError, text_of(error)))
        except NotDurable:
            raise
        except Exception:
            self._failed(session)

    def end_sessions(self, worker: int) -> None:
        """End all sessions of a worker whose process has ended."""
        owner = self._owner
        for key in [key for key in owner.sessions if key[0] == worker]:
            session = owner.sessions[key]
            try:
                commands.end_session(owner, session, by_client=False)
            except NotDurable:
                raise
            except Exception:
                self._failed(session)
                owner.sessions.pop(key, None)
            self.sign_of_life()
        self._discovery.worker_gone(worker)

    def _failed(self, session: Session) -> None:
        """End the connection of a client whose command failed unexpectedly.  Other clients are not affected.

        Commands refuse before they change anything.  A topic or subscription that was created before the failure is
        complete and stays.  A producer or consumer may be in some tables only, so `abandon` searches all of them.

        A failure in a commit, or over many clients' SENDs or acknowledgements, ends the process instead.  It is then
        unknown how much was applied, but a new process that starts from the files has everything that was answered.
        """
        log.error(f"a command failed, and its connection is ended: {traceback.format_exc()}", code="G291",
                  client=session.address.removeprefix("/"))
        session.is_over = True
        commands.abandon(self._owner, session)
        self._owner.outbox(session.worker).reply(session.connection, b"", action=envelope.END)

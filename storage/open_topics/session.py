"""Sessions: client connections with their producers and consumers, as an owner knows them."""
from dataclasses import dataclass, field

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.topics.subscription import Consumer, Producer


@dataclass(eq=False, slots=True)
class Session:
    """One client connection, known to its worker by `connection`."""

    worker: int
    connection: int
    protocol_version: int
    address: str = ""                  # of the client: "/host:port"
    client_version: str = ""
    role: str = ""                     # as which the client is authenticated
    is_superuser: bool = False
    is_replicator: bool = False        # the broker's own process that sends entries to other clusters
    connected_ms: int = 0
    supports_partial_producer: bool = False
    sends_positions: bool = False      # its replicators name the position of each entry in their cluster
    producers: dict[int, Producer] = field(default_factory=dict)     # by the client's id
    consumers: dict[int, Consumer] = field(default_factory=dict)     # by the client's id
    # (type, id) of a parked command -> the thing that it waits for
    waiting: dict[tuple[int, int], object] = field(default_factory=dict)
    told_ended: dict[int, None] = field(default_factory=dict)        # transactions whose end it was told, the newest
    # A command broke the protocol: later ones are ignored until the worker has closed the connection.
    is_over: bool = False

    @property
    def key(self) -> tuple[int, int]:
        """(worker, connection), the key in Sessions.by_key."""
        return self.worker, self.connection

    @property
    def host(self) -> str:
        """The host of the client's address."""
        return self.address.rpartition(":")[0]


# (session, type, id of the producer or consumer) -> the command
ParkedCommands = dict[tuple[Session, int, int], api.BaseCommand]


@dataclass(slots=True, eq=False)
class Sessions:
    """The open connections of one owner's clients, and commands that wait for one of them to answer or to end."""

    by_key: dict[tuple[int, int], Session] = field(default_factory=dict)              # by worker and connection
    parked: dict[tuple[int, int], ParkedCommands] = field(default_factory=dict)       # by the connection that is probed

    def __repr__(self) -> str:
        return f"<Sessions {len(self.by_key)}, parked for {len(self.parked)}>"

    @property
    def workers(self) -> set[int]:
        """The workers that have connections."""
        return {worker for worker, _ in self.by_key}

    def of(self, client: Producer | Consumer) -> Session | None:
        """Return the session of a producer or consumer; None if its connection has ended."""
        return self.by_key.get((client.worker, client.connection))

    def has(self, session: Session) -> bool:
        """Whether the session's connection is still open."""
        return not session.is_over and self.by_key.get(session.key) is session

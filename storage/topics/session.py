"""Sessions: the producers and consumers of one client connection, as an owner knows them."""
from dataclasses import dataclass, field

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
        """(worker, connection), the key in OwnerContext.sessions."""
        return self.worker, self.connection

    @property
    def host(self) -> str:
        """The host of the client's address."""
        return self.address.rpartition(":")[0]

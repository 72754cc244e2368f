"""A session: one client connection's producers and consumers, as an owner knows them."""
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
    supports_partial_producer: bool = False
    producers: dict[int, Producer] = field(default_factory=dict)     # by the client's id
    consumers: dict[int, Consumer] = field(default_factory=dict)     # by the client's id
    waiting: dict[tuple[int, int], object] = field(default_factory=dict)     # (type, id) of a parked command -> what it waits for
    is_over: bool = False              # a command failed: what still comes is ignored until the worker has closed the connection

    @property
    def key(self) -> tuple[int, int]:
        return self.worker, self.connection

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

"""The interface of the supervisor that a reload and a drain use."""
from typing import Protocol

from geminga.storage.runtime.control import Control
from geminga.storage.runtime.counters import Counters
from geminga.supervisor.configuration.config import Config
from geminga.supervisor.processes.children import Child
from geminga.supervisor.processes.notify import Notify
from geminga.workers.addresses import Addresses
from geminga.workers.identity.authentication import Authenticator
from geminga.workers.identity.certificates import Tls


class Supervision(Protocol):
    """State of the running broker, and the operations of the supervisor that a reload or a drain may call."""

    config: Config                                   # in force
    children: list[Child]
    counters: dict[tuple[str, int], Counters]        # (role, index) -> counters of that process
    certificates: Tls | None                         # None where no listener uses TLS
    authenticator: Authenticator
    addresses: Addresses                             # where clients are sent
    notify: Notify
    is_ready: bool                                   # every process has served once
    is_stopping: bool

    @property
    def is_draining(self) -> bool: ...

    def announce(self, config: Config) -> None:
        """Derive the addresses that clients are sent to from the configuration."""

    def begin_stop(self) -> None: ...

    def tell_status(self) -> None:
        """Send the broker's status line to the service manager if it has changed."""

    def hang_up(self, caller: Control) -> None:
        """Close the connection of a caller on the control socket."""

"""One client's failure ends that client's connection, and leaves all others alone."""
import traceback
from collections.abc import Callable
from typing import Any, Protocol

from geminga.storage.runtime.log import log


class Peer(Protocol):
    """The other end of one connection."""

    transport: Any      # an asyncio.Transport; tests have their own

    @property
    def address(self) -> str: ...


def attempt(peer: Peer, do: Callable[..., object], *arguments: Any) -> None:
    """Call do(*arguments) for this peer; an unexpected exception is logged and ends the peer's connection alone."""
    try:
        do(*arguments)
    except Exception:
        end_failed(peer)


def end_failed(peer: Peer) -> None:
    """Log the exception that is being handled, and end the connection it belongs to."""
    log.error(f"a client's command failed, and its connection is ended: {traceback.format_exc()}", code="G291",
              client=peer.address)
    peer.transport.abort()

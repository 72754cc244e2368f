"""The first bytes of a connection to the port of HTTPS, which a gate cannot see: they come within TLS."""
import asyncio
from collections.abc import Mapping
from typing import cast

from geminga.workers.ports import protocols


class FirstBytes(asyncio.Protocol):
    """Looks at the first bytes, then hands the connection to the protocol object of HTTP, unless Pulsar's came."""

    def __init__(self, http: asyncio.Protocol, ports: Mapping[str, int], host: str | None):
        """Wait for a connection.  ports: scheme -> port.  host: the client's, None for the connection's own."""
        self._http, self._ports, self._host = http, ports, host
        self._first = b""

    def __repr__(self) -> str:
        return f"<FirstBytes {self._first!r} for {self._http!r}>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._timer = asyncio.get_running_loop().call_later(protocols.SILENT_SECONDS, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        self._first += data
        if len(self._first) < protocols.LEAST_BYTES:
            return
        self._timer.cancel()
        if protocols.spoken(self._first) == protocols.PULSAR:
            host = self._host or str(self._transport.get_extra_info("peername")[0])
            self._transport.write(protocols.refusal(self._first, "https", self._ports, host))
            return self._transport.close()
        self._transport.set_protocol(self._http)
        self._http.connection_made(self._transport)
        self._http.data_received(self._first)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()

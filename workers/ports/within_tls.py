"""The first bytes of a connection to a port of TLS, which a gate cannot see: they come within TLS."""
import asyncio
from collections.abc import Callable, Mapping
from typing import cast

from geminga.workers.ports import protocols, proxy_header
from geminga.workers.ports.proxy_header import ClientAddress


class _Look(asyncio.Protocol):
    """Collects the first bytes of a connection that can be told by them, for a while."""

    def __init__(self) -> None:
        self._first = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._timer = asyncio.get_running_loop().call_later(protocols.SILENT_SECONDS, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        self._first += data
        if len(self._first) >= protocols.LEAST_BYTES:
            self._look()

    def _look(self) -> None:
        """Look at the first bytes; again when there are more, unless the connection is handed over or closed."""
        raise NotImplementedError

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()


class FirstBytes(_Look):
    """Looks at the first bytes, then hands the connection to the protocol object of HTTP, unless Pulsar's came."""

    def __init__(self, http: asyncio.Protocol, ports: Mapping[str, int], host: str | None):
        """Wait for a connection.  ports: scheme -> port.  host: the client's, None for the connection's own."""
        super().__init__()
        self._http, self._ports, self._host = http, ports, host

    def __repr__(self) -> str:
        return f"<FirstBytes {self._first!r} for {self._http!r}>"

    def _look(self) -> None:
        self._timer.cancel()
        if protocols.spoken(self._first) == protocols.PULSAR:
            host = self._host or str(self._transport.get_extra_info("peername")[0])
            self._transport.write(protocols.refusal(self._first, "https", self._ports, host))
            return self._transport.close()
        self._transport.set_protocol(self._http)
        self._http.connection_made(self._transport)
        self._http.data_received(self._first)


class BehindHeader(_Look):
    """Takes off a PROXY header, then hands the connection to the protocol object of Pulsar's clients.

    Load balancers send the header before the TLS handshake, where the gate takes it off; Pulsar's own proxy sends it
    behind the handshake.  The client of the inner header holds, as the inner proxy is nearer to the client.
    """

    def __init__(self, make: Callable[[ClientAddress | None], asyncio.BaseProtocol], client: ClientAddress | None):
        """Wait for a connection.

        make: returns the protocol object, a buffered one.  client: from a header before TLS, None for none.
        """
        super().__init__()
        self._make, self._client = make, client

    def __repr__(self) -> str:
        return f"<BehindHeader {self._first!r} of {self._client}>"

    def _look(self) -> None:
        try:
            header = proxy_header.parse(self._first)
        except proxy_header.Malformed as error:
            host = (self._client or self._transport.get_extra_info("peername"))[0]
            protocols.warn_of_header(error, str(host))
            return self._transport.abort()
        if header is not None:
            self._hand_over(header)

    def _hand_over(self, header: proxy_header.Header) -> None:
        self._timer.cancel()
        stream = cast("asyncio.BufferedProtocol", self._make(header.client or self._client))
        self._transport.set_protocol(stream)
        stream.connection_made(self._transport)
        left = memoryview(self._first)[header.size:]
        while left and not self._transport.is_closing():
            room = memoryview(stream.get_buffer(len(left)))
            count = min(len(room), len(left))
            room[:count] = left[:count]
            stream.buffer_updated(count)
            left = left[count:]

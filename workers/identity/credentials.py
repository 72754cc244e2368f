"""Credentials that clients authenticate with, and the error for those that are not accepted."""
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import ErrorCode

if TYPE_CHECKING:
    import asyncio
    import ssl


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials of a client for one method.  `repr` hides the data, so errors and logs never show it."""

    method: str
    data: bytes
    certificate: bytes | None = None       # the client's own on this connection, in DER

    def __repr__(self) -> str:
        return f"<Credentials {self.method}>"


class Proof(NamedTuple):
    """What credentials prove."""

    role: str
    expires_s: float | None = None       # in seconds since 1970; None: never
    groups: tuple[str, ...] = ()         # whose rights the role has too; sorted, none twice


def certificate_of(transport: "asyncio.BaseTransport") -> bytes | None:
    """Return the peer's certificate of a TLS connection, in DER; None if the peer has sent none."""
    tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    return tls.getpeercert(binary_form=True) if tls is not None else None


class NotAuthenticated(Exception):
    """Credentials are not accepted.

    reason: a word of Pulsar's metrics, to count by.  why: for the log, without anything of the credentials.
    code, text: for the client.
    """

    def __init__(self, reason: str, why: str, code: ErrorCode = api.AuthenticationError,
                 text: str = "Failed to authenticate"):
        super().__init__(why)
        self.reason, self.why, self.code, self.text = reason, why, code, text

"""What somebody shows to say who they are, and how it is refused."""
from dataclasses import dataclass

from geminga.proto import pulsar_api_pb2 as api


@dataclass(frozen=True, slots=True)
class Shown:
    """By one method."""

    method: str
    data: bytes
    certificate: bytes | None = None       # of the connection, as DER

    def __repr__(self) -> str:             # never what is shown
        return f"<Shown {self.method}>"


def certificate_of(transport) -> bytes | None:
    """That the other end has shown by TLS, as DER."""
    tls = transport.get_extra_info("ssl_object")
    return tls.getpeercert(binary_form=True) if tls is not None else None


class NotAuthenticated(Exception):
    """reason: one of REASONS, for those who count; why: for the log, without anything that was shown."""

    def __init__(self, reason: str, why: str, code: int = api.AuthenticationError, told: str = "Failed to authenticate"):
        super().__init__(why)
        self.reason, self.why, self.code, self.told = reason, why, code, told

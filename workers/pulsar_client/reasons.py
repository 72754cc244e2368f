"""Reasons for failed connections, in one line each.

The text of an exception itself may be empty, or a tuple.
"""
import os
import socket
import sys

_NO_TLS = "WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE"
_TLS_ALERT = b"\x15\x03"     # the alert of a server that expects TLS
_NOT_TLS = "what listens there ended the TLS handshake: it may not speak TLS"


def of(error: Exception, *, is_secure: bool) -> str:
    """Return the reason why a connection failed, from its exception.  `is_secure`: the address asks for TLS."""
    ssl = sys.modules.get("ssl")      # absent if no connection used TLS
    if ssl and isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not to be trusted: {error.verify_message}"
    if ssl and isinstance(error, ssl.SSLError):
        if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) or error.reason in _NO_TLS:
            return _NOT_TLS
        return f"TLS fails: {(error.reason or str(error)).replace('_', ' ').lower()}"
    if isinstance(error, socket.gaierror):
        return f"there is no such host: {error.strerror}"
    if isinstance(error, ConnectionError) and is_secure and not error.errno:
        return _NOT_TLS
    if isinstance(error, ConnectionRefusedError):
        return "Connection refused: no broker listens there"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return " ".join(str(error).split()) or type(error).__name__


def of_bytes(received: bytes, wanted: str) -> str:
    """Return the reason why received bytes are no answer of the protocol `wanted`."""
    if not received:
        return f"what listens there ended the connection without an answer: it may not speak {wanted}"
    if received.startswith(_TLS_ALERT):
        return f"what answers there wants TLS, or speaks another protocol than {wanted}"
    if received.startswith(b"HTTP"):
        return f"what answers there speaks HTTP, and not {wanted}"
    return f"what answers there does not speak {wanted}"

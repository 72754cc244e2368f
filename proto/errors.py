"""Errors that a peer causes, and the answer to each.

A `ProtocolError` ends the connection: the bytes after it have no meaning.  A `Refusal` answers one command, and the
connection goes on.  Any other exception while a peer's bytes are read is a bug of the broker.
"""
from typing import TypeAlias

from geminga.proto import pulsar_api_pb2 as api

ErrorCode: TypeAlias = "api.ServerError.ValueType"


class ProtocolError(Exception):
    """The peer broke the protocol; its connection is closed."""


class Refusal(Exception):
    """A command that is answered with an error.  `code` is a ServerError, by which clients decide whether to try
    again.
    """

    def __init__(self, code: ErrorCode, message: str):
        super().__init__(message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{api.ServerError.Name(self.code)}: {self.message}"


class NameTaken(Refusal):
    """A topic that cannot have its name or partitions, because another topic has such a name."""

    def __init__(self, message: str):
        super().__init__(api.NotAllowedError, message)

"""What a peer can do wrong, and what it is told.

A `ProtocolError` ends the connection: after it the stream of bytes means nothing any more.  A `Refusal` is the
answer to one command; the connection goes on.  Anything else raised while a peer's bytes are read is our bug.
"""
from geminga.proto import pulsar_api_pb2 as api


class ProtocolError(Exception):
    """The peer broke the protocol; its connection is closed."""


class Refusal(Exception):
    """One command is answered with an error; `code` is a ServerError, which decides whether a client tries again."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{api.ServerError.Name(self.code)}: {self.message}"

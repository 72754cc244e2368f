"""Frames of the binary protocol: their sizes, their magic numbers, and the bytes of a command.

    simple    [total u32][command size u32][command]
    payload   [total u32][command size u32][command] [0x0e02][size u32][broker entry metadata]
                                                     [0x0e01][crc32c u32][metadata size u32][metadata][payload]

Sizes are unsigned and big-endian; `total` counts all that follows it.  The part from 0x0e01 on is an *entry*.  An entry
is stored as it came, with a checksum added if it had none, and delivered as it was stored.  The part from 0x0e02 on is
added on delivery, for clients that ask for it.
"""
import importlib.util
import struct
import sys
from collections.abc import Callable
from functools import cache
from importlib.machinery import PathFinder
from typing import Any

from google.protobuf.message import Message

from geminga.proto import pulsar_api_pb2 as api

SIZES = struct.Struct(">II")
SIZE = struct.Struct(">I")
MAGIC = 0x0E01                    # a checksum follows
MAGIC_BYTES = MAGIC.to_bytes(2, "big")
CHECKSUM_END = 6                  # bytes of magic and checksum, which the checksum does not cover
NO_REQUEST = 0xFFFFFFFFFFFFFFFF   # request id of a command that the broker sends unasked
FRAME_PADDING = 10 * 1024         # bytes by which a frame may exceed the largest message: command and metadata


def frame_size_max(message_size_max: int) -> int:
    """Return the largest `total` that is accepted."""
    return message_size_max + FRAME_PADDING


def with_checksum(entry: bytes) -> bytes:
    """Return the entry with magic and checksum, as it is stored; clients before protocol version 6 send neither."""
    if entry[:2] == MAGIC_BYTES:
        return entry
    return b"".join((MAGIC_BYTES, SIZE.pack(_crc32c()(entry)), entry))


@cache
def _crc32c() -> Callable[[bytes], int]:
    """Return crc32c's function from the library's compiled module alone, if the library is not loaded yet.

    Its package loads a command line and the metadata of all packages: a seventh of the start of `geminga produce`.
    """
    if "crc32c" not in sys.modules and (package := PathFinder.find_spec("crc32c")) is not None:
        compiled = PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
        if compiled is not None and compiled.loader is not None:
            module = importlib.util.module_from_spec(compiled)
            compiled.loader.exec_module(module)
            return module.crc32c      # type: ignore[no-any-return]
    from crc32c import crc32c
    return crc32c


# Type of message -> (the type of BaseCommand, its field with the message); both have the same number.
_COMMANDS: dict[Any, tuple[Any, str]] = {
    field.message_type: (field.number, field.name) for field in api.BaseCommand.DESCRIPTOR.fields if field.message_type}


def command_of(message: Message) -> api.BaseCommand:
    """Return the command with that message, such as SUCCESS for a CommandSuccess."""
    kind, field = _COMMANDS[message.DESCRIPTOR]
    fields: dict[str, Any] = {field: message}
    return api.BaseCommand(type=kind, **fields)


def pieces(command: api.BaseCommand, entry: bytes) -> list[bytes]:
    """Return the frame of a command with an entry, as buffers to be written one after the other."""
    body = command.SerializeToString()
    return [SIZES.pack(4 + len(body) + len(entry), len(body)), body, entry]


def frame(command: api.BaseCommand) -> bytes:
    """Return the frame of a command without a payload."""
    body = command.SerializeToString()
    return SIZES.pack(len(body) + 4, len(body)) + body

"""Frames of the binary protocol: sizes, magics, and how a command becomes bytes.

    simple    [total u32][command size u32][command]
    payload   [total u32][command size u32][command] [0x0e02][size u32][broker entry metadata]
                                                     [0x0e01][crc32c u32][metadata size u32][metadata][payload]

Sizes are unsigned and big-endian; `total` counts all that follows it.  What follows the command is an *entry*: it is
stored as it came, with a checksum if it came without, and delivered as it was stored.  The part with 0x0e02 is added on the
way out, to those who ask.
"""
import struct

from geminga.proto import pulsar_api_pb2 as api

SIZES = struct.Struct(">II")
SIZE = struct.Struct(">I")
MAGIC = 0x0E01                    # a checksum follows
MAGIC_BROKER_ENTRY = 0x0E02
CHECKSUM_END = 6                  # an entry's bytes before what its checksum covers: magic, checksum
FRAME_PADDING = 10 * 1024         # frames may be this much larger than the largest message: commands and metadata


def frame_size_max(message_size_max: int) -> int:
    """The largest `total` that is accepted."""
    return message_size_max + FRAME_PADDING


def frame(command: api.BaseCommand) -> bytes:
    """The bytes of a command without a payload."""
    body = command.SerializeToString()
    return SIZES.pack(len(body) + 4, len(body)) + body

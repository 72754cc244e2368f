"""Payloads, compressed as clients do: an entry's as a whole.  LZ4 is the bare block, SNAPPY the bare format."""
import zlib

import lz4.block
import snappy
import zstandard

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto import varints
from geminga.proto.batches import UNPACKED_MAX

_CORRUPT = "cannot be decompressed"


class Incompressible(Exception):
    """The payload is not compressed as its metadata says, or too large: the text goes behind "its payload"."""


def decompress(codec: int, stored: bytes | memoryview, size: int) -> bytes | memoryview:
    """The `size` bytes that were compressed; more are not made, whatever the payload says.  Raises Incompressible."""
    if codec == api.NONE:
        return stored
    if size > UNPACKED_MAX:
        raise Incompressible(f"is said to have {size} bytes before compression; at most {UNPACKED_MAX} are made of one")
    try:
        found = _DECOMPRESS[codec](stored, size)
    except (lz4.block.LZ4BlockError, zstandard.ZstdError, snappy.UncompressError, zlib.error, ValueError, IndexError, KeyError,
            MemoryError, OverflowError):
        raise Incompressible(_CORRUPT) from None
    if len(found) != size:
        raise Incompressible(_CORRUPT)
    return found


def compress(codec: int, data: bytes) -> bytes:
    return data if codec == api.NONE else _COMPRESS[codec](data)


def _lz4(stored: bytes, size: int) -> bytes:
    return lz4.block.decompress(stored, uncompressed_size=size)


def _zlib(stored: bytes, size: int) -> bytes:
    return zlib.decompressobj().decompress(stored, size + 1)


def _zstd(stored: bytes, size: int) -> bytes:
    with zstandard.ZstdDecompressor().stream_reader(stored) as reader:
        return reader.read(size + 1)


def _snappy(stored: bytes, size: int) -> bytes:
    if varints.decode(stored, 0)[0] != size:
        raise ValueError
    return snappy.uncompress(bytes(stored))


def _compress_lz4(data: bytes) -> bytes:
    return lz4.block.compress(data, store_size=False)


def _compress_zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


_DECOMPRESS = {api.LZ4: _lz4, api.ZLIB: _zlib, api.ZSTD: _zstd, api.SNAPPY: _snappy}
_COMPRESS = {api.LZ4: _compress_lz4, api.ZLIB: zlib.compress, api.ZSTD: _compress_zstd, api.SNAPPY: snappy.compress}

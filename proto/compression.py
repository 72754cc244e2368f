"""Compression of an entry's payload, as clients do it.  LZ4 is the bare block, SNAPPY the bare format.

Each codec's library is imported when the codec is used first, so that a command starts with those that it needs.
"""
import zlib
from collections.abc import Callable

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto import varints

UNPACKED_MAX = 128 << 20  # bytes of the largest payload that the broker decompresses; consumers may read larger ones
_CORRUPT = "cannot be decompressed"


class CannotDecompress(Exception):
    """The payload is not compressed as its metadata says, or is too large; the text continues "its payload"."""


def decompress(codec: int, stored: bytes | memoryview, size: int) -> bytes | memoryview:
    """Return the `size` bytes that a payload was compressed from; `codec` is a CompressionType.

    No more than `size` bytes are made, whatever the payload claims.  Raises CannotDecompress.
    """
    if codec == api.NONE:
        return stored
    if size > UNPACKED_MAX:
        raise CannotDecompress(f"claims {size} bytes before compression; the limit is {UNPACKED_MAX}")
    try:
        data = _DECOMPRESS[codec](stored, size)
    except (zlib.error, ValueError, IndexError, KeyError, MemoryError, OverflowError):
        raise CannotDecompress(_CORRUPT) from None
    if len(data) != size:
        raise CannotDecompress(_CORRUPT)
    return data


def compress(codec: int, data: bytes) -> bytes:
    """Return the data, compressed; `codec` is a CompressionType."""
    return data if codec == api.NONE else _COMPRESS[codec](data)


def _lz4(stored: bytes | memoryview, size: int) -> bytes:
    from lz4 import block
    try:
        return bytes(block.decompress(stored, uncompressed_size=size))
    except block.LZ4BlockError:
        raise CannotDecompress(_CORRUPT) from None


def _zlib(stored: bytes | memoryview, size: int) -> bytes:
    return zlib.decompressobj().decompress(stored, size + 1)


def _zstd(stored: bytes | memoryview, size: int) -> bytes:
    import zstandard
    try:
        with zstandard.ZstdDecompressor().stream_reader(stored) as reader:
            return reader.read(size + 1)
    except zstandard.ZstdError:
        raise CannotDecompress(_CORRUPT) from None


def _snappy(stored: bytes | memoryview, size: int) -> bytes:
    if varints.decode(stored, 0)[0] != size:
        raise ValueError
    import snappy
    try:
        return bytes(snappy.uncompress(bytes(stored)))
    except snappy.UncompressError:
        raise CannotDecompress(_CORRUPT) from None


def _compress_lz4(data: bytes) -> bytes:
    from lz4 import block
    return bytes(block.compress(data, store_size=False))


def _compress_zstd(data: bytes) -> bytes:
    import zstandard
    return zstandard.ZstdCompressor().compress(data)


def _compress_snappy(data: bytes) -> bytes:
    import snappy
    return bytes(snappy.compress(data))


_DECOMPRESS: dict[int, Callable[[bytes | memoryview, int], bytes]] = {
    api.LZ4: _lz4, api.ZLIB: _zlib, api.ZSTD: _zstd, api.SNAPPY: _snappy}
_COMPRESS: dict[int, Callable[[bytes], bytes]] = {
    api.LZ4: _compress_lz4, api.ZLIB: zlib.compress, api.ZSTD: _compress_zstd, api.SNAPPY: _compress_snappy}

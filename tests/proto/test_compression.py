"""Payloads come back as they were, and none is larger than it says."""
import tracemalloc

import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.compression import CannotDecompress, compress, decompress

CODECS = [api.LZ4, api.ZLIB, api.ZSTD, api.SNAPPY]
LARGE = 16 << 20


@pytest.mark.parametrize("codec", [api.NONE, *CODECS], ids=api.CompressionType.Name)
@pytest.mark.parametrize("data", [b"", b"x", b"payload" * 1_000], ids=len)
def test_what_was_compressed_comes_back(codec, data):
    assert bytes(decompress(codec, compress(codec, data), len(data))) == data


@pytest.mark.parametrize("codec", CODECS, ids=api.CompressionType.Name)
@pytest.mark.parametrize("size", [0, 999, 1_001, 5_000])
def test_another_size_than_it_says_is_refused(codec, size):
    with pytest.raises(CannotDecompress):
        decompress(codec, compress(codec, b"y" * 1_000), size)


@pytest.mark.parametrize("codec", CODECS, ids=api.CompressionType.Name)
def test_no_more_is_made_of_a_payload_than_it_says(codec):
    """Decompression makes no more bytes than the metadata claims."""
    stored = compress(codec, bytes(LARGE))
    tracemalloc.start()
    try:
        with pytest.raises(CannotDecompress):
            decompress(codec, stored, 10)
        assert tracemalloc.get_traced_memory()[1] < LARGE // 8
    finally:
        tracemalloc.stop()

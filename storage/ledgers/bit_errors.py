"""The place of a single wrong bit, computed from a CRC32-C."""
from crc32c import crc32c

# Contribution of each byte to a CRC when it is the last byte.
_LAST_BYTE = [crc32c(bytes([byte])) ^ crc32c(bytes(1)) for byte in range(256)]
_BIT_OF_LAST_BYTE = {_LAST_BYTE[1 << bit]: bit for bit in range(8)}
_BY_TOP = {crc >> 24: byte for byte, crc in enumerate(_LAST_BYTE)}
# By the highest byte of a CRC: what is XORed with the rest of it to take one zero byte off the end.
_TAKE_OFF = [_LAST_BYTE[_BY_TOP[top]] << 8 & 0xFFFFFFFF | _BY_TOP[top] for top in range(256)]


def wrong_bit(size: int, difference: int) -> int | None:
    """Return the number of the single wrong bit in `size` bytes, counted from 0; None unless exactly one is wrong.

    difference: the CRC32-C of the bytes, XOR the CRC32-C that they should have.

    A CRC is linear, so the difference depends only on the wrong bits and on the number of bytes behind them.  Bytes are
    removed from the end, one by one, until the difference is that of one bit in the last byte.  A byte takes about 100
    ns, which is bearable for a record of 16 MiB during a start after damage.
    """
    if not difference:
        return None
    for at in range(size - 1, -1, -1):
        if difference in _BIT_OF_LAST_BYTE:
            return 8 * at + _BIT_OF_LAST_BYTE[difference]
        difference = difference << 8 & 0xFFFFFFFF ^ _TAKE_OFF[difference >> 24]
    return None

"""Which bit of some bytes is wrong, told from their CRC32-C."""
import functools

from crc32c import crc32c

_STRIDE = 1_024


def wrong_bit(size: int, difference: int) -> int | None:
    """The number of the only wrong bit of `size` bytes; None when more than one bit is wrong.

    difference: the CRC32-C of the bytes, XOR the CRC32-C that they should have.
    A CRC is linear, so the difference depends on the wrong bit and on the number of bytes behind it alone.  The search takes zero
    bytes back from the difference, a stride at a time, until a table knows what is left.
    """
    if not difference:
        return None
    known, back = _strides()
    for behind in range(0, size, _STRIDE):
        if difference in known:
            zeros, bit = known[difference]
            at = size - 1 - behind - zeros
            return 8 * at + bit if at >= 0 else None
        bits, difference = difference, 0
        for number in range(32):
            if bits >> number & 1:
                difference ^= back[number]
    return None


@functools.cache
def _strides() -> tuple[dict[int, tuple[int, int]], list[int]]:
    """({CRC of one bit with fewer zero bytes than a stride behind it: (zero bytes, bit)}, each bit of a CRC a stride earlier)."""
    of_byte = [crc32c(bytes([byte])) ^ crc32c(bytes(1)) for byte in range(256)]      # contribution of a byte to a CRC
    by_top = {crc >> 24: byte for byte, crc in enumerate(of_byte)}
    known, back = {}, []
    for bit in range(8):
        crc = of_byte[1 << bit]
        for zeros in range(_STRIDE):
            known[crc] = zeros, bit
            crc = crc >> 8 ^ of_byte[crc & 0xFF]
    for bit in range(32):
        crc = 1 << bit
        for _ in range(_STRIDE):
            last = by_top[crc >> 24]
            crc = (crc ^ of_byte[last]) << 8 & 0xFFFFFFFF | last
        back.append(crc)
    return known, back

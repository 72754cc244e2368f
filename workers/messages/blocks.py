"""Lines of files, pipes and terminals, read without stopping other work.

A terminal or pipe is read when it has something, so that connections stay alive meanwhile, and lines that came are not
held back for others.
"""
import asyncio
import os
import select
from collections.abc import AsyncIterator

_BLOCK_BYTES = 256 << 10


class TooLong(Exception):
    """An error: a line is longer than a message may be."""


async def blocks(descriptor: int) -> AsyncIterator[bytes]:
    """Yield bytes as they come, and b"" each time before waiting for more."""
    loop, came = asyncio.get_running_loop(), asyncio.Event()
    while True:
        if not select.select([descriptor], [], [], 0)[0]:      # files are always ready
            yield b""
            came.clear()
            loop.add_reader(descriptor, came.set)
            try:
                await came.wait()
            finally:
                loop.remove_reader(descriptor)
        block = os.read(descriptor, _BLOCK_BYTES)
        if not block:
            return
        yield block


async def lines(descriptor: int, bytes_max: int) -> AsyncIterator[list[bytes]]:
    """Yield lists of complete lines without their ends, and [] each time before waiting for more.

    The last line may lack its end.  Raises TooLong for a line of more than bytes_max.
    """
    rest: list[bytes] = []
    size = 0                 # of the parts of a line in `rest`
    async for block in blocks(descriptor):
        if not block:
            yield []
            continue
        first, is_end, behind = block.partition(b"\n")
        rest.append(first)
        size += len(first)
        if size > bytes_max:
            raise TooLong
        if not is_end:
            continue
        whole = behind.split(b"\n")
        whole.insert(0, b"".join(rest))
        rest = [whole.pop()]
        size = len(rest[0])
        yield whole
    if size:
        yield [b"".join(rest)]

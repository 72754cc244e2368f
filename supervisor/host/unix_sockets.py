"""Short paths of Unix sockets: the kernel takes at most 107 bytes, and paths of data folders may be longer."""
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yield a short path of the socket at `path`, valid inside the `with` block.  Raises OSError without its folder."""
    fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{path.name}"
    finally:
        os.close(fd)

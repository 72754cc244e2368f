"""A thread that works beside a block."""
import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run `work` in a thread while the block runs, and wait for the thread's end.

    work: is given an event, and ends soon after the event is set, which is at the end of the block.
    """
    is_over = threading.Event()
    thread = threading.Thread(target=work, args=(is_over,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()

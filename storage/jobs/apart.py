"""Work in a process of its own, which can be ended: keys, payloads and schemas are what anybody may publish.

A payload may keep a library busy for hours, take all memory, or crash it.  Then only the process beside this one ends.
What it was at stands in a mark that both processes see, so that the caller can do the work again without it.

    run(function, *arguments)     in the process beside this one, which is started when first needed
    mark(...)                     called there: what is being read, and how long that may take
    Process                       another one, for a caller that needs it for itself
    tell(...)                     called there: how far the work is

The process of `run` may use MEMORY_BYTES; beyond them Python and Arrow raise MemoryError, as for any other lack of
memory.  Another process may use what the system gives, which ends this process before those that wait for it.
"""
import atexit
import contextlib
import ctypes
import math
import mmap
import multiprocessing
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

MEMORY_BYTES = 2 << 30       # of data; less than a night's share of memory
_LOOK_S = 0.25               # between two looks at the process's time
_START_S = 120.0             # of the processor, until the first mark, and between works
_PR_SET_PDEATHSIG = 1
_OOM_SCORE = 900             # when memory runs out, the kernel kills this process before the one that waits for it
_TOLD, _DONE, _RAISED = range(3)      # what a message from the process beside has
_MARK = struct.Struct("<Qdqqqqq")     # number, seconds, then the fields of Mark


@dataclass(frozen=True, slots=True)
class Mark:
    """Messages that are being read: entries of a ledger, or one message."""

    ledger_id: int
    first: int                       # entry ids, both inclusive
    last: int
    index: int = -1                  # in the batch; -1: none, or all
    is_alone: int = 0                # whether it is one message


class Ended(Exception):
    """Error: the process beside this one has ended.  The text says why."""

    def __init__(self, text: str, mark: Mark | None):
        super().__init__(text)
        self.mark = mark             # what it was at


class Process:
    """A process beside this one.

    memory_bytes: of data that it may use; 0: what the system gives.  patience_s: seconds of the processor that it may
    take until the first mark, and for works without marks.
    """

    def __init__(self, memory_bytes: int = 0, patience_s: float = math.inf) -> None:
        self._starter, self._patience_s = os.getpid(), patience_s
        fd = os.memfd_create("mark")
        try:
            os.ftruncate(fd, mmap.PAGESIZE)
            self._shared = mmap.mmap(fd, mmap.PAGESIZE)
            self._connection, other_end = multiprocessing.Pipe()
            with other_end:
                program = f"from {__name__} import serve; serve({fd}, {other_end.fileno()}, {memory_bytes})"
                self._popen = subprocess.Popen([sys.executable, "-P", "-c", program], stdin=subprocess.DEVNULL,
                                               stdout=2, pass_fds=[fd, other_end.fileno()])
        finally:
            os.close(fd)

    def __repr__(self) -> str:
        return f"<Process {self._popen.pid}>"

    @property
    def is_ours(self) -> bool:
        """Whether this process has started it, and is no copy of the one that has."""
        return self._starter == os.getpid()

    @property
    def is_running(self) -> bool:
        return self.is_ours and self._popen.poll() is None

    def end(self) -> int:
        """End the process, whatever it is at; return its status."""
        self._popen.kill()
        self._connection.close()
        return self._popen.wait()

    def run(self, function: Callable[..., Any], arguments: tuple[Any, ...],
            progress: Callable[..., None] = lambda *_: None) -> Any:
        """Return what a function returns there.  Raises Ended, and what the function raises.

        progress: is called with what the function tells.
        """
        self._shared[:_MARK.size] = bytes(_MARK.size)
        try:
            self._connection.send((function, arguments))
            while (answer := self._answer())[0] == _TOLD:
                progress(*answer[1])
        except Ended:
            raise
        except (EOFError, ConnectionError):
            mark, status = self._mark()[2], self.end()
            why = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
            raise Ended(f"its process ended with {why}", mark) from None
        except BaseException:        # nobody will wait for the answer
            self.end()
            raise
        if answer[0] == _RAISED:
            raise answer[1]
        return answer[1]

    def _answer(self) -> Any:
        """Wait for an answer, for as long as the mark allows.  Raises Ended, EOFError, ConnectionError."""
        last_number, begin = -1, 0.0
        while not self._connection.poll(_LOOK_S):
            number, seconds, mark = self._mark()
            try:
                times = psutil.Process(self._popen.pid).cpu_times()
            except psutil.Error:
                continue             # it has ended: the connection says so
            used = times.user + times.system
            if number != last_number:
                last_number, begin = number, used
            elif used - begin > seconds:
                self.end()
                raise Ended(f"it took more than {seconds:.0f} s", mark)
        return self._connection.recv()

    def _mark(self) -> tuple[int, float, Mark | None]:
        """Return (number of the mark, seconds that it may take, what is being read)."""
        number, seconds, *fields = _MARK.unpack_from(self._shared)
        return number, seconds or self._patience_s, Mark(*fields) if number else None


_lock = threading.Lock()
_running: Process | None = None
_marks: mmap.mmap | None = None      # in the process beside
_answers: "Connection[Any, Any] | None" = None      # in the process beside
_number = 0


def run(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns in the process beside this one; one caller at a time.

    function and arguments: picklable.  Raises Ended, and what the function raises.
    """
    global _running
    with _lock:
        if _running is None or not _running.is_running:
            close()
            _running = Process(MEMORY_BYTES, _START_S)
        return _running.run(function, arguments)


def close() -> None:
    """End the process beside this one."""
    global _running
    if _running is not None and _running.is_ours:
        _running.end()
    _running = None


atexit.register(close)


def mark(what: Mark, seconds: float) -> None:
    """Note what is being read, and how much of the processor's time it may take; without effect elsewhere."""
    global _number
    if _marks is not None:
        _number += 1
        fields = what.ledger_id, what.first, what.last, what.index, what.is_alone
        _marks[:_MARK.size] = _MARK.pack(_number, seconds, *fields)


def tell(*values: Any) -> None:
    """Tell the caller of the work that is being done; without effect elsewhere."""
    if _answers is not None:
        _answers.send((_TOLD, values))


# -- the process beside

def serve(fd: int, connection: int, memory_bytes: int) -> None:
    """Run functions that come in by a connection, until it ends."""
    global _marks, _answers
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))
    if memory_bytes:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)      # the other process ends this one
    _marks = mmap.mmap(fd, mmap.PAGESIZE)
    with Connection(connection) as _answers:
        while True:
            try:
                function, arguments = _answers.recv()
            except (EOFError, ConnectionError):
                return
            try:
                answer = _DONE, function(*arguments)
            except Exception as error:
                answer = _RAISED, error
            _answers.send(answer)

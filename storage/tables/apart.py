"""Work in a process of its own, which can be ended: payloads and schemas are what anybody may publish.

A payload may keep a library busy for hours, take all memory, or crash it.  Then only the process beside this one ends.
What it was at stands in a mark that both processes see, so that the caller can do the work again without it.

    run(function, *arguments)     in the process beside this one, which is started when first needed
    mark(...)                     called there: what is being read, and how long that may take

The process may use MEMORY_BYTES; beyond them Python and Arrow raise MemoryError, as for any other lack of memory.
"""
import atexit
import contextlib
import ctypes
import mmap
import os
import pickle
import resource
import select
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

import psutil

MEMORY_BYTES = 2 << 30       # of data; less than a night's share of memory
_LOOK_S = 0.25               # between two looks at the process's time
_START_S = 120.0             # of the processor, until the first mark, and between works
_PR_SET_PDEATHSIG = 1
_SIZE = struct.Struct(">Q")
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


class _Process:
    """The process beside this one."""

    def __init__(self) -> None:
        self._starter = os.getpid()
        fd = os.memfd_create("mark")
        try:
            os.ftruncate(fd, mmap.PAGESIZE)
            self._shared = mmap.mmap(fd, mmap.PAGESIZE)
            program = f"from {__name__} import serve; serve({fd}, {MEMORY_BYTES})"
            self._popen = subprocess.Popen([sys.executable, "-P", "-c", program], stdin=subprocess.PIPE,
                                           stdout=subprocess.PIPE, pass_fds=[fd])
        finally:
            os.close(fd)

    def __repr__(self) -> str:
        return f"<_Process {self._popen.pid}>"

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
        for stream in (self._popen.stdin, self._popen.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()
        return self._popen.wait()

    def run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Return what a function returns there.  Raises Ended, and what the function raises."""
        stdin, stdout = self._popen.stdin, self._popen.stdout
        assert stdin is not None and stdout is not None
        self._shared[:_MARK.size] = bytes(_MARK.size)
        try:
            _write(stdin, (function, arguments))
            is_well, result = self._answer(stdout)
        except Ended:
            raise
        except (EOFError, BrokenPipeError):
            mark, status = self._mark()[2], self.end()
            why = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
            raise Ended(f"its process ended with {why}", mark) from None
        except BaseException:        # nobody will wait for the answer
            self.end()
            raise
        if not is_well:
            raise result
        return result

    def _answer(self, stdout: IO[bytes]) -> Any:
        """Wait for an answer, for as long as the mark allows.  Raises Ended, EOFError."""
        known, begin = -1, 0.0
        waiting = select.poll()      # select() takes no descriptor above 1023
        waiting.register(stdout, select.POLLIN)
        while not waiting.poll(_LOOK_S * 1_000):
            number, seconds, mark = self._mark()
            try:
                times = psutil.Process(self._popen.pid).cpu_times()
            except psutil.Error:
                continue             # it has ended: its standard output says so
            used = times.user + times.system
            if number != known:
                known, begin = number, used
            elif used - begin > seconds:
                self.end()
                raise Ended(f"it took more than {seconds:.0f} s", mark)
        return _read(stdout)

    def _mark(self) -> tuple[int, float, Mark | None]:
        """Return (number of the mark, seconds that it may take, what is being read)."""
        number, seconds, *fields = _MARK.unpack_from(self._shared)
        return number, seconds or _START_S, Mark(*fields) if number else None


_lock = threading.Lock()
_running: _Process | None = None
_marks: mmap.mmap | None = None      # in the process beside
_number = 0


def run(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns in the process beside this one; one caller at a time.

    function and arguments: picklable.  Raises Ended, and what the function raises.
    """
    global _running
    with _lock:
        if _running is None or not _running.is_running:
            close()
            _running = _Process()
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


# -- the process beside

def serve(fd: int, memory_bytes: int) -> None:
    """Run functions that come in by standard input, until it ends."""
    global _marks
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)      # the other process ends this one
    _marks = mmap.mmap(fd, mmap.PAGESIZE)
    with os.fdopen(os.dup(0), "rb") as commands, os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)                # what libraries print is no answer
        while True:
            try:
                function, arguments = _read(commands)
            except EOFError:
                return
            try:
                answer = True, function(*arguments)
            except Exception as error:
                answer = False, error
            _write(answers, answer)


def _write(stream: Any, value: Any) -> None:
    data = pickle.dumps(value)
    stream.write(_SIZE.pack(len(data)) + data)
    stream.flush()


def _read(stream: Any) -> Any:
    """Raises EOFError."""
    size = stream.read(_SIZE.size)
    if len(size) < _SIZE.size:
        raise EOFError
    data = stream.read(*_SIZE.unpack(size))
    if len(data) < _SIZE.unpack(size)[0]:
        raise EOFError
    return pickle.loads(data)

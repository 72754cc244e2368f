"""Stack traces of running processes: on SIGUSR1 a process writes those of its threads to a file in the data folder.

The interpreter writes them inside the signal handler, so also for a process in an endless loop.
"""
import faulthandler
import os
import re
import signal
import time
from pathlib import Path
from typing import BinaryIO

FILE = "stacks"              # in the data folder
_ANSWER_SECONDS = 0.7
_CALLS_MAX = 8               # shown in a line of the log


def listen(data_dir: Path) -> BinaryIO:
    """Have this process and its children answer SIGUSR1 with their stack traces, while the returned file is open.

    Raises OSError.
    """
    file = open(data_dir / FILE, "ab", buffering=0)  # noqa: SIM115 - kept open by the caller
    file.truncate()
    faulthandler.register(signal.SIGUSR1, file, all_threads=True, chain=False)
    signal.siginterrupt(signal.SIGUSR1, False)      # interrupted system calls go on
    return file


def processes(data_dir: Path) -> dict[int, str]:
    """Return {process id: name} of the processes that answer SIGUSR1 with stack traces in this data folder."""
    answering, wanted = {}, str((data_dir / FILE).resolve())
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(fd) == wanted for fd in process.glob("fd/*")):
                answering[int(process.name)] = (process / "comm").read_text().strip()
        except OSError:      # it has ended, or is another user's
            continue
    return answering


def innermost(data_dir: Path, pid: int) -> str:
    """Return where the main thread of a process is, the innermost call first; "" if it does not answer."""
    try:
        text = ask(data_dir, pid)
    except OSError:
        return ""
    main = text.rpartition("hread 0x")[2]      # threads come newest first
    calls = re.findall(r'File "(.*)", line ([0-9]+) in (.*)', main)
    return ", ".join(f"{name} ({'/'.join(Path(path).parts[-2:])}:{line})" for path, line, name in calls[:_CALLS_MAX])


def ask(data_dir: Path, pid: int) -> str:
    """Ask a process for its stack traces, and return them, "" if it does not answer in time.  Raises OSError."""
    with open(data_dir / FILE, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        os.kill(pid, signal.SIGUSR1)
        deadline, text = time.monotonic() + _ANSWER_SECONDS, b""
        while time.monotonic() < deadline:
            time.sleep(0.02)
            file.seek(size)
            if (now := file.read()) and now == text:      # nothing was added since the last look
                break
            text = now
    return text.decode(errors="replace")

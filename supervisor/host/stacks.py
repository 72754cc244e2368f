"""Where every process of a broker is, at any moment: SIGUSR1 has it write the stacks of its threads into a file of the data folder.

The interpreter does that within the signal's handler, whatever is being executed: also when a process is in an endless loop.
"""
import faulthandler
import os
import signal
import time
from pathlib import Path
from typing import BinaryIO

FILE = "stacks"              # in the data folder
_ANSWER_SECONDS = 0.7


def listen(data_dir: Path) -> BinaryIO:
    """This process does, and its children do, as long as the file is open.  Raises OSError."""
    file = open(data_dir / FILE, "ab", buffering=0)  # noqa: SIM115 - kept open by whoever listens
    file.truncate()
    faulthandler.register(signal.SIGUSR1, file, all_threads=True, chain=False)
    signal.siginterrupt(signal.SIGUSR1, False)      # what was waited for is waited for again
    return file


def processes(data_dir: Path) -> dict[int, str]:
    """{process id: name} of those that listen, now."""
    found, wanted = {}, str((data_dir / FILE).resolve())
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(fd) == wanted for fd in process.glob("fd/*")):
                found[int(process.name)] = (process / "comm").read_text().strip()
        except OSError:      # it has ended, or is another user's
            continue
    return found


def ask(data_dir: Path, pid: int) -> str:
    """Its stacks; "" when it does not answer.  Raises OSError."""
    with open(data_dir / FILE, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        os.kill(pid, signal.SIGUSR1)
        deadline, said = time.monotonic() + _ANSWER_SECONDS, b""
        while time.monotonic() < deadline:
            time.sleep(0.02)
            file.seek(size)
            if (now := file.read()) and now == said:
                break
            said = now
    return said.decode(errors="replace")

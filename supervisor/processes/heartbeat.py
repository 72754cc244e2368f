"""Heartbeats: whether a child answers, and when one that does not is killed.

    asked every ASK_SECONDS ──answered──> fine
                            └─not yet──> stopped or asleep without a break: killed after STILL_SECONDS
                                         busy (a long pass, an overloaded machine): killed after the longer `patience`
                                         in an uninterruptible system call (a disk that hangs): kept, and reported

Only time in which the supervisor ran counts.  After a pause of the host or of the supervisor no child is late.
"""
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

LOOK_SECONDS = 1.0             # time between two checks of all children
ASK_SECONDS = 2.0              # time between an answer and the next question
STILL_SECONDS = 5.0            # with ASK_SECONDS and LOOK_SECONDS a child is replaced within 8 s
BUSY_SECONDS = 30.0
STARTING_SECONDS = 120.0       # a start has long steps, with answers between them
_COUNTED_SECONDS = 1.5         # most that one check counts; more is a pause of the host or of the supervisor
_SHOWN_SECONDS = 3.0           # an operator is told after this time without an answer


class State(NamedTuple):
    """The combined state of all threads of a process."""

    # The first of these that a thread has: T stopped, t traced, D uninterruptible, R running, S asleep.
    letter: str
    switches: int      # context switches of all threads


def state_of(pid: int) -> State:
    """Read the combined state of a process's threads from /proc.  The letter is Z if there are no threads.

    All threads count, as the main thread may wait for a thread that waits for the disk.  ZeroMQ's own threads do not
    count: they wake for every envelope, whatever the process does.
    """
    letters, switches = set(), 0
    for path in Path(f"/proc/{pid}/task").glob("*/status"):
        try:
            lines = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        except OSError:      # it has just ended
            continue
        if not lines["Name"].strip().startswith("ZMQbg"):
            letters.add(lines["State"].strip()[:1])
            switches += sum(int(lines.get(f"{kind}_ctxt_switches", "0")) for kind in ("voluntary", "nonvoluntary"))
    return State(next((letter for letter in "TtDRS" if letter in letters), "Z"), switches)


class Heartbeat:
    """Heartbeat of one child process: whether it answers, and for how long it has not.  Times are seconds."""

    def __init__(self, pid: int):
        self.pid = pid
        self.is_asked = False
        self._since_answer = ASK_SECONDS      # so a new process is asked at once
        self._unanswered = self._still = self._busy = 0.0
        self._seen: State | None = None
        self.is_told = False                  # whether an operator was told that it waits for the disk

    @property
    def is_fine(self) -> bool:
        """Whether the process answers, or waits in an uninterruptible system call, which even a kill would not end."""
        return not self._unanswered or (self._seen is not None and self._seen.letter == "D")

    def __repr__(self) -> str:
        return f"<Heartbeat pid={self.pid} is_asked={self.is_asked} unanswered={self._unanswered:.1f} s>"

    def answered(self) -> None:
        """Record an answer of the process, and restart all times from zero."""
        self.is_asked = self.is_told = False
        self._since_answer = self._unanswered = self._still = self._busy = 0.0
        self._seen = None

    def check(self, seconds: float, patience: float, state: Callable[[int], State] = state_of) -> str:
        """Count `seconds` since the last check, and return what to do with the process: "ask", "kill" or "".

        `patience` is the number of seconds that the process may be busy without an answer.
        """
        seconds = min(seconds, _COUNTED_SECONDS)
        if not self.is_asked:
            self._since_answer += seconds
            if self._since_answer < ASK_SECONDS:
                return ""
            self.is_asked = True
            return "ask"
        self._unanswered += seconds
        now = state(self.pid)
        has_moved = now.letter == "R" or (self._seen is not None and now.switches != self._seen.switches)
        self._still = 0.0 if has_moved else self._still + seconds
        self._busy += seconds
        self._seen = now
        if now.letter == "D":
            self._still = self._busy = 0.0
        return "kill" if self._still >= STILL_SECONDS or self._busy >= patience else ""

    @property
    def waits_for_disk(self) -> bool:
        return self._unanswered >= _SHOWN_SECONDS and self._seen is not None and self._seen.letter == "D"

    @property
    def trouble(self) -> str:
        """Text for an operator about a process that does not answer.

        The text is "" while the process answers, and for the first _SHOWN_SECONDS without an answer.
        """
        if self._unanswered < _SHOWN_SECONDS or self._seen is None:
            return ""
        cause = {"T": "it is stopped by a signal", "t": "it is stopped by a debugger",
                "D": "it waits in the kernel, most likely for a disk, and cannot be ended",
                "S": "it sleeps"}.get(self._seen.letter, "it is busy")
        if self._seen.letter == "S" and self._still < STILL_SECONDS:
            cause = "it is busy"
        return f"has not answered for {self._unanswered:.0f} s: {cause}"

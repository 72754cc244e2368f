"""Whether a child answers, and what keeps it from that.

    asked every ASK_SECONDS ──answered──> fine
                            └─not yet──> stopped, or asleep and never awake: killed after STILL_SECONDS
                                         at work (a long pass, a machine with too much to do): killed after the longer `patience`
                                         in the kernel, which lets nobody interrupt it (a disk that hangs): left alone, and told of

Only time in which the supervisor itself ran counts: after a pause of the whole host, or of the supervisor, nobody is late.
"""
from pathlib import Path
from typing import NamedTuple

LOOK_SECONDS = 1.0             # between looks at all children
ASK_SECONDS = 2.0              # between an answer and the next question, about
STILL_SECONDS = 5.0            # with up to ASK_SECONDS before it is asked, and a look: replaced within eight
BUSY_SECONDS = 30.0
STARTING_SECONDS = 120.0       # a start has steps that take long, and answers between them
_COUNTED_SECONDS = 1.5         # at most, from one look to the next: what is beyond is a pause of the host, or of the supervisor
_SHOWN_SECONDS = 3.0           # without an answer until an operator is shown it


class State(NamedTuple):
    """What the kernel says of a process's threads."""

    letter: str        # T: it is stopped, t: traced; else D: one sleeps and cannot be woken, R: one runs or waits for a core, S: all sleep
    switches: int      # how often they have got and left a core


def state_of(pid: int) -> State:
    """All but ZeroMQ's, which only hand over what comes: the main thread may wait for another that waits for the disk."""
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


class Pulse:
    """Of one process."""

    def __init__(self, pid: int):
        self.pid = pid
        self.is_asked = False
        self._since_answer = ASK_SECONDS      # or since it was started: it is asked at once
        self._unanswered = self._still = self._busy = 0.0
        self._seen: State | None = None
        self.is_told = False                  # that it waits for the disk

    @property
    def is_fine(self) -> bool:
        """It answers; or nobody, neither we nor a service manager, could end it."""
        return not self._unanswered or (self._seen is not None and self._seen.letter == "D")

    def answered(self) -> None:
        self.is_asked = self.is_told = False
        self._since_answer = self._unanswered = self._still = self._busy = 0.0
        self._seen = None

    def look(self, seconds: float, patience: float, state=state_of) -> str:
        """Another so many seconds have passed.  Returns "ask" when it is to be asked, "kill" when it is to be killed, else "".

        patience: seconds that it may work without an answer.
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
        """What an operator is told of it; nothing while it answers."""
        if self._unanswered < _SHOWN_SECONDS or self._seen is None:
            return ""
        what = {"T": "it is stopped by a signal", "t": "it is stopped by a debugger",
                "D": "it waits in the kernel, most likely for a disk, and cannot be ended",
                "S": "it sleeps"}.get(self._seen.letter, "it is busy")
        if self._seen.letter == "S" and self._still < STILL_SECONDS:
            what = "it is busy"
        return f"has not answered for {self._unanswered:.0f} s: {what}"

"""Warnings that any stranger can cause, as often as a packet is sent: one line of a kind in a minute."""
import time

from geminga.storage.runtime.log import log

_QUIET_SECONDS = 60.0      # after a line, for others of its kind


class ThrottledLog:
    """Logs warnings by kind, and counts those that come within a minute of a logged one."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[float, int]] = {}      # kind -> when its last line was logged, how many since

    def __repr__(self) -> str:
        return f"<ThrottledLog {len(self._kinds)} kinds>"

    def warn(self, kind: str, text: str, code: str, host: str) -> None:
        """Log the text unless a line of its kind is younger than a minute.  kind: one of few.  host: the client's."""
        logged, untold = self._kinds.get(kind, (float("-inf"), 0))
        if (now := time.monotonic()) - logged < _QUIET_SECONDS:
            self._kinds[kind] = logged, untold + 1
            return
        self._kinds[kind] = now, 0
        more = f"; {untold} more of them since the last line" if untold else ""
        log.warning(f"{text}{more}", code=code, client=host)


strangers = ThrottledLog()        # of this process

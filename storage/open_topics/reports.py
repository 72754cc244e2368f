"""Reports of one owner about what is wrong: each error is logged once, however often it occurs."""
from typing import TYPE_CHECKING

from geminga.storage.errors import CorruptFile
from geminga.storage.runtime.counters import Counters
from geminga.storage.runtime.log import log

if TYPE_CHECKING:
    from geminga.storage.ledgers.position import Position
    from geminga.storage.topics.partition import Partition

_MINUTE_MS = 60_000


class Reports:
    """The errors that one owner has logged, and the entries that clients could not read."""

    def __init__(self, counters: Counters, now_ms: int):
        self._counters = counters
        self._logged: set[str] = set()                                # texts of lines logged by `once`
        self.unreadable: set[tuple[Partition, Position]] = set()      # entries reported by clients this minute
        self._unreadable_since_ms = now_ms

    def __repr__(self) -> str:
        return f"<Reports logged={len(self._logged)} unreadable={len(self.unreadable)}>"

    def once(self, text: str, *, code: str, **fields: str) -> bool:
        """Log an error line, once however often the error occurs; return whether this was the first time."""
        if text in self._logged:
            return False
        self._logged.add(text)
        log.error(text, code=code, **fields)
        return True

    def refused(self, error: CorruptFile) -> None:
        """Log that a topic is refused because of its files, and count it as damage, once for each error."""
        if self.once(f"{error}; its topic is refused", code="G121"):
            self._counters.add("damage_found")

    def damage(self, text: str, *, code: str = "G120") -> None:
        """Log damage of a file, and count it."""
        self._counters.add("damage_found")
        self.once(text, code=code)

    def tick(self, now_ms: int) -> None:
        """Forget unreadable entries once a minute, so that further ones are counted."""
        if not 0 <= now_ms - self._unreadable_since_ms < _MINUTE_MS:
            self.unreadable.clear()
            self._unreadable_since_ms = now_ms

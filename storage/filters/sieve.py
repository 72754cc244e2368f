"""The filter of one subscription: reads entries from their ledgers, and says which match.

Dispatchers do not know of filters.  They are shown the entries before `judged_up_to` only, and of these the ones that
do not match are acknowledged (open_topics/filtering.py).
"""
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from geminga.proto import batch_parts
from geminga.proto.metadata import PAD
from geminga.storage.disk.files import map_file
from geminga.storage.filters import entries as judging
from geminga.storage.filters.alike import Alike
from geminga.storage.filters.entries import Judged
from geminga.storage.filters.language import Expression, FilterError, compile_filter
from geminga.storage.ledgers.compacted_ledgers import CompactedLedger
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.position import Position

if TYPE_CHECKING:
    import mmap

FILTER = "geminga.filter"      # property of a subscription
_MASKS_MAX = 4_096             # batches in part whose matching messages are kept; others are looked at again


class Sieve:
    """A filter, and how far one subscription was looked through with it."""

    def __init__(self, expression: Expression):
        self.expression = expression
        self.judged_up_to: Position = 0, 0      # the first entry that was not looked at
        self.accepted = self.rejected = 0       # messages, since the topic was opened
        self._alike = Alike(expression)
        self._masks: OrderedDict[Position, int] = OrderedDict()
        self._mapped: tuple[int, mmap.mmap | bytes] = -1, b""

    def __repr__(self) -> str:
        return f"<Sieve {self.expression.text!r} judged_up_to={self.judged_up_to} rejected={self.rejected}>"

    def judge(self, ledger: Ledger | CompactedLedger, entries: NDArray[np.int64]) -> Judged:
        """Return which of a ledger's entries (n,), ascending, n > 0, match, as far as it is bounded work.

        Raises OSError, as reading an index does.
        """
        offsets, sizes = self._columns(ledger, entries, "offset", "size")
        begins = offsets.astype(np.int64)
        ends = begins + sizes.astype(np.int64)
        first, end = int(begins.min()), int(ends.max())
        data = self._data(ledger, end)
        if end > len(data):      # the file is damaged
            return Judged(np.ones(len(begins), bool))
        if end + PAD <= len(data):
            whole = np.frombuffer(data, np.uint8, end + PAD - first, first)
        else:      # the last entry of a file
            whole = np.frombuffer(data[first:end] + bytes(PAD), np.uint8)
        judged = judging.judge(self.expression, whole, begins - first, ends - first, self._alike)
        for number, bits in judged.parts.items():
            self._keep((ledger.ledger_id, int(entries[number])), bits)
        return judged

    def mask(self, ledger: Ledger | CompactedLedger, entry_id: int) -> int:
        """Return bits of the messages of a batch that match; 0: the batch goes out as it is stored.  Raises OSError."""
        position = ledger.ledger_id, entry_id
        if position not in self._masks:
            (offset,), (size,) = self._columns(ledger, np.array([entry_id]), "offset", "size")
            begin, end = int(offset), int(offset) + int(size)
            bits, count = judging.bits_of(self.expression, bytes(self._data(ledger, end)[begin:end]))
            self._keep(position, 0 if bits.bit_count() == count else bits)
        self._masks.move_to_end(position)
        return self._masks[position]

    def widened(self, ledger: Ledger | CompactedLedger, entry_id: int, bits: int) -> int:
        """Return bits of the messages of a batch as it is stored.

        bits: as a client has them, which was sent the messages that match, and takes them for the batch.
        """
        mask = self.mask(ledger, entry_id)
        return batch_parts.widened(bits, mask) if mask else bits

    def _keep(self, position: Position, bits: int) -> None:
        self._masks[position] = bits
        if len(self._masks) > _MASKS_MAX:
            self._masks.popitem(last=False)

    @staticmethod
    def _columns(ledger: Ledger | CompactedLedger, entries: NDArray[np.int64],
                 *names: str) -> "list[NDArray[np.uint64]]":
        if isinstance(ledger, CompactedLedger):
            rows = ledger.rows_of(entries)
            return [rows[name] for name in names]
        first, last = int(entries[0]), int(entries[-1])
        if last - first == len(entries) - 1:
            return [ledger.column(name)[first:last + 1] for name in names]
        return [ledger.column(name)[entries] for name in names]

    def _data(self, ledger: Ledger | CompactedLedger, end: int) -> "mmap.mmap | bytes":
        """Return the bytes of a ledger's file, at least up to `end` unless it is damaged."""
        if isinstance(ledger, CompactedLedger):
            return ledger.data
        if self._mapped[0] != ledger.ledger_id or len(self._mapped[1]) < end:
            self._mapped = ledger.ledger_id, map_file(ledger.ledger_path, writable=False)
        return self._mapped[1]


def sieve_of(properties: Mapping[str, str]) -> Sieve | None:
    """Return the sieve for a subscription with these properties; None without a filter, or with one of no meaning.

    Commands refuse filters without meaning (`check`), so that only an older program can have stored one.
    """
    try:
        return Sieve(compile_filter(properties[FILTER])) if FILTER in properties else None
    except FilterError:
        return None


def check(text: str) -> str:
    """Return why a text is no filter, "" if it is one."""
    try:
        compile_filter(text)
    except FilterError as error:
        return f"{FILTER}: {error}"
    return ""

"""A feed: everything that a standby needs, in the order in which it may be used.

A round reads the journals' tails up to their ends, then the catalogue if it changed, and sends the catalogue, then the
records: so records never name what the catalogue lacks.  Views come before records that delete ledgers of the same
partition, because these ledgers' messages may be in the view alone.  A base is sent between rounds, so that the tails
do not fall behind.
"""
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from geminga.storage import format
from geminga.storage.catalogue import layout
from geminga.storage.catalogue.kept_topics import BacklogRows
from geminga.storage.owner.recovery import journal_folder
from geminga.storage.standby import frames, sources
from geminga.storage.standby.frames import Held
from geminga.storage.standby.journal_tail import Block, JournalPlace, JournalTail, Overtaken, beginning
from geminga.storage.standby.sources import NO_BACKLOGS, CataloguePages, Extras, Pieces

FORMATS = [format.FOLDER_VERSION, layout.VERSION]      # of the data folder, and of the catalogue
_ROUND_BYTES = 8 << 20           # of each tail, in one round
_BASE_BYTES = 4 << 20            # of a base, between two rounds


class Feed:
    """What is sent to one standby, and how far."""

    def __init__(self, data_dir: Path, owners: int, send: Callable[[Pieces], None]):
        """Begin without a place.  send: sends a frame's pieces; what it raises leaves every method.  Raises OSError."""
        self._data_dir, self._owners, self._send = data_dir, owners, send
        self._tails: list[JournalTail] = []
        self._extras = Extras(data_dir, {}, {})
        self._base: Iterator[Pieces] | None = None
        self._catalogue = CataloguePages(data_dir / "catalogue.sqlite")
        self._backlogs = NO_BACKLOGS       # rows about cleared backlogs that the standby has
        self.is_copying = False            # whether the base is not complete yet
        self.heard = 0.0                   # the standby's clock, as it was last received
        self.mark, self.done, self.total = 0, 0, 0

    def __repr__(self) -> str:
        return f"<Feed {self._data_dir} is_copying={self.is_copying} mark={self.mark} tails={self._tails}>"

    def close(self) -> None:
        self._close_tails()
        self._catalogue.close()

    def resume(self, held: Held) -> None:
        """Continue where the copy of a standby ends.  Raises Overtaken if that is not possible, OSError."""
        places = held["places"]
        if set(places) != {str(owner) for owner in range(self._owners)}:
            raise Overtaken("the number of owners has changed")
        for owner in range(self._owners):
            tail = JournalTail(journal_folder(self._data_dir, owner), JournalPlace(**places[str(owner)]))
            self._tails.append(tail)
            tail.check()
        self._extras = Extras(self._data_dir, _numbers(held["views"]), _numbers(held["amended"]))
        self._base = self._all_extras()

    def begin(self) -> None:
        """Begin with a base.  Raises Overtaken while an owner's journal is not there, OSError."""
        self._close_tails()
        self.is_copying, self.total = True, sources.size_of(self._data_dir)
        for owner in range(self._owners):
            folder = journal_folder(self._data_dir, owner)
            if (place := beginning(folder)) is None:
                raise Overtaken(f"{folder}: nobody writes it")
            self._tails.append(JournalTail(folder, place))
            self._send_records(owner, Block(place, place, b"", []))
        self._base = itertools.chain(sources.base(self._data_dir), self._all_extras())

    def _close_tails(self) -> None:
        for tail in self._tails:
            tail.close()
        self._tails.clear()

    def _all_extras(self) -> Iterator[Pieces]:
        for folder in (self._data_dir / "partitions").glob("*"):
            if folder.name.isdigit():
                yield from self._extras.of(int(folder.name))

    def round(self) -> bool:
        """Send what is new, and a mark if that is everything; return whether it is.

        Raises Overtaken, OSError, sqlite3.Error.
        """
        blocks, is_all = [], True
        # The catalogue is newer than the records.  It may lack a cleared backlog whose taking back is in none of them
        # yet: a standby that is promoted then would have neither.
        backlogs = self._catalogue.backlogs()
        for owner, tail in enumerate(self._tails):
            size = 0
            while size < _ROUND_BYTES and (block := tail.read()) is not None:
                blocks.append((owner, block))
                size += len(block.data)
            is_all &= size < _ROUND_BYTES
        if not self.is_copying:
            # A compacted view goes before the records that delete ledgers under it: messages may be in the view alone,
            # and a standby promoted between the two would have lost them.
            for partition_id in _with_deletions(block for _, block in blocks):
                for pieces in self._extras.of(partition_id):
                    self._send(pieces)
            for pieces in self._extras.look():
                self._send(pieces)
        # The journals were read before the catalogue is, and are sent behind it: records never name a partition or a
        # subscription that the standby's catalogue lacks.
        if not is_all:      # there may be such a backlog that the standby has, and the catalogue already lacks
            backlogs = BacklogRows(*([*{row[0]: row for row in (*old, *new)}.values()]
                                     for old, new in zip(self._backlogs, backlogs, strict=True)))
        if self._catalogue.changed():
            self._send(self._catalogue.take(backlogs))
        self._backlogs = backlogs
        for owner, block in blocks:
            self._send_records(owner, block)
        is_based = self._base is None
        if not is_based:
            self._send_base()
        if is_all:
            self.mark += 1
            self.is_copying &= not is_based
            self._send(frames.encode(frames.MARK, mark=self.mark, base="copying" if self.is_copying else "complete",
                                   heard=self.heard, done=self.done, total=self.total))
        return is_all and self._base is None

    def _send_base(self) -> None:
        """Send a part of the base; the round behind the last part completes the copy."""
        size = 0
        while size < _BASE_BYTES:
            assert self._base is not None
            if (pieces := next(self._base, None)) is None:
                self._base = None
                return
            self._send(pieces)
            size += sum(map(len, pieces))
            self.done += len(pieces[1])

    def _send_records(self, owner: int, block: Block) -> None:
        self._send(frames.encode(frames.RECORDS, block.data, owner=owner, place=block.begin.fields()))


def _with_deletions(blocks: Iterator[Block]) -> set[int]:
    """Return the ids of partitions of which these records delete ledgers."""
    return {partition_id for block in blocks for record in block.records if len(record.ops)
            for partition_id in record.ops["partition_id"][record.ops["kind"] == format.LEDGER_DELETED].tolist()}


def _numbers(by_partition: dict[str, int]) -> dict[int, int]:
    return {int(partition_id): int(number) for partition_id, number in by_partition.items()}

"""The copy of a broker's data folder that a standby keeps: what a feed sends is written here, and synced.

A copy is complete or not.  A base is written into an emptied folder, which is marked as unfinished.  Once all of it is
on disk, with the records that came meanwhile, the folder is a copy from which a broker can start as after a crash.
"""
import contextlib
import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from geminga.storage import format
from geminga.storage.catalogue.catalogue import open_catalogue
from geminga.storage.disk import data_folder
from geminga.storage.disk.files import sync, sync_all, write_all, write_anew
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers import compacted_ledgers, journal_reader
from geminga.storage.ledgers.journal_segments import header_of_segment
from geminga.storage.owner.recovery import journal_folder, settle
from geminga.storage.standby import applying, frames, standing
from geminga.storage.standby.frames import Frame, Held, Malformed
from geminga.storage.standby.journal_tail import (
    JournalPlace,
    JournalPlaceFields,
    JournalTail,
    Overtaken,
    beginning,
    behind,
)
from geminga.storage.standby.standing import Standing

_CATALOGUE, _JOURNAL = "catalogue.sqlite", "journal"
_OWN = (_CATALOGUE, f"{_CATALOGUE}-wal", f"{_CATALOGUE}-shm", "partitions", "transactions", _JOURNAL, "backup",
        applying.DELETED)
_GAP_MAX = 1_000             # segments without records in a row, one for each restart
_NAME = r"(?!\.)[-.\w]{1,200}"
_PATH = re.compile(rf"partitions/\d{{1,20}}/({_NAME}|compacted/\d{{1,20}}\.new/{_NAME}|delayed/amended)"
                   r"|transactions/\d{1,3}/table")


@dataclass(slots=True)
class _Segment:
    """The segment that is being written for one owner."""

    fd: int
    place: JournalPlace


class Copy:
    """A standby's copy of a data folder, and what of it is not synced yet."""

    def __init__(self, data_dir: Path):
        self.data_dir = data_dir
        self._segments: dict[int, _Segment] = {}         # by owner
        self._written: dict[Path, int] = {}              # files that a feed has sent in part -> descriptors
        self._unsynced: set[int] = set()                 # owners whose segments have unsynced records
        self._folders: set[Path] = set()                 # whose names are not synced
        self._image = bytearray()                        # the catalogue, as this connection's feed has sent it
        self.is_complete = data_folder.is_copy(data_dir)

    def __repr__(self) -> str:
        return f"<Copy {self.data_dir} is_complete={self.is_complete} segments={len(self._segments)}>"

    def close(self) -> None:
        """Close all files; what is not synced may be lost."""
        for segment in self._segments.values():
            os.close(segment.fd)
        for fd in self._written.values():
            os.close(fd)
        self._segments.clear()
        self._written.clear()

    # -- what the copy has

    def held(self) -> Held:
        """Return what the copy has, nothing if it is not complete.

        Bytes behind the last whole record of each journal are cut off.  Raises OSError, CorruptFile.
        """
        if not self.is_complete:
            return {"identity": "", "places": {}, "views": {}, "amended": {}}
        for folder in (self.data_dir / _JOURNAL).glob("*"):
            if folder.name.isdigit():
                self._reopen(int(folder.name))
        views, amended = {}, {}
        for folder in (self.data_dir / "partitions").glob("*"):
            if numbers := compacted_ledgers.numbers(folder):
                views[folder.name] = numbers[-1]
            with contextlib.suppress(FileNotFoundError):
                amended[folder.name] = format.amended_path(folder).stat().st_size
        return {"identity": standing.read(self.data_dir).identity, "views": views, "amended": amended,
                "places": {str(owner): segment.place.fields() for owner, segment in self._segments.items()}}

    def _reopen(self, owner: int) -> None:
        """Find the end of an owner's journal, and open its newest segment there."""
        folder = journal_folder(self.data_dir, owner)
        if (begin := beginning(folder)) is None:
            return
        tail = JournalTail(folder, begin)
        with contextlib.closing(tail):
            while tail.read() is not None:
                pass
        fd = os.open(folder / f"{tail.place.sequence}.journal", os.O_RDWR | os.O_CLOEXEC)
        os.ftruncate(fd, tail.place.at)
        os.fsync(fd)
        self._segments[owner] = _Segment(fd, tail.place)

    # -- a base

    def begin_base(self, following: str, owners: int) -> None:
        """Empty the folder for a base.  Raises OSError."""
        data_folder.begin(self.data_dir)
        self.is_complete = False
        self.close()
        for name in _OWN:
            path = self.data_dir / name
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
        standing.write(self.data_dir, Standing(following=following))
        (self.data_dir / _JOURNAL).mkdir()
        settle(self.data_dir, owners)

    def complete_base(self, identity: str, following: str) -> None:
        """Sync the whole base, and mark the folder as a complete copy.  Raises OSError."""
        self.sync()
        sync_all(self.data_dir)
        standing.write(self.data_dir, Standing(identity, following=following))
        data_folder.mark_copy(self.data_dir)
        self.is_complete = True

    # -- what a feed sends; `sync` makes it durable

    def take(self, frame: Frame) -> None:
        """Write what a frame brings.  Raises Malformed, OSError."""
        fields = frame.fields
        try:
            if frame.kind == frames.RECORDS:
                self.put_records(int(fields["owner"]), JournalPlace(**fields["place"]), frame.data)
            elif frame.kind == frames.CATALOGUE:
                self.put_catalogue(int(fields["size"]), [int(number) for number in fields["pages"]], frame.data)
            elif frame.kind == frames.FILE:
                self.put_file(fields, frame.data)
            elif frame.kind == frames.VIEW:
                self.put_view(int(fields["partition"]), int(fields["number"]))
            else:
                raise Malformed(f"a feed sends no frame of kind {frame.kind} here")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise Malformed(f"a frame of kind {frame.kind} cannot be understood: {error!r}") from None

    def put_file(self, fields: dict[str, Any], data: memoryview) -> None:
        """Write a part of a file.  Raises Malformed, OSError."""
        path = self._path(fields["path"])
        if path not in self._written:
            new = [above for above in path.parents if not above.exists()]
            path.parent.mkdir(parents=True, exist_ok=True)
            self._folders |= {path.parent, *(above.parent for above in new)}
            self._written[path] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        write_all(self._written[path], data, int(fields["at"]))
        if fields["whole"]:
            fd = self._written.pop(path)
            try:
                os.ftruncate(fd, int(fields["size"]))
                if self.is_complete:      # a base is synced as a whole
                    os.fsync(fd)
            finally:
                os.close(fd)

    def _path(self, name: str) -> Path:
        if not isinstance(name, str) or not _PATH.fullmatch(name):
            raise Malformed(f"{name!a} is not in a data folder")
        return self.data_dir / name

    def put_view(self, partition_id: int, number: int) -> None:
        """Put a compacted view in force whose files were all sent, and remove the ones before.  Raises OSError."""
        folder = format.partition_folder(self.data_dir, partition_id)
        place = format.compacted_folder(folder)
        shutil.rmtree(place / str(number), ignore_errors=True)
        try:
            sync(compacted_ledgers.unfinished(folder, number), os.fsync)
            compacted_ledgers.adopt(folder, number)
        except FileNotFoundError:      # the partition was deleted since
            return
        for older in compacted_ledgers.numbers(folder)[:-1]:
            shutil.rmtree(place / str(older), ignore_errors=True)

    def put_catalogue(self, size: int, pages: list[int], data: memoryview) -> None:
        """Replace the catalogue by one of which some pages have changed, synced.  Raises Malformed, OSError."""
        if len(data) != len(pages) * frames.PAGE or max(pages, default=0) * frames.PAGE >= max(size, 1):
            raise Malformed("the catalogue's pages are not those that were announced")
        image = self._image[:size].ljust(size, b"\0")
        for index, number in enumerate(pages):
            image[number * frames.PAGE:(number + 1) * frames.PAGE] = data[index * frames.PAGE:(index + 1) * frames.PAGE]
        # A promotion that was interrupted may have left a log: SQLite would apply its pages to the new file, and the
        # catalogue would be neither the old one nor the new one.
        for suffix in ("-wal", "-shm"):
            (self.data_dir / f"{_CATALOGUE}{suffix}").unlink(missing_ok=True)
        write_anew(self.data_dir / _CATALOGUE, bytes(image))
        sync(self.data_dir, os.fsync)
        self._image = image

    def put_records(self, owner: int, begin: JournalPlace, data: memoryview) -> None:
        """Append records to an owner's journal.  Raises Malformed, OSError."""
        records, size = journal_reader.whole_records(data, begin.sequence, begin.number)
        if size != len(data):
            raise Malformed(f"a record of owner {owner} was damaged on its way")
        segment = self._segments.get(owner)
        if segment is None or segment.place.sequence != begin.sequence:
            segment = self._begin_segment(owner, segment, begin)
        if segment.place.at != begin.at or segment.place.number != begin.number:
            raise Malformed(f"records of owner {owner} came out of order")
        if not records:      # the place at which the journal begins, so that the copy knows it
            return
        write_all(segment.fd, data, begin.at)
        segment.place = behind(begin, data, len(records))
        self._unsynced.add(owner)

    def _begin_segment(self, owner: int, before: _Segment | None, begin: JournalPlace) -> _Segment:
        gap = 1 if before is None else begin.sequence - before.place.sequence
        follows = before is None or before.place.number == begin.number
        if not follows or begin.at != format.HEADER_SIZE or not 0 < gap < _GAP_MAX:
            raise Malformed(f"records of owner {owner} are missing before segment {begin.sequence}")
        folder = journal_folder(self.data_dir, owner)
        folder.mkdir(parents=True, exist_ok=True)
        self._folders |= {folder, folder.parent, self.data_dir}
        # A start reads an unbroken chain of segments, so those that were empty, and are gone by now, are made again.
        for sequence in range(begin.sequence - gap + 1, begin.sequence + 1):
            fd = os.open(folder / f"{sequence}.journal", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            write_all(fd, header_of_segment(sequence, first_record=begin.first), 0)
            if before is not None:
                # The segment before goes to the disk first: after a power cut that lost its end but not the new
                # segment, a start would see a gap in the chain, and drop records that were acknowledged as copied.
                os.fdatasync(before.fd)
                os.close(before.fd)
            before = self._segments[owner] = _Segment(fd, replace(begin, sequence=sequence))
        assert before is not None
        self._unsynced.add(owner)
        return before

    def sync(self) -> None:
        """Sync everything that was put so far.  Raises OSError."""
        for owner in self._unsynced:
            os.fdatasync(self._segments[owner].fd)
        for folder in self._folders:
            with contextlib.suppress(FileNotFoundError):      # of a partition that was deleted since
                sync(folder, os.fsync)
        self._unsynced.clear()
        self._folders.clear()

    @property
    def position(self) -> dict[int, int]:
        """{owner: number of the last record}."""
        return {owner: segment.place.number - 1 for owner, segment in self._segments.items()}


def promote(data_dir: Path) -> None:
    """Make a complete copy a folder that is served from now on: a start recovers it as after a crash.

    Ledgers of the copy are closed, because the broker that was copied may have given out entry ids that the copy does
    not know.

    Raises CannotUse for another folder, CatalogueError, StorageFull, NotDurable, OSError.
    """
    if not data_folder.is_copy(data_dir):
        raise data_folder.CannotUse(f"{data_dir}: its copy is not complete yet")
    with contextlib.closing(open_catalogue(data_dir / _CATALOGUE)) as catalogue:
        for partition_id in applying.deleted(data_dir):
            catalogue.partitions.delete(partition_id)
        catalogue.scalable_topics.repeat_last_changes()      # records of them may not have come
        catalogue.ids.mark_restored()
        catalogue.commit()
        stored = catalogue.partitions.ids()
    for partition_id in stored:      # the records that would make a folder may not have come
        format.partition_folder(data_dir, partition_id).mkdir(parents=True, exist_ok=True)
    for folder in (data_dir / "partitions").glob("*"):
        if folder.name.isdigit() and int(folder.name) not in stored:      # deleted just before
            shutil.rmtree(folder)
    (data_dir / applying.DELETED).unlink(missing_ok=True)
    with contextlib.closing(Copy(data_dir)) as copy:
        places = copy.held()["places"]
    standing.write(data_dir, standing.read(data_dir).promoted(places))
    data_folder.complete(data_dir)


def lacking(data_dir: Path, places: dict[str, JournalPlaceFields]) -> int | None:
    """Return how many entries the journals of a folder have behind places, None if that cannot be told.

    places: of each owner, as a promoted standby has them: it never got these entries.
    """
    entries = 0
    try:
        for owner, fields in places.items():
            tail = JournalTail(journal_folder(data_dir, int(owner)), JournalPlace(**fields))
            with contextlib.closing(tail):
                tail.check()
                while (block := tail.read()) is not None:
                    entries += sum(len(record.rows) for record in block.records)
    except (Overtaken, CorruptFile, OSError, TypeError, ValueError):
        return None
    return entries

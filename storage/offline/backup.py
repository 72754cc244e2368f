"""Make a backup of a data folder as of one moment, while a broker goes on serving the folder.

    <parent>/<time>/manifest             CRC32-C of the JSON in hexadecimal, a space, a Manifest as JSON
    <parent>/<time>/catalogue.sqlite
    <parent>/<time>/partitions/<id>/...  as in a data folder: ledgers, indexes, state, amendments, the newest view
    <parent>/<time>/transactions/<n>/table    which transactions are committed, so that partitions commit them too
    <parent>/<time>.new                  a backup in progress, or one that was not completed
    <parent>/lock                        held by the process that makes a backup in this folder
    <data>/backup/lock                   held by the process that makes a backup of this data folder
    <data>/backup/layouts                held meanwhile by it in step 2, until the catalogue is copied (locks.py)
    <data>/backup/linked/<id>/...        hard links to all files that may belong to the backup, until they are moved
                                         or copied

Steps:

  1. Every file gets a hard link.
  2. Owners report where each file ends (backup_snapshot.py).
  3. Files are synced and read for their checksums.

Files that are only appended to share their blocks with the backup if the file system supports reflinks. On the same
file system without reflinks, the backup keeps the hard link to a ledger's file. No holes are punched into a file that
has two hard links. All other files are copied, unless the previous backup has an identical copy. A header that is
rewritten in place is stored in the manifest.

A backup has no journal, because its states and indexes are complete.
"""
import contextlib
import itertools
import json
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np
from crc32c import crc32c

from geminga.storage import format
from geminga.storage.catalogue.catalogue import open_catalogue, open_to_read
from geminga.storage.catalogue.kept_topics import BacklogRows
from geminga.storage.disk import locks, regular_files, syscalls
from geminga.storage.disk.files import sync, write_anew
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers import compacted_ledgers
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.ledger_headers import ledger_header
from geminga.storage.offline.backup_items import Item, chunks, copy_item, sum_up
from geminga.storage.open_topics.backup_snapshot import PartitionCut, link
from geminga.storage.topics import exported
from geminga.storage.transactions import transaction_table

VERSION = 1
MANIFEST, CATALOGUE, PARTITIONS, STATE = "manifest", "catalogue.sqlite", "partitions", "state"
_TABLE = re.compile(r"transactions/\d{1,3}/table")
_UNFINISHED = ".new"
_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-\d{3}Z")
_AMENDED = format.amended_path(Path())
_MANIFEST_MAX = 1 << 30      # bytes; some 200 for each file
Told = Callable[[int, int], None]      # is called with (bytes done so far, bytes in all)


class CannotBackUp(Exception):
    """Exception for a backup that cannot be made or read.  The text is one line for the user."""


class Cut(TypedDict):
    """One owner's answer to a request for its cut."""

    file: str                # in the folder of links
    seconds: float           # that the owner did not serve


@dataclass(slots=True)
class Manifest:
    """Content of the file `manifest`: every file of the backup with its size and checksum."""

    created_ms: int
    folder_version: int
    data_dir: str
    items: list[Item]
    version: int = VERSION

    def encode(self) -> bytes:
        text = json.dumps(asdict(self), separators=(",", ":")).encode()
        return b"%08x %s" % (crc32c(text), text)


def read_manifest(backup: Path) -> Manifest:
    """Read and check the manifest of a backup.

    Raises CorruptFile, OSError. Raises CannotBackUp if a newer version of Geminga or another program wrote the
    manifest.
    """
    path = backup / MANIFEST
    checksum, _, text = regular_files.read(path, _MANIFEST_MAX).partition(b" ")
    if checksum != b"%08x" % crc32c(text):
        raise CorruptFile(path, 0, f"checksum {crc32c(text):08x}", checksum[:16])
    try:
        stored = json.loads(text)
        for name, newest in (("version", VERSION), ("folder_version", format.FOLDER_VERSION)):
            if _number(stored[name]) > newest:
                raise CannotBackUp(f"{path}: a newer program made it: its {name} is {stored[name]}, "
                                   f"and this one knows {newest} and older")
        manifest = Manifest(**stored | {"items": [_item(path, Item(**item)) for item in stored["items"]]})
        _number(manifest.created_ms)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise CannotBackUp(f"{path}: it is no manifest that a program of ours has written") from None
    if len({item.path for item in manifest.items}) < len(manifest.items):
        raise CannotBackUp(f"{path}: it has a file twice")
    return manifest


def _item(manifest: Path, item: Item) -> Item:
    """Return the item unchanged, after checking its path, size and checksum fields.

    Raises CannotBackUp, ValueError, TypeError if no backup can contain such a file.
    """
    parts = Path(item.path).parts
    is_partitions = len(parts) > 2 and parts[0] == PARTITIONS and ".." not in parts
    is_one = is_partitions and item.path == "/".join(parts) and item.path.isprintable()
    if not (is_one or item.path == CATALOGUE or _TABLE.fullmatch(item.path)):
        raise CannotBackUp(f"{manifest}: {item.path!a} is not in a data folder")
    for number in (item.size, item.crc32c, *item.source):
        _number(number)
    if len(bytes.fromhex(item.header)) > item.size:
        raise ValueError(item.header)
    return item


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(value)
    return value


@dataclass(slots=True)
class BackupReport:
    """Result of one backup: its folder, amounts, and duration."""

    folder: str
    partitions: int = 0
    bytes: int = 0
    shared_bytes: int = 0        # of `bytes`: shared with the data folder or the previous backup
    longest_pause_ms: float = 0  # longest time that an owner did not serve
    seconds: float = 0


def backups(parent: Path) -> list[Path]:
    """Return the folders of completed backups, oldest first."""
    return sorted(path.parent for path in parent.glob(f"*/{MANIFEST}") if _NAME.fullmatch(path.parent.name))


def make(data_dir: Path, parent: Path, begin: Callable[[], None], cut: Callable[[], list[Cut]], *,
         keep: int = 0, told: Told = lambda done, total: None) -> BackupReport:
    """Make a backup in a new folder of `parent`.

    begin, cut: callbacks that ask all owners to begin a backup, and to report where their files end
    (backup_snapshot.py). keep: number of backups to keep, 0 for all; older backups are removed. told: see Told.

    Raises CannotBackUp, OSError, CorruptFile and all exceptions of begin and cut. The unfinished backup is removed
    before any of them leaves this function.
    """
    began = time.monotonic()
    if parent.resolve().is_relative_to(data_dir.resolve()):
        raise CannotBackUp(f"{parent} is in the data folder")
    own = format.linked_folder(data_dir).parent
    for folder in (parent, own):
        folder.mkdir(parents=True, exist_ok=True)
    with locks.lock(parent / locks.LOCK) as is_ours, locks.lock(own / locks.LOCK) as is_alone:
        if not (is_ours and is_alone):
            raise CannotBackUp(f"{parent if is_alone else data_dir}: another backup is being made")
        _clean(data_dir, parent)
        now_ms = time.time_ns() // 1_000_000
        name = time.strftime("%Y-%m-%dT%H-%M-%S", time.gmtime(now_ms // 1000)) + f"-{now_ms % 1000:03}Z"
        made = parent / f"{name}{_UNFINISHED}"
        try:
            made.mkdir()
            report = _Making(data_dir, made, next(reversed(backups(parent)), None)).run(begin, cut, told)
            made.rename(parent / name)
            sync(parent, os.fsync)
        finally:
            _clean(data_dir, parent)
        for old in backups(parent)[:-keep] if keep else ():
            old.rename(old.with_suffix(_UNFINISHED))      # no longer counts as a backup
        _clean(data_dir, parent)
        report.folder, report.seconds = str(parent / name), round(time.monotonic() - began, 3)
        return report


def remove_leftovers(data_dir: Path) -> None:
    """Remove the hard links in the data folder that a killed backup left behind."""
    linked = format.linked_folder(data_dir)
    if linked.parent.exists():
        with locks.lock(linked.with_name(locks.LOCK)) as is_alone:
            if is_alone:
                _remove_links(linked)


def _clean(data_dir: Path, parent: Path) -> None:
    _remove_links(format.linked_folder(data_dir))
    for path in parent.glob(f"*{_UNFINISHED}"):
        if _NAME.fullmatch(path.stem):
            shutil.rmtree(path, ignore_errors=True)


def _remove_links(linked: Path) -> None:
    """Remove a folder of links.  It is renamed first: an owner that still writes its cut there, for a backup that
    another owner has refused meanwhile, then finds no folder, and leaves no file behind that keeps it.
    """
    removed = linked.with_suffix(".removed")
    shutil.rmtree(removed, ignore_errors=True)      # a killed backup may have left it
    with contextlib.suppress(FileNotFoundError):
        linked.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


class _Making:
    """One backup in progress, in the folder `made`.

    `before` is the newest completed backup; None if there is no completed one.
    """

    def __init__(self, data_dir: Path, made: Path, before: Path | None):
        self._data_dir, self._made, self._before = data_dir, made, before
        self._known: dict[str, Item] = {}
        if before is not None:
            with contextlib.suppress(CorruptFile, CannotBackUp, OSError):
                self._known = {item.path: item for item in read_manifest(before).items}
        # A view that continues another one shares files with it, which have other paths then.
        self._known_of_views = {tuple(item.source): item for item in self._known.values() if _is_of_view(item)}
        self._rows: dict[int, list[Item]] = {}       # by partition id, with sizes as its files give them
        self._tables: dict[int, bytes] = {}          # of transactions, by number of the coordinator
        self._backlogs: list[BacklogRows] = []       # of the catalogue, as each owner read them at its cut
        self._stays = False                          # whether the folder of links was moved into the backup
        self._linked = format.linked_folder(data_dir)
        self._linked.mkdir()
        self._clones = True                          # False: the file system does not support reflinks
        self._report = BackupReport("")

    def run(self, begin: Callable[[], None], cut: Callable[[], list[Cut]], told: Told) -> BackupReport:
        begin()
        with contextlib.closing(open_to_read(self._data_dir / CATALOGUE)) as catalogue:
            newest = catalogue.partitions.newest_id()
        for folder in (self._data_dir / PARTITIONS).glob("*"):
            if folder.name.isdigit():
                self._rows[int(folder.name)] = self._link(folder, int(folder.name))
        # The catalogue is copied behind the cuts: a partition or subscription that an owner's cut has is in it.  The
        # other way round a restored broker would find states of subscriptions that no name leads to.  A layout that
        # came into force in between would have segments that lack the subscriptions of those before them.
        with locks.wait_for(self._linked.with_name(locks.LAYOUTS)):
            states = self._take(cut())
            created_ms = time.time_ns() // 1_000_000
            stored = self._copy_catalogue(newest)
        with contextlib.suppress(OSError):           # it fails across file systems and mounts
            self._linked.rename(self._made / PARTITIONS)
            self._linked, self._stays = self._made / PARTITIONS, True
        for partition_id, data in states.items():
            if partition_id in stored:
                path = self._linked / str(partition_id) / STATE
                path.parent.mkdir(exist_ok=True)
                write_anew(path, data)
        items = [Item(CATALOGUE, (self._made / CATALOGUE).stat().st_size), *self._write_tables()]
        items += [item for partition_id in sorted(stored & self._rows.keys()) for item in self._rows[partition_id]]
        sizes = list(itertools.accumulate(item.size for item in items))
        for item, done in zip(items, sizes, strict=True):
            self._settle(item)
            told(done, sizes[-1])
        self._remove_others({item.path for item in items})
        for made, _, _ in os.walk(self._made):
            sync(Path(made), os.fsync)
        manifest = Manifest(created_ms, format.FOLDER_VERSION, str(self._data_dir.resolve()), items)
        write_anew(self._made / MANIFEST, manifest.encode())
        sync(self._made, os.fsync)
        self._report.partitions = len(stored & self._rows.keys())
        return self._report

    # -- files, and their sizes

    def _link(self, folder: Path, partition_id: int) -> list[Item]:
        """Hard-link all files of a partition into the backup's folder of links, and return an Item for each.

        Sizes come from index headers or from the file system. The backup does not need a file that disappears
        meanwhile.
        """
        items = []
        for path in _files(folder):
            name = self._linked / path.relative_to(folder.parent)
            with contextlib.suppress(FileNotFoundError):
                if path == folder / _AMENDED:
                    items.append(Item(self._name(path), path.stat().st_size))
                link(path, name)
                if path.parent == folder and path.suffix == ".index" and path.stem.isdigit():
                    items += self._ledger(partition_id, int(path.stem))
                elif path.parent != folder or path.suffix != ".ledger":
                    items += [Item(self._name(path), name.stat().st_size)] if path != folder / _AMENDED else []
        return items

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._data_dir))

    def _ledger(self, partition_id: int, ledger_id: int) -> list[Item]:
        """Return the items of a ledger's two files, with sizes from the index header.

        Items cover whole files if the index header is damaged.
        """
        folder = self._linked / str(partition_id)
        paths = [format.index_path(folder, ledger_id), format.ledger_path(folder, ledger_id)]
        with open(paths[0], "rb") as file:
            raw = file.read(format.HEADER_SIZE)
        with contextlib.suppress(FileNotFoundError):
            link(format.ledger_path(format.partition_folder(self._data_dir, partition_id), ledger_id), paths[1])
        head = np.frombuffer(raw, format.INDEX_HEADER, 1) if len(raw) == format.HEADER_SIZE else None
        if head is None or head["magic"][0] != format.INDEX_MAGIC or head["version"][0] == 1 \
                or not format.is_whole(head):
            sizes = [path.stat().st_size for path in paths]
            return [Item(f"{PARTITIONS}/{partition_id}/{path.name}", size)
                    for path, size in zip(paths, sizes, strict=True)]
        ledger = Ledger(format.partition_folder(Path(), partition_id), partition_id, ledger_id)
        return _items(ledger, raw, int(head["entries"][0]), int(head["size"][0]))

    def _take(self, cuts: list[Cut]) -> dict[int, bytes]:
        """Take over sizes and states from the owners' files, and return {partition id: bytes of its state}."""
        states = {}
        for cut in cuts:
            self._report.longest_pause_ms = max(self._report.longest_pause_ms, round(1000 * cut["seconds"], 3))
            with open(self._linked / cut["file"], "rb") as file:
                about = json.loads(file.readline())
                for row in about["partitions"]:
                    states[row["id"]] = file.read(row["state"])
                    self._take_row(row)
                self._tables |= {number: file.read(size) for number, size in about["tables"]}
                self._backlogs.append(BacklogRows(*about["backlogs"]))
            (self._linked / cut["file"]).unlink()
        return states

    def _take_row(self, row: PartitionCut) -> None:
        partition_id, named = row["id"], format.partition_folder(Path(), row["id"])
        if "open" not in row:      # not opened since a start: its files are current, except for the state
            items = [item for item in self._rows.get(partition_id, []) if item.path != str(named / STATE)]
        else:
            items = [item for ledger_id in row["sealed"] for item in self._ledger(partition_id, ledger_id)]
            last = Ledger(named, partition_id, row["open"][0])
            _, last.entries, last.size, last.first_message, last.created_ms = row["open"]
            items += _items(last, last.header(), last.entries, last.size)
            if row["view"]:
                view = self._linked / str(partition_id) / "compacted" / str(row["view"])
                items += [Item(str(named / "compacted" / view.name / path.name), path.stat().st_size)
                          for path in view.iterdir()]
            if row["amended"]:
                items.append(Item(str(named / _AMENDED), row["amended"]))
        self._rows[partition_id] = [*items, Item(str(named / STATE), row["state"])]

    def _copy_catalogue(self, newest: int) -> set[int]:
        """Copy the catalogue into the backup, and return the ids of the partitions in the copy.

        The copy is made after all owners have reported where their files end. Partitions with ids above `newest` and
        without linked files were created during the backup, and are deleted from the copy. Partitions whose folders are
        empty were never used: the copy has their topics only, as a restored folder would count as removed. A cleared
        backlog that was taken back or given up since a cut is put back, because the state there has its cursor, and the
        subscription without its messages. An owner that finds no such cursor in a state drops the row.
        """
        uri = f"{(self._data_dir / CATALOGUE).absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as source, \
                contextlib.closing(sqlite3.connect(self._made / CATALOGUE)) as copy:
            source.backup(copy)
        with contextlib.closing(open_catalogue(self._made / CATALOGUE)) as catalogue:
            stored = catalogue.partitions.ids()
            later = {partition_id for partition_id in stored - self._rows.keys() if partition_id > newest}
            for partition_id in later:
                catalogue.partitions.delete(partition_id)
            for partition_id in (each for each in stored if self._rows.get(each) == []):
                catalogue.partitions.forget(partition_id)
            for rows in self._backlogs:
                catalogue.kept_topics.put_back(rows, stored - later)
            catalogue.commit()
        return stored - later

    def _write_tables(self) -> list[Item]:
        """Write the tables of transactions into the backup, and return their items.

        The tables of coordinators that no owner had at its cut are read from the data folder.
        """
        for folder in (self._data_dir / "transactions").glob("*"):
            if folder.name.isdigit() and int(folder.name) not in self._tables:
                number = int(folder.name)
                self._tables[number] = transaction_table.read(self._data_dir, number).encode(of_backup=True)
        items = []
        for number, data in sorted(self._tables.items()):
            path = transaction_table.path_of(self._made, number)
            path.parent.mkdir(parents=True)
            write_anew(path, data)
            items.append(Item(str(path.relative_to(self._made)), len(data)))
        return items

    # -- files into the backup

    def _settle(self, item: Item) -> None:
        """Put the file of an item into the backup, synced, and compute its checksum.

        An unchanged file is hard-linked from the previous backup. Any other file is cloned if the file system supports
        reflinks. Otherwise it stays a hard link to the data folder's file, or is copied.
        """
        path = self._made / item.path
        self._report.bytes += item.size
        if not item.path.startswith(PARTITIONS):
            return self._sum_up(path, item)
        linked = path if self._stays else self._linked / Path(item.path).relative_to(PARTITIONS)
        with open(linked, "rb") as file:
            os.fdatasync(file.fileno())
            status = os.fstat(file.fileno())
        item.source = [status.st_ino, status.st_mtime_ns]
        path.parent.mkdir(parents=True, exist_ok=True)
        earlier = self._known.get(item.path)
        if earlier is None and _is_of_view(item):
            earlier = self._known_of_views.get(tuple(item.source))
        if earlier is not None and self._before is not None \
                and (earlier.size, earlier.header, earlier.source) == (item.size, item.header, item.source) \
                and _link_again(self._before / earlier.path, path):
            self._report.shared_bytes += item.size
            item.crc32c = earlier.crc32c
            return None
        is_written = (path.suffix == ".index" and path.parents[1].name != "compacted") or path.name == _AMENDED.name
        fresh = path.with_suffix(_UNFINISHED)
        if not is_written and self._clone(linked, fresh):
            fresh.replace(path)
            self._report.shared_bytes += item.size
        elif is_written or linked != path:
            item.crc32c = copy_item(linked.parent, linked, fresh, item)
            fresh.replace(path)
            return None
        else:
            self._report.shared_bytes += item.size if status.st_nlink > 1 else 0
        return self._sum_up(path, item)

    def _sum_up(self, path: Path, item: Item) -> None:
        with open(path, "rb") as file:
            os.fdatasync(file.fileno())
            item.crc32c = sum_up(item, chunks(file, item))

    def _clone(self, source: Path, target: Path) -> bool:
        """Try to make `target` share the blocks of `source` (a reflink).

        Return False if the file system does not support reflinks.
        """
        if self._clones:
            with open(source, "rb") as file, open(target, "wb") as copy:
                try:
                    syscalls.clone(file.fileno(), copy.fileno())
                except OSError:
                    self._clones = False
                    target.unlink()
        return self._clones

    def _remove_others(self, wanted: set[str]) -> None:
        """Remove all files of the backup whose relative paths are not in `wanted`, and folders that become empty."""
        for above, _, names in os.walk(self._made, topdown=False):
            for name in names:
                path = Path(above, name)
                if str(path.relative_to(self._made)) not in wanted:
                    path.unlink()
            if not os.listdir(above) and Path(above) != self._made:
                os.rmdir(above)


def _files(folder: Path) -> Iterator[Path]:
    """Iterate over the files of a partition that a backup needs.

    Files that can be rebuilt, unfinished ones, and the file `exported` are left out. Indexes come before ledgers,
    because a ledger without an index is not usable.
    """
    with contextlib.suppress(FileNotFoundError):
        for path in sorted(folder.iterdir(), key=lambda path: path.suffix != ".index"):
            if path.is_file() and path.suffix != _UNFINISHED and path.name != exported.NAME:
                yield path
    if (amended := folder / _AMENDED).exists():
        yield amended
    for number in compacted_ledgers.numbers(folder)[-1:]:
        with contextlib.suppress(FileNotFoundError):
            yield from (format.compacted_folder(folder) / str(number)).iterdir()


def _items(ledger: Ledger, header: bytes, entries: int, size: int) -> list[Item]:
    """Return the items of a ledger's first `entries` entries: index, and data file up to `size` bytes."""
    return [Item(str(ledger.index_path), format.index_size(entries), header=header.hex()),
            Item(str(ledger.ledger_path), size, header=ledger_header(ledger.ledger_id, ledger.partition_id).hex())]


def _is_of_view(item: Item) -> bool:
    return Path(item.path).parts[2:3] == ("compacted",)


def _link_again(path: Path, name: Path) -> bool:
    try:
        name.unlink(missing_ok=True)
        os.link(path, name)
    except OSError:
        return False
    return True

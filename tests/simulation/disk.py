"""A disk whose every call can be the last one of its process, and which remembers what a power cut may leave.

    disk = Disk(folder, chance)
    with disk.watched():
        ...                       # os.open, os.pwrite, os.fdatasync of everything below the folder go through the disk
        disk.fate = Fate(...)     # what happens at which call
    disk.cut(target)              # the folder after a power cut: files' pages and names as last synced, or newer

A kill loses nothing that was written: the files are real.  Of every page of 4 KiB that was written since its file was
synced, a power cut leaves the old content or any newer one, now and then torn at 512 bytes; of what happened to names
since their folder was synced it leaves, for each name, as much as it likes, but in order; of lengths likewise.  A sync
that failed has lost what it was to write, and the next one says nothing of it.  The catalogue, which SQLite syncs out
of our sight, counts as safe.
"""

import builtins
import contextlib
import errno
import io
import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

PAGE, SECTOR = 4096, 512
LANDMARKS = ("header of a segment", "end of a segment", "end of a segment", "end of a segment", "sync of a segment",
             "create", "rename", "rename", "unlink")
CATALOGUE = "catalogue"


class Killed(BaseException):
    """The process was killed, or its power cut, at this call."""


class File:
    """A file of the simulated disk.

    Invariant: `synced` is on disk; `changes` since are (offset, bytes, whether a failed sync has given them up).
    """

    def __init__(self, content: bytes = b""):
        self.synced = bytearray(content)
        self.name = ""
        self.changes: list[tuple[int, bytes, bool]] = []
        self.sizes = [len(content)]           # that it has had since it was synced

    @property
    def size(self) -> int:
        return self.sizes[-1]

    def write(self, offset: int, data: bytes) -> None:
        self.changes.append((offset, data, False))
        self.resize(max(self.size, offset + len(data)))

    def resize(self, size: int) -> None:
        if size != self.size:
            self.sizes.append(size)

    def sync(self) -> None:
        self.synced, self.changes = bytearray(self._content(lambda versions: versions[-1])), self._given_up()
        self.sizes = [self.size]

    def fail(self, chance: random.Random) -> None:
        """Fail a sync: some pages are written; the others stay unwritten until they are changed again."""
        self.synced = bytearray(self._content(chance.choice))
        self.changes = [(offset, data, True) for offset, data, _ in self.changes]

    def _given_up(self) -> list[tuple[int, bytes, bool]]:
        """Return the changes that no further sync writes: their pages were given up and have not changed since."""
        if not any(is_given_up for *_, is_given_up in self.changes):
            return []
        written = {page for offset, data, is_given_up in self.changes if not is_given_up
                   for page in _pages(offset, data)}
        return [(max(offset, page * PAGE), data[max(0, page * PAGE - offset):(page + 1) * PAGE - offset], True)
                for offset, data, is_given_up in self.changes if is_given_up for page in _pages(offset, data)
                if page not in written]

    def _content(self, choose) -> bytes:
        """Return the content on disk if `choose` picks one version of each changed page."""
        content = bytearray(self.synced)
        content.extend(bytes(max(0, max(self.sizes) - len(content))))
        versions: dict[int, list[bytes]] = {}
        cached = bytearray(content)
        for offset, data, is_given_up in self.changes:
            for page in _pages(offset, data):
                at = page * PAGE
                versions.setdefault(page, [bytes(cached[at:at + PAGE])])
            cached[offset:offset + len(data)] = data
            for page in _pages(offset, data) if not is_given_up else ():
                versions[page].append(bytes(cached[page * PAGE:(page + 1) * PAGE]))
        for page, found in versions.items():
            content[page * PAGE:(page + 1) * PAGE] = choose(found)
        return bytes(content[:self.size])

    def cut(self, chance: random.Random, how: str) -> bytes:
        if how == "nothing":
            size = self.sizes[0]
            return bytes(self.synced[:size].ljust(size, b"\0"))

        def choose(versions: list[bytes]) -> bytes:
            if how == "everything":
                return versions[-1]
            if chance.random() < 0.5:
                return b"".join(chance.choice(versions)[at:at + SECTOR] for at in range(0, PAGE, SECTOR))
            return chance.choice(versions)

        content = self._content(choose)
        size = self.size if how == "everything" else chance.choice(self.sizes)
        return content[:size].ljust(size, b"\0")


def _pages(offset: int, data: bytes) -> range:
    return range(offset // PAGE, -(-(offset + len(data)) // PAGE))


def _cuts(offset: int, data: bytes) -> list[int]:
    """Return the numbers of bytes after which a write may be cut: the kernel copies page by page."""
    return [page * PAGE - offset for page in _pages(offset, data)[1:]]


class Folder:
    """A folder of the simulated disk.

    Invariant: `synced` is on disk; `changes` since are {name: file or None}, one or two names each.
    """

    def __init__(self, names: dict | None = None):
        self.name = ""
        self.names = dict(names or {})
        self.synced = dict(self.names)
        self.changes: list[dict[str, File | Folder | None]] = []

    def set(self, **changes) -> None:
        self.changes.append(changes)
        _apply(self.names, changes)

    def sync(self) -> None:
        self.synced, self.changes = dict(self.names), []

    def cut(self, chance: random.Random, how: str) -> dict:
        """Return the names after a power cut.  Changes of one name are applied in order, other changes in any order."""
        found, chains = dict(self.synced), []
        for change in self.changes:
            joined = [chain for chain in chains if any(change.keys() & before.keys() for before in chain)]
            chains = [chain for chain in chains if chain not in joined] + [[*(one for chain in joined for one in chain),
                                                                            change]]
        for chain in chains:
            length = {"nothing": 0, "everything": len(chain)}.get(how)
            for change in chain[:chance.randint(0, len(chain)) if length is None else length]:
                _apply(found, change)
        return found


def _apply(names: dict, changes: dict) -> None:
    for name, node in changes.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _tree(path: Path) -> Folder:
    """Return the folder with everything in it, as synced."""
    return Folder({name: _tree(path / name) if (path / name).is_dir() else File((path / name).read_bytes())
                   for name in sorted(os.listdir(path)) if not name.startswith(CATALOGUE)})


@dataclass
class Fate:
    """The faults that are going to happen, counted in calls of the disk from now on."""

    kill_in: int | None = None          # the process ends at this call
    landmark: str = ""                  # one of LANDMARKS: `kill_in` counts from the next such call on
    power_fails: bool = False           # the power fails with the process
    fail_sync_in: int | None = None     # this sync fails
    files_left: int | None = None       # so many files can be opened; None: any number
    room: int | None = None             # so often something new finds room; None: there is enough

    @property
    def is_full(self) -> bool:
        return self.room is not None


@dataclass
class Disk:
    root: Path
    chance: random.Random
    say: object = None                  # is told of every call
    fate: Fate = field(default_factory=Fate)
    is_dead: bool = False
    is_aside: bool = False              # the test itself looks at files
    calls: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    pause: object = None                # called before each call: others may go on meanwhile
    is_owner: object = lambda: True     # whether it is the owner's own thread that runs
    failed_syncs: int = 0               # of the owner's own

    def __post_init__(self):
        self.root.mkdir(parents=True, exist_ok=True)
        self.top = _tree(self.root)
        self.open: dict[int, File | Folder] = {}

    def begin_process(self) -> None:
        self.is_dead, self.fate = False, Fate()

    @contextlib.contextmanager
    def aside(self):
        before, self.is_aside = self.is_aside, True
        yield
        self.is_aside = before

    # -- the end

    def cut(self, target: Path, how: str | None = None) -> None:
        """Continue in the folder `target` with what a power cut leaves; the process and its catalogue are dead.

        how: "nothing" that was not synced is left, "everything" is, or "mixed".
        """
        how = how or self.chance.choice(["nothing", "everything", "mixed", "mixed", "mixed"])
        with self.aside():
            self._cut(self.top, target, how)
            for path in sorted(self.root.glob(CATALOGUE + "*")):
                shutil.copy(path, target)
            shutil.rmtree(self.root)
            self.root = target
            self.top = _tree(target)
            self.open = {}

    def _cut(self, folder: Folder, target: Path, how: str) -> None:
        target.mkdir()
        for name, node in sorted(folder.cut(self.chance, how).items()):
            if isinstance(node, Folder):
                self._cut(node, target / name, how)
            else:
                (target / name).write_bytes(node.cut(self.chance, how))

    # -- calls

    def place(self, path) -> tuple[str, ...] | None:
        """Return the path's names from the disk's root on; None for a path outside of the disk."""
        if self.is_aside or isinstance(path, int):
            return None
        path, root = os.fspath(path), str(self.root) + "/"
        if not isinstance(path, str) or not path.startswith(root):
            return () if path == str(self.root) else None
        names = tuple(path[len(root):].split("/"))
        return None if names[0].startswith(CATALOGUE) else names

    def node(self, names: tuple[str, ...]) -> File | Folder | None:
        found = self.top
        for name in names:
            found = found.names.get(name) if isinstance(found, Folder) else None
        return found

    def _is_landmark(self, kind: str, what: str) -> bool:
        name, *where = what.split()
        is_journal = name.endswith(".journal")
        if self.fate.landmark == "header of a segment":
            return kind == "write" and is_journal and where[0] == "0"
        if self.fate.landmark == "end of a segment":
            return kind == "write" and is_journal and where[0] == "0" and self.is_owner()
        if self.fate.landmark == "sync of a segment":
            return kind == "sync" and is_journal
        return kind == self.fate.landmark

    def step(self, kind: str, what: str) -> None:
        """Count a call that is about to change something, and let a planned fault happen."""
        if self.is_dead:
            raise Killed
        if self.pause is not None:
            self.pause()
            if self.is_dead:
                raise Killed
        self.calls += 1
        if self.say is not None:
            self.say(kind, what)
        if self.fate.landmark and self._is_landmark(kind, what):
            self.fate.landmark = ""
        if not self.fate.landmark and self.fate.kill_in is not None:
            self.fate.kill_in -= 1
            if self.fate.kill_in <= 0:
                self.is_dead = True

    def _end(self) -> None:
        """End the process at this call, before or after the call has done a part of its work."""
        if self.is_dead:
            raise Killed

    def fail(self, fault: str, code: int) -> None:
        self.faults[fault] = self.faults.get(fault, 0) + 1
        raise OSError(code, os.strerror(code))

    def take_room(self) -> None:
        if self.fate.room is not None:
            self.fate.room -= 1
            if self.fate.room < 0:
                self.fail("disk full", errno.ENOSPC)

    def do_open(self, path, flags, mode=0o777, **rest):
        names = self.place(path)
        if names is None:
            return _OPEN(path, flags, mode, **rest)
        if self.is_dead:
            raise Killed
        if self.fate.files_left is not None:
            if self.fate.files_left <= 0:
                self.fail("no file descriptors", errno.EMFILE)
            self.fate.files_left -= 1
        node = self.node(names)
        if flags & os.O_CREAT and node is None:
            self.step("create", names[-1])
            self._end()
            self.take_room()
        descriptor = _OPEN(path, flags, mode, **rest)
        if node is None:
            node = File()
            self.node(names[:-1]).set(**{names[-1]: node})
        if flags & os.O_TRUNC and node.size:
            node.resize(0)
            node.changes.clear()
            node.synced.clear()
            node.sizes = [0]
        self.open[descriptor] = node
        node.name = names[-1] if names else "/"
        return descriptor

    def do_close(self, descriptor):
        self.open.pop(descriptor, None)
        _CLOSE(descriptor)

    def do_pwrite(self, descriptor, data, offset):
        node = self.open.get(descriptor)
        if node is None:
            return _PWRITE(descriptor, data, offset)
        data = bytes(data)
        self.step("write", f"{node.name} {offset} {len(data)}")
        if offset + len(data) > node.size:
            self.take_room()
        if self.is_dead:
            data = data[:self.chance.choice([0, 0, len(data), *_cuts(offset, data)])]
        _PWRITE(descriptor, data, offset)
        if data:
            node.write(offset, data)
        self._end()
        return len(data)

    def do_pwritev(self, descriptor, pieces, offset, flags=0):
        if descriptor not in self.open:
            return _PWRITEV(descriptor, pieces, offset, flags)
        data = b"".join(bytes(piece) for piece in pieces)
        cuts = _cuts(offset, data)
        if cuts and self.chance.random() < 0.1:      # a signal: less is written than was asked for
            data = data[:self.chance.choice(cuts)]
        return self.do_pwrite(descriptor, data, offset)

    def do_fallocate(self, descriptor, offset, size):
        node = self.open.get(descriptor)
        if node is None:
            return _FALLOCATE(descriptor, offset, size)
        self.step("allocate", f"{node.name} {offset + size}")
        self._end()
        if offset + size > node.size:
            self.take_room()
        _FALLOCATE(descriptor, offset, size)
        node.resize(max(node.size, offset + size))

    def do_ftruncate(self, descriptor, size):
        node = self.open.get(descriptor)
        if node is not None:
            self.step("truncate", f"{node.name} {size}")
            self._end()
            node.resize(size)
        _FTRUNCATE(descriptor, size)

    def do_sync(self, descriptor):
        node = self.open.get(descriptor)
        if node is None:
            return
        self.step("sync", node.name)
        self._end()
        if isinstance(node, File) and self.fate.fail_sync_in is not None:
            self.fate.fail_sync_in -= 1
            if self.fate.fail_sync_in <= 0:
                self.fate.fail_sync_in = None
                if self.chance.random() < 0.3:            # before the failure is dealt with
                    self.fate.kill_in = self.chance.randint(1, 4)
                node.fail(self.chance)
                if node.name.startswith("schedule"):      # can be made anew, and is
                    self.fail("failed sync of a schedule", errno.EIO)
                self.failed_syncs += self.is_owner()
                is_spare = node.name.endswith("-next.journal") and not self.is_owner()      # being made, for nobody yet
                self.fail("failed sync of a spare" if is_spare else "failed sync", errno.EIO)
        node.sync()

    def sync_all(self, folder, descriptor=None):
        """Sync a whole file system, as syncfs does."""
        if self.is_aside:
            return
        self.step("sync", "all")
        self._end()
        nodes = [self.top]
        while nodes:
            node = nodes.pop()
            node.sync()
            nodes += node.names.values() if isinstance(node, Folder) else []

    def do_rename(self, source, target, **rest):
        names = self.place(source)
        if names is not None:
            self.step("rename", names[-1])
            self._end()
        _RENAME(source, target, **rest)
        if names is not None:
            self.node(names[:-1]).set(**{names[-1]: None, self.place(target)[-1]: self.node(names)})

    def do_unlink(self, path, **rest):
        names = self.place(path)
        if names is not None:
            self.step("unlink", names[-1])
            self._end()
        _UNLINK(path, **rest)
        if names is not None:
            self.node(names[:-1]).set(**{names[-1]: None})

    def do_mkdir(self, path, mode=0o777, **rest):
        names = self.place(path)
        if names and self.node(names) is None:
            self.step("mkdir", names[-1])
            self._end()
            self.take_room()
        _MKDIR(path, mode, **rest)
        if names:
            self.node(names[:-1]).set(**{names[-1]: Folder()})

    def do_rmdir(self, path, **rest):
        names = self.place(path)
        if names is not None:
            self.step("rmdir", names[-1])
            self._end()
        _RMDIR(path, **rest)
        if names is not None:
            self.node(names[:-1]).set(**{names[-1]: None})

    def do_open_stream(self, path, mode="r", *arguments, **rest):
        is_written = set(mode) & set("wax+")
        if not is_written or self.place(path) is None:
            if not isinstance(path, int) and self.place(path) is not None and self.is_dead:
                raise Killed
            return _OPEN_STREAM(path, mode, *arguments, **rest)
        assert mode in ("wb", "w", "r+b"), mode
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_TRUNC if "w" in mode else 0)
        return Stream(self, self.do_open(path, flags, 0o640))

    @contextlib.contextmanager
    def watched(self):
        names = {"open": self.do_open, "close": self.do_close, "pwrite": self.do_pwrite, "pwritev": self.do_pwritev,
                 "posix_fallocate": self.do_fallocate, "ftruncate": self.do_ftruncate, "fsync": self.do_sync,
                 "fdatasync": self.do_sync,
                 "rename": self.do_rename, "replace": self.do_rename, "unlink": self.do_unlink,
                 "remove": self.do_unlink, "mkdir": self.do_mkdir, "rmdir": self.do_rmdir}
        with contextlib.ExitStack() as stack:
            for name, how in names.items():
                stack.enter_context(mock.patch.object(os, name, how))
            for module in (builtins, io):
                stack.enter_context(mock.patch.object(module, "open", self.do_open_stream))
            yield


class Stream:
    """A file that was opened by `open` for writing."""

    def __init__(self, disk: Disk, descriptor: int):
        self._disk, self._descriptor, self._at = disk, descriptor, 0

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data) -> int:
        data = data.encode() if isinstance(data, str) else bytes(data)
        self._disk.do_pwrite(self._descriptor, data, self._at)
        self._at += len(data)
        return len(data)

    def flush(self) -> None:
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._disk.do_close(self._descriptor)


_OPEN, _CLOSE, _PWRITE, _PWRITEV, _FALLOCATE, _FTRUNCATE = (
    os.open,
    os.close,
    os.pwrite,
    os.pwritev,
    os.posix_fallocate,
    os.ftruncate,
)
_RENAME, _UNLINK, _MKDIR, _RMDIR, _OPEN_STREAM = os.rename, os.unlink, os.mkdir, os.rmdir, builtins.open

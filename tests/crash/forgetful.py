"""A file system that forgets: over a power cut it keeps what was synced, and of everything else whatever a disk might
have kept.

    disk = Disk(folder)             # mounted there, and empty
    disk.freeze()                   # the instant of the cut: from now on no sync is done, and none is answered
    ...                             # kill all that runs on it: who waits for a sync ends with the thaw
    disk.thaw()
    disk.cut(seed)                  # mounted again, as it is after the cut
    disk.close()

What is certain: a file's pages and length as of its last fsync; a folder's names as of its last fsync.  What is not,
each by chance:

  - a page of 4 KiB written since is old, new, as it was at some moment between, or new in some of its sectors of 512
    bytes;
  - a file that has grown or shrunk since has its old length or its new one, or, if it grew by being written, one
    between; what it gained is zeros where no page says more;
  - a name that was made, removed or renamed since is as before or as after.  A rename is whole, and what follows on a
    name that was not kept is not kept either.

A file that was synced under a name whose folder was not may be gone: strict, as POSIX allows it; ext4 is kinder.

The server is this module run as a program of its own: it speaks the kernel's FUSE protocol (fuse.h, 7.31) on /dev/fuse,
as the libraries for Python need a libfuse that few machines have.  The kernel caches what is written, and mappings work
as on any file system; what is dirty in its cache comes here when the file is synced or the file system unmounted, so
all of it is known when a cut is made.
"""

import contextlib
import ctypes
import errno
import itertools
import os
import random
import select
import stat
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from ..harness import HANG_SECONDS

PAGE, SECTOR = 4096, 512
ZEROS = bytes(PAGE)
SECONDS = HANG_SECONDS
_WRITE_MAX = 1 << 20
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


def _must(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


# -- what is kept

class File:
    """A file as programs see it, and the content that the disk certainly has of pages written since the last sync."""

    def __init__(self, mode: int):
        self.mode = mode
        self.size = self.synced_size = 0
        self.grew_by_writing = False             # page by page, then; space that was asked for comes at once
        self.live = os.memfd_create("file")
        self.unsynced: dict[int, bytes] = {}

    def __del__(self):
        os.close(self.live)

    def before(self, offset: int, size: int, chance: random.Random) -> None:
        """Keep the old content of a range that is about to change."""
        first, last = offset // PAGE, -(-(offset + size) // PAGE)
        old = os.pread(self.live, (last - first) * PAGE, first * PAGE)
        for page in range(first, last):
            if page not in self.unsynced or chance.random() < 0.25:      # it may have been written at any moment since
                at = (page - first) * PAGE
                self.unsynced[page] = old[at:at + PAGE].ljust(PAGE, b"\0") if at < len(old) else ZEROS

    def write(self, offset: int, data: memoryview, chance: random.Random) -> None:
        self.before(offset, len(data), chance)
        os.pwrite(self.live, data, offset)
        if offset + len(data) > self.size:
            self.size, self.grew_by_writing = offset + len(data), True

    def resize(self, size: int, chance: random.Random) -> None:
        if size < self.size:
            self.before(size, self.size - size, chance)
        os.ftruncate(self.live, size)
        self.size, self.grew_by_writing = size, False

    def punch(self, offset: int, size: int, chance: random.Random) -> None:
        size = min(size, self.size - offset)
        if size > 0:
            self.before(offset, size, chance)
            os.pwrite(self.live, bytes(size), offset)

    def sync(self) -> None:
        self.unsynced.clear()
        self.synced_size = self.size

    def cut(self, chance: random.Random, kept: float) -> None:
        """Cut the power: choose for each page the old or the new content.  kept: probability of the new one."""
        sizes = [self.synced_size, self.size]
        if self.size > self.synced_size and self.grew_by_writing:
            sizes.append(max(self.synced_size, chance.randrange(self.synced_size, self.size) // PAGE * PAGE))
        size = chance.choice(sizes)
        for page, old in self.unsynced.items():
            was_not_shortened = size > self.size and (page + 1) * PAGE > self.size
            if was_not_shortened or chance.random() >= kept:
                os.pwrite(self.live, old, page * PAGE)
            elif chance.random() < 0.1:
                for at in range(0, PAGE, SECTOR):
                    if chance.random() < 0.5:
                        os.pwrite(self.live, old[at:at + SECTOR], page * PAGE + at)
        os.ftruncate(self.live, size)
        self.size = size
        self.sync()


@dataclass
class Folder:
    mode: int
    names: dict[bytes, int] = field(default_factory=dict)


Change = tuple[int, bytes, int | None, int | None]       # folder, name, what it named before, and after


class Tree:
    """All files and folders by number, and the changes of names since their folder was synced."""

    ROOT = 1

    def __init__(self, seed: int):
        self.chance = random.Random(seed)
        self.nodes: dict[int, File | Folder] = {self.ROOT: Folder(stat.S_IFDIR | 0o755)}
        self.numbers = itertools.count(2)
        self.unsynced: list[list[Change]] = []

    def change(self, *changes: tuple[int, bytes, int | None]) -> None:
        """Change what several names mean, in one step."""
        whole = []
        for folder, name, after in changes:
            names = self.nodes[folder].names
            whole.append((folder, name, names.get(name), after))
            _set(names, name, after)
        self.unsynced.append(whole)

    def add(self, folder: int, name: bytes, node: File | Folder) -> int:
        number = next(self.numbers)
        self.nodes[number] = node
        self.change((folder, name, number))
        return number

    def sync(self, number: int) -> None:
        node = self.nodes[number]
        if isinstance(node, File):
            node.sync()
        else:
            self.unsynced = [whole for whole in self.unsynced if all(change[0] != number for change in whole)]

    def cut(self, seed: int) -> None:
        chance = self.chance = random.Random(seed)
        kept = chance.choice([0, 0.1, 0.5, 0.9, 1])
        lost: list[list[Change]] = []
        lost_names: set[tuple[int, bytes]] = set()
        for whole in self.unsynced:
            names = {change[:2] for change in whole}
            if names & lost_names or chance.random() >= kept:
                lost.append(whole)
                lost_names |= names
        for whole in reversed(lost):
            for folder, name, before, _ in reversed(whole):
                _set(self.nodes[folder].names, name, before)
        self.unsynced = []
        reachable, waiting = {}, [self.ROOT]
        while waiting:
            number = waiting.pop()
            node = reachable[number] = self.nodes[number]
            if isinstance(node, Folder):
                waiting += node.names.values()
            else:
                node.cut(chance, kept)
        self.nodes = reachable


def _set(names: dict[bytes, int], name: bytes, number: int | None) -> None:
    if number is None:
        names.pop(name, None)
    else:
        names[name] = number


# -- the kernel's protocol: struct fuse_... of fuse.h

(LOOKUP, FORGET, GETATTR, SETATTR, MKNOD, MKDIR, UNLINK, RMDIR, RENAME, READ, WRITE, STATFS, FSYNC, INIT, FSYNCDIR,
 READDIR, INTERRUPT, DESTROY, BATCH_FORGET, FALLOCATE, RENAME2) = (
    1, 2, 3, 4, 8, 9, 10, 11, 12, 15, 16, 17, 20, 26, 30, 28, 36, 38, 42, 43, 45)
# OPEN, OPENDIR and CREATE are not answered: the kernel then opens by itself and creates by MKNOD.
# ASYNC_READ, BIG_WRITES, WRITEBACK_CACHE, NO_OPEN, MAX_PAGES, NO_OPENDIR
_FLAGS = 1 | 1 << 5 | 1 << 16 | 1 << 17 | 1 << 22 | 1 << 24
_IN, _OUT = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")
_SIZE = 1 << 3                   # SETATTR's flag
_PUNCH_HOLE = 2
_FOREVER = 1 << 30               # seconds for which the kernel may remember: nobody else changes anything


class Server:
    """Answers the kernel's requests, and commands on standard input."""

    def __init__(self, mountpoint: str, seed: int):
        self.mountpoint = mountpoint
        self.tree = Tree(seed)
        self.is_frozen = False
        self.held: list[int] = []                # syncs that are not answered
        self.device = -1
        self._answers = {
            LOOKUP: self._lookup, GETATTR: self._getattr, SETATTR: self._setattr, MKNOD: self._mknod,
            MKDIR: self._mkdir,
            UNLINK: self._unlink, RMDIR: self._rmdir, RENAME: self._rename, RENAME2: self._rename2, READ: self._read,
            WRITE: self._write,
            STATFS: self._statfs, INIT: self._init, READDIR: self._readdir, FALLOCATE: self._fallocate,
            DESTROY: lambda *_: b""}

    def mount(self) -> None:
        self.device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = b"fd=%d,rootmode=40000,user_id=%d,group_id=0,default_permissions" % (self.device, os.getuid())
        _must(_libc.mount(b"forgetful", self.mountpoint.encode(), b"fuse", 0, options))

    def serve(self) -> None:
        """Serve until standard input ends."""
        while True:
            watched = [0] if self.device < 0 else [0, self.device]
            ready = select.select(watched, [], [])[0]
            if self.device in ready:
                self._hear()
            elif not self._obey(os.read(0, 100)):
                return

    def _obey(self, said: bytes) -> bool:
        word, _, rest = said.strip().partition(b" ")
        if word == b"mount":
            try:
                self.mount()
            except OSError as error:
                os.write(1, f"{error}\n".encode())
                return False
        elif word == b"freeze":
            self.is_frozen = True
        elif word == b"thaw":
            self.is_frozen = False
            for unique in self.held:
                self._say(unique, b"", errno.EIO)
            self.held = []
        elif word == b"cut":
            self.tree.cut(int(rest))
        else:
            if self.device >= 0:
                _libc.umount2(self.mountpoint.encode(), _MNT_DETACH)
            return False
        os.write(1, b"done\n")
        return True

    def _hear(self) -> None:
        try:
            raw = os.read(self.device, _WRITE_MAX + PAGE)
        except OSError as error:
            if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):      # a request that was taken back
                return
            assert error.errno == errno.ENODEV, error                         # unmounted
            os.close(self.device)
            self.device = -1
            return
        _, opcode, unique, number, *_ = _IN.unpack_from(raw)
        if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
            return
        if opcode in (FSYNC, FSYNCDIR):
            if self.is_frozen:
                self.held.append(unique)
            else:
                self.tree.sync(number)
                self._say(unique)
            return
        answer = self._answers.get(opcode)
        if answer is None:
            return self._say(unique, error=errno.ENOSYS)
        try:
            self._say(unique, answer(number, memoryview(raw)[_IN.size:]))
        except OSError as error:
            self._say(unique, error=error.errno)

    def _say(self, unique: int, data: bytes = b"", error: int = 0) -> None:
        try:
            os.writev(self.device, [_OUT.pack(_OUT.size + len(data), -error, unique), data])
        except OSError as gone:
            assert gone.errno in (errno.ENOENT, errno.ENODEV), gone             # who asked is dead

    # -- answers: the node's number and what follows the header -> bytes; OSError for the kernel to pass on

    def _init(self, number, body):
        return struct.pack("<IIIIHHIIHHI28x", 7, 31, 1 << 17, _FLAGS, 64, 48, _WRITE_MAX, 1, _WRITE_MAX // PAGE, 0, 0)

    def _statfs(self, number, body):
        return struct.pack("<QQQQQIIII24x", 1 << 30, 1 << 30, 1 << 30, 1 << 30, 1 << 30, PAGE, 255, PAGE, 0)

    def _attributes(self, number: int) -> bytes:
        node = self.tree.nodes[number]
        size = node.size if isinstance(node, File) else 0
        times = (0,) * 6
        return struct.pack("<QQQQQQIIIIIIIIII", number, size, -(-size // SECTOR), *times, node.mode, 1, os.getuid(), 0,
                           0, PAGE, 0)

    def _entry(self, number: int) -> bytes:
        return struct.pack("<QQQQII", number, 0, _FOREVER, _FOREVER, 0, 0) + self._attributes(number)

    def _named(self, folder: int, name: bytes) -> int:
        if name not in self.tree.nodes[folder].names:
            raise OSError(errno.ENOENT, name)
        return self.tree.nodes[folder].names[name]

    def _lookup(self, number, body):
        return self._entry(self._named(number, _name(body)))

    def _getattr(self, number, body):
        return struct.pack("<QII", _FOREVER, 0, 0) + self._attributes(number)

    def _setattr(self, number, body):
        valid, _, _, size = struct.unpack_from("<IIQQ", body)
        node = self.tree.nodes[number]
        if valid & _SIZE:
            node.resize(size, self.tree.chance)
        if valid & 1:
            node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(struct.unpack_from("<I", body, 68)[0])
        return self._getattr(number, body)

    def _mknod(self, number, body):
        mode = struct.unpack_from("<I", body)[0]
        if not (stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
            raise OSError(errno.EPERM, "files and sockets only")
        return self._entry(self.tree.add(number, _name(body[16:]), File(mode)))

    def _mkdir(self, number, body):
        mode = struct.unpack_from("<I", body)[0]
        return self._entry(self.tree.add(number, _name(body[8:]), Folder(stat.S_IFDIR | mode)))

    def _unlink(self, number, body):
        self._named(number, _name(body))
        self.tree.change((number, _name(body), None))
        return b""

    def _rmdir(self, number, body):
        if self.tree.nodes[self._named(number, _name(body))].names:
            raise OSError(errno.ENOTEMPTY, _name(body))
        return self._unlink(number, body)

    def _rename(self, number, body, names_at=8):
        [target] = struct.unpack_from("<Q", body)
        old, new = bytes(body[names_at:]).split(b"\0")[:2]
        self.tree.change((number, old, None), (target, new, self._named(number, old)))
        return b""

    def _rename2(self, number, body):
        if struct.unpack_from("<I", body, 8)[0]:
            raise OSError(errno.EINVAL, "plain renames only")
        return self._rename(number, body, 16)

    def _readdir(self, number, body):
        _, offset, size = struct.unpack_from("<QQI", body)
        found = b""
        for at, (name, child) in enumerate(list(self.tree.nodes[number].names.items())[offset:], offset + 1):
            row = struct.pack("<QQII", child, at, len(name), self.tree.nodes[child].mode >> 12) + name
            row = row.ljust(-(-len(row) // 8) * 8, b"\0")
            if len(found) + len(row) > size:
                break
            found += row
        return found

    def _read(self, number, body):
        _, offset, size = struct.unpack_from("<QQI", body)
        return os.pread(self.tree.nodes[number].live, size, offset)

    def _write(self, number, body):
        _, offset, size = struct.unpack_from("<QQI", body)
        self.tree.nodes[number].write(offset, body[40:40 + size], self.tree.chance)
        return struct.pack("<II", size, 0)

    def _fallocate(self, number, body):
        _, offset, size, mode = struct.unpack_from("<QQQI", body)
        node = self.tree.nodes[number]
        if mode & _PUNCH_HOLE:
            node.punch(offset, size, self.tree.chance)
        elif mode:
            raise OSError(errno.EOPNOTSUPP, "space, or holes")
        elif offset + size > node.size:
            node.resize(offset + size, self.tree.chance)
        return b""


def _name(body: memoryview) -> bytes:
    return bytes(body).split(b"\0", 1)[0]


# -- for tests

class Disk:
    """The mounted file system and the process that serves it."""

    def __init__(self, folder: Path, seed: int = 0):
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self._server = subprocess.Popen([sys.executable, "-m", __name__, folder, str(seed)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
        try:
            self._say("mount")
        except (OSError, RuntimeError):
            self.close()
            raise

    def _say(self, words: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._server.stdin.write(words.encode() + b"\n")
            self._server.stdin.flush()
        answer = self._server.stdout.readline().decode()
        if not answer:      # no OSError: a server with a bug is no host without FUSE, on which tests are skipped
            raise RuntimeError("the file system's server has ended")
        if answer != "done\n":
            raise OSError(answer.strip())

    def freeze(self) -> None:
        self._say("freeze")

    def thaw(self) -> None:
        """Let syncs that were waiting fail."""
        self._say("thaw")

    def write_back(self) -> None:
        """Write dirty pages back, as the kernel does now and then, without a sync."""
        fd = os.open(self.folder, os.O_RDONLY)
        try:
            _must(_libc.syncfs(fd))
        finally:
            os.close(fd)

    def cut(self, seed: int) -> None:
        """Cut the power; no process may use the disk any more."""
        deadline = time.monotonic() + SECONDS
        while _libc.umount2(os.fsencode(self.folder), 0):
            if ctypes.get_errno() != errno.EBUSY or time.monotonic() > deadline:
                raise OSError(ctypes.get_errno(), f"{self.folder} is not unmounted")
            time.sleep(0.005)
        self._say(f"cut {seed}")
        self._say("mount")

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._server.stdin.close()
        self._server.wait(SECONDS)
        self._server.stdout.close()


def why_not(folder: Path) -> str:
    """Return the reason why such a file system cannot be mounted here, or ""."""
    try:
        disk = Disk(folder)
        try:
            (folder / "file").write_bytes(b"?")
        finally:
            disk.close()
    except OSError as error:
        return f"no FUSE file system can be mounted here ({error})"
    return ""


if __name__ == "__main__":
    Server(sys.argv[1], int(sys.argv[2])).serve()

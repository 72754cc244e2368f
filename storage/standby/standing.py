"""The standing of a data folder among a broker and its standby: the file `standby` in the folder, JSON.

    identity     names a history of changes: the same here and in the copy of a standby that follows
    took_over    identities of the histories that this one continues, because a standby was promoted
    following    the broker of which this folder is a copy
    attached     the standby that copies this folder
    superseded   the standby that was promoted, and the time
    places       how far each owner's journal had come here when this folder was promoted

A backup does not have the file, so a restored folder is another history.  The file `format` says whether the folder
may be served (disk/data_folder.py).
"""
import contextlib
import json
import os
import secrets
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from geminga.storage.disk.files import sync, write_anew
from geminga.storage.standby.journal_tail import JournalPlaceFields

NAME = "standby"
_TAKEN_MAX = 100           # promotions that are remembered


@dataclass(frozen=True, slots=True)
class Peer:
    """The other one of a broker and its standby."""

    name: str = ""         # of the host
    url: str = ""          # of its binary protocol, once it serves
    http: str = ""         # of its HTTP port
    at_ms: int = 0         # when it attached, or was promoted


@dataclass(frozen=True, slots=True)
class Standing:
    """Content of the file."""

    identity: str = ""
    took_over: tuple[str, ...] = ()
    following: str = ""
    attached: Peer = field(default_factory=Peer)
    superseded: Peer = field(default_factory=Peer)
    places: dict[str, JournalPlaceFields] = field(default_factory=dict)

    def promoted(self, places: dict[str, JournalPlaceFields]) -> "Standing":
        """Return the standing of a copy that serves from now on: a new history, which continues the copied one."""
        return Standing(secrets.token_hex(8), (*self.took_over, self.identity)[-_TAKEN_MAX:], places=places)


def read(data_dir: Path) -> Standing:
    """Return the standing of a data folder, an empty one if the file is missing or cannot be understood."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        stored = json.loads((data_dir / NAME).read_bytes())
        return Standing(str(stored["identity"]), tuple(map(str, stored["took_over"])), str(stored["following"]),
                        Peer(**stored["attached"]), Peer(**stored["superseded"]), dict(stored["places"]))
    return Standing()


def write(data_dir: Path, standing: Standing) -> None:
    """Write the standing of a data folder, synced.  Raises OSError."""
    write_anew(data_dir / NAME, json.dumps(asdict(standing)).encode())
    sync(data_dir, os.fsync)


def with_identity(data_dir: Path) -> Standing:
    """Return the standing of a folder that is served, and give it an identity first if it has none.  Raises OSError."""
    standing = read(data_dir)
    if not standing.identity:
        standing = replace(standing, identity=secrets.token_hex(8))
        write(data_dir, standing)
    return standing

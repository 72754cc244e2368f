"""The process of a broker that feeds its standby.

    python -m geminga.supervisor.standby.feed DESCRIPTOR FOLDER OWNERS ADDRESS LEASE

The admin process starts it with the connection of a standby that may copy the broker.  It reads files of the data
folder only.  Lines of JSON on standard output tell the admin process how far the standby is, and that it is promoted.
Then the admin process has the broker stopped, and writes a line to standard input when all owners have ended: what
they have written by then is sent too, so nothing is lost.

Marks that the standby acknowledges renew the broker's lease, whose shared memory is behind the descriptor LEASE.
"""
import contextlib
import json
import os
import select
import socket
import sqlite3
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from geminga.storage.errors import CorruptFile, text_of
from geminga.storage.runtime.lease import ADMIN, FEED, FOREVER, TOLD_SECONDS, Lease
from geminga.storage.standby import frames, standing
from geminga.storage.standby.feeding import FORMATS, Feed
from geminga.storage.standby.frames import Decoder, Frame, Malformed
from geminga.storage.standby.journal_tail import Overtaken
from geminga.storage.standby.sources import Pieces
from geminga.storage.standby.standing import Peer

SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: geminga-feed\r\n\r\n"
_PACE_SECONDS = 0.02         # between the begins of two rounds, if the first has sent everything
_SILENT_SECONDS = 10.0       # for which a standby may read nothing, or acknowledge no mark
_TELL_SECONDS = 0.5
_HELLO_SECONDS = 10.0
_RECEIVE_BYTES = 1 << 20


class Refused(Exception):
    """Exception for a standby that cannot be fed.  The text is one line for its operator."""


class Feeding:
    """The connection of one standby."""

    def __init__(self, link: socket.socket, data_dir: Path, owners: int, address: str, lease: Lease):
        self._link, self._data_dir, self._owners, self._address = link, data_dir, owners, address
        self._lease = lease
        link.settimeout(_SILENT_SECONDS)
        self._decoder = Decoder()
        self._feed = Feed(data_dir, owners, self._send)
        self._peer = Peer()
        self._marks: dict[int, float] = {}       # sent, and not acknowledged -> time.monotonic() of their round
        self._as_of = time.monotonic()           # everything before is on the standby's disk
        self._follows_at = 0.0                   # time.monotonic() at which it surely followed; 0: not known yet
        self._told = 0.0
        self._is_taken_over = self._has_stopped = False

    def __repr__(self) -> str:
        return f"<Feeding {self._peer} {self._feed}>"

    def run(self) -> None:
        """Feed the standby until it or the broker goes, or it has taken over.

        Raises Refused, Overtaken, Malformed, CorruptFile, OSError, sqlite3.Error.
        """
        try:
            self._run()
        except ConnectionError:
            self._hear_reason()
            raise

    def _run(self) -> None:
        self._link.sendall(SWITCHED)
        self._welcome(self._hello())
        while True:
            began = time.monotonic()
            is_all = self._feed.round()
            if self._feed.mark not in self._marks and is_all:
                self._marks[self._feed.mark] = began
            self._renew_lease()
            self._tell()
            if is_all and self._has_stopped:
                return self._end()
            until = began + (_PACE_SECONDS if is_all else 0.0)
            self._listen(0.0)
            while (left := until - time.monotonic()) > 0:      # marks are acknowledged at once, which begins no round
                self._listen(left)
            if time.monotonic() - min(self._marks.values(), default=began) > _SILENT_SECONDS:
                raise TimeoutError(f"{self._peer.name} acknowledges nothing")

    def _send(self, pieces: Pieces) -> None:
        for piece in pieces:
            self._link.sendall(piece)

    def _hear_reason(self) -> None:
        """Raise Refused if the standby has said why it has ended the connection, in bytes that were not read yet."""
        self._link.setblocking(False)
        with contextlib.suppress(OSError, Malformed):
            for frame in self._decoder.receive(self._received()):
                if frame.kind == frames.REFUSED:
                    self._take(frame)

    def _hello(self) -> dict[str, Any]:
        """Return the fields of the standby's first frame.  Raises Refused, Malformed, OSError."""
        until = time.monotonic() + _HELLO_SECONDS
        while time.monotonic() < until:
            for frame in self._decoder.receive(self._received()):
                if frame.kind != frames.HELLO:
                    raise Malformed("a standby begins with HELLO")
                return frame.fields
        raise TimeoutError("the standby does not say HELLO")

    def _received(self) -> bytes:
        if not (data := self._link.recv(_RECEIVE_BYTES)):
            raise ConnectionError("the standby has ended the connection")
        return data

    def _welcome(self, hello: dict[str, Any]) -> None:
        if (hello["version"], hello["formats"]) != (frames.VERSION, FORMATS):
            raise Refused(f"the standby has {_formats(hello['version'], hello['formats'])}, and the broker "
                          f"{_formats(frames.VERSION, FORMATS)}: upgrade the older one")
        self._feed.heard = float(hello["stamp"])
        self._peer = Peer(str(hello["name"]), self._reached(hello["url"]), self._reached(hello["http"]),
                          time.time_ns() // 1_000_000)
        known = standing.with_identity(self._data_dir)
        standing.write(self._data_dir, replace(known, attached=self._peer))
        self._lease.renew(ADMIN, self._lease.now() + TOLD_SECONDS)      # which never lapses without a known standby
        why = ""
        if hello["identity"] == known.identity:
            try:
                self._feed.resume({"identity": hello["identity"], "places": hello["places"], "views": hello["views"],
                                   "amended": hello["amended"]})
            except Overtaken as overtaken:
                why = str(overtaken)
        elif hello["identity"]:
            why = "its copy is of another data folder"
        resumes = hello["identity"] == known.identity and not why
        self._send(frames.encode(frames.WELCOME, identity=known.identity, owners=self._owners, resumes=resumes, why=why,
                               took_over=known.took_over[-1:], places=known.places))
        if not resumes:
            self._feed.begin()

    def _reached(self, url: str) -> str:
        """Return an address of the standby, with the host from which it has connected if it names none."""
        parts = urlsplit(str(url))
        if not parts.scheme or parts.hostname:
            return str(url)
        host = f"[{self._address}]" if ":" in self._address else self._address
        return f"{parts.scheme}://{host}:{parts.port}"

    def _listen(self, seconds: float) -> None:
        """Take in what the standby and the admin process say, and wait for that so long."""
        sources = [self._link] if self._has_stopped else [self._link, sys.stdin]
        ready = select.select(sources, [], [], seconds)[0]
        if sys.stdin in ready:
            if not sys.stdin.readline():
                raise ConnectionError("the broker has ended")
            self._has_stopped = True
        if self._link in ready:
            for frame in self._decoder.receive(self._received()):
                self._take(frame)

    def _take(self, frame: Frame) -> None:
        if frame.kind == frames.ACK:
            mark, self._feed.heard = int(frame.fields["mark"]), float(frame.fields["stamp"])
            self._as_of = max(self._as_of, *(at for number, at in self._marks.items() if number <= mark), 0.0)
            self._marks = {number: at for number, at in self._marks.items() if number > mark}
            self._follows_at = self._as_of
        elif frame.kind == frames.TAKE_OVER and not self._feed.is_copying:
            self._is_taken_over = True
            print(json.dumps({"take_over": asdict(self._peer)}), flush=True)
        elif frame.kind == frames.REFUSED:
            raise Refused(f"the standby cannot go on: {frame.fields['reason']}")
        else:
            raise Malformed(f"a standby sends no frame of kind {frame.kind}")

    def _renew_lease(self) -> None:
        """Renew the lease from when the last acknowledged mark was sent; a copy without an end cannot be promoted."""
        if self._feed.is_copying:
            self._follows_at = time.monotonic()
            self._lease.renew(FEED, FOREVER)
        elif self._follows_at and not self._is_taken_over:
            self._lease.renew(FEED, self._lease.now() - (time.monotonic() - self._follows_at) + TOLD_SECONDS)

    def _tell(self) -> None:
        if (now := time.monotonic()) - self._told >= _TELL_SECONDS:
            self._told = now
            print(json.dumps({"name": self._peer.name, "http": self._peer.http, "is_copying": self._feed.is_copying,
                              "done": self._feed.done, "total": self._feed.total,
                              "lag_ms": round(1000 * (now - self._as_of))}), flush=True)

    def _end(self) -> None:
        """Tell the standby that nothing more comes, and wait until it has everything."""
        self._send(frames.encode(frames.END))
        with contextlib.suppress(ConnectionError):      # it needs no connection any more
            while self._marks:
                for frame in self._decoder.receive(self._received()):
                    self._take(frame)


def _formats(feed: Any, formats: Any) -> str:
    """Return the versions that both sides have to share as text."""
    names = ("feed", "data folder", "catalogue")
    return "formats " + ", ".join(f"{name} {version}" for name, version in zip(names, (feed, *formats), strict=False))


def main() -> int:
    """Feed the standby whose connection is the given descriptor, and return the exit status."""
    descriptor, data_dir, owners, address, lease = sys.argv[1:6]
    with contextlib.suppress(PermissionError):      # the admin process, which starts this one, is behind all others
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    with socket.socket(fileno=int(descriptor)) as link:
        try:
            Feeding(link, Path(data_dir), int(owners), address, Lease(int(lease))).run()
            return 0
        except (Refused, Overtaken, Malformed, CorruptFile, OSError, sqlite3.Error, KeyError, TypeError,
                ValueError) as error:
            why = text_of(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}" \
                if isinstance(error, (KeyError, TypeError, ValueError)) else str(error)
            with contextlib.suppress(OSError):
                for piece in frames.encode(frames.REFUSED, reason=why):
                    link.sendall(piece)
            with contextlib.suppress(OSError):
                print(json.dumps({"ended": why}), flush=True)
            return 1


if __name__ == "__main__":
    sys.exit(main())

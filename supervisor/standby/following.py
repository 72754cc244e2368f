"""A standby's connection to its broker: it takes in what the feed sends, and begins again when the connection ends."""
import contextlib
import errno
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from geminga.storage.disk import data_folder
from geminga.storage.errors import CorruptFile, is_full, text_of
from geminga.storage.runtime.log import log
from geminga.storage.standby import applying, copy, frames, standing
from geminga.storage.standby.copy import Copy
from geminga.storage.standby.feeding import FORMATS
from geminga.storage.standby.frames import Decoder, Frame, Malformed
from geminga.supervisor.configuration.config import Config
from geminga.supervisor.tasks import standbys
from geminga.workers.pulsar_client.rest import NotReachable

_AGAIN_MIN_SECONDS, _AGAIN_SECONDS = 0.1, 1.0      # after a connection that lasted, and at most
_AGAIN_LATER_SECONDS = 30.0      # where the disk is full, or the broker has other formats: both last
_SILENT_SECONDS = 10.0           # a feed sends marks all the time
_RECEIVE_BYTES = 1 << 20
_HEAD_MAX = 64 << 10             # bytes of the answer to the request for a feed
_APPLIER_SECONDS = 5.0           # between two starts


@dataclass(frozen=True, slots=True)
class About:
    """What the broker is told about this standby."""

    name: str                    # of the host
    url: str                     # of the binary protocol, once it serves
    http: str


class CopyUnusable(Exception):
    """Exception for a copy that has to be made anew."""


class FeedRefused(Exception):
    """Exception for a broker that begins no feed for this standby."""


class Applier:
    """The process that applies received records."""

    def __init__(self, data_dir: Path):
        self._data_dir = data_dir
        self._process: subprocess.Popen[bytes] | None = None
        self._started = float("-inf")

    def __repr__(self) -> str:
        return f"<Applier {self._process}>"

    def keep(self) -> None:
        """Start the process, and start it again where it has ended.

        Raises CopyUnusable if it says that the copy has to be made anew; OSError.
        """
        if self._process is not None and (status := self._process.poll()) is not None:
            if status == applying.UNUSABLE:
                raise CopyUnusable("records do not fit the copy, which is made anew")
            log.error(f"records cannot be applied here: the process ended with status {status}; starting it again",
                      code="G551")
            self._end(self._process)
        if self._process is None and time.monotonic() - self._started > _APPLIER_SECONDS:
            self._started = time.monotonic()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "geminga.storage.standby.applying", str(self._data_dir)],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def stop(self) -> None:
        """Kill the process; what it was applying is applied again."""
        if self._process is not None:
            self._process.kill()
            self._end(self._process)
            self._started = float("-inf")

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.communicate()      # closes its input too
        self._process = None


class Follower:
    """Follows one broker, in a thread of its own, until it is stopped or the broker has ended for a promotion."""

    def __init__(self, config: Config, about: About):
        """Prepare to follow.  Raises click.UsageError for credentials that cannot be used."""
        self._config, self._about = config, about
        self._credentials = standbys.credentials_of(config.standby)
        self._link: socket.socket | None = None
        self._stopping = threading.Event()
        self._hurried = threading.Event()    # the next connection is not waited for
        self._applier = Applier(config.data_dir)
        self._takes_over = False             # as the other thread says
        self._copy: Copy | None = None
        self._identity = ""
        self._http = ""                      # address of the broker's HTTP, as its binary port has told
        self.is_following = False            # a feed is coming
        self.has_ended = False               # the broker has stopped for this standby, which has everything
        self.is_complete = Copy(config.data_dir).is_complete
        self.why = "it has not connected yet"
        self.done = self.total = 0
        self._as_of = time.monotonic() - _age_of(config.data_dir)
        self.thread = threading.Thread(target=self._run, name="following", daemon=True)

    def __repr__(self) -> str:
        return f"<Follower of {self._config.standby.of} is_following={self.is_following} complete={self.is_complete}>"

    @property
    def lag_seconds(self) -> float:
        """Seconds since everything that the broker had was on disk here."""
        return time.monotonic() - self._as_of

    def take_over(self) -> None:
        """Have the broker stopped, at the next frame that comes from it."""
        self._takes_over = True
        self._hurried.set()

    def stop(self) -> None:
        """Stop following, and applying.  The copy stays as it is."""
        self._stopping.set()
        self._hurried.set()
        with contextlib.suppress(OSError):
            if self._link is not None:
                self._link.shutdown(socket.SHUT_RDWR)
        self.thread.join()

    def _run(self) -> None:
        said, again_s = "", _AGAIN_MIN_SECONDS
        while not self._stopping.is_set() and not self.has_ended:
            began, is_lasting = time.monotonic(), False
            try:
                self._follow()
            except (Malformed, CopyUnusable, NotReachable, CorruptFile, sqlite3.Error, click.UsageError) as error:
                self.why = str(error)
            except FeedRefused as error:
                self.why, is_lasting = str(error), True
            except (KeyError, TypeError, ValueError) as error:
                self.why = f"what comes from it cannot be understood: {error!r}"
            except OSError as error:
                self.why = _text_of(error)
                is_lasting = is_full(error) or error.errno == errno.EDQUOT
            finally:
                self.is_following = False
                self._applier.stop()
                if self._copy is not None:
                    self._copy.close()
            if self.why != said and not self._stopping.is_set() and not self.has_ended:
                said = self.why
                log.warning(f"{self._config.standby.of} is not followed: {said}", code="G551")
            has_lasted = time.monotonic() - began > _AGAIN_SECONDS
            again_s = _AGAIN_MIN_SECONDS if has_lasted else min(2 * again_s, _AGAIN_SECONDS)
            if self._hurried.wait(_AGAIN_LATER_SECONDS if is_lasting else again_s):
                self._hurried.clear()

    # -- one connection

    def _follow(self) -> None:
        """Follow the broker over one connection, until that ends, and tell it why this side ends it.

        Raises OSError, NotReachable, Malformed, FeedRefused, CopyUnusable, CorruptFile.
        """
        with self._connected() as self._link:
            if self._stopping.is_set():
                return
            self._copy = Copy(self._config.data_dir)
            try:
                held = self._copy.held()
            except CorruptFile as error:
                self._give_up()
                raise CopyUnusable(f"{error}; the copy is made anew") from None
            self._send(frames.HELLO, version=frames.VERSION, formats=FORMATS, stamp=time.monotonic(),
                       name=self._about.name, url=self._about.url, http=self._about.http, **held)
            try:
                self._receive()
            except (ConnectionError, TimeoutError, FeedRefused):
                raise
            except (Malformed, CopyUnusable, CorruptFile, OSError) as error:
                with contextlib.suppress(OSError):
                    self._send(frames.REFUSED, reason=_text_of(error))
                raise

    def _receive(self) -> None:
        """Take in what the feed sends, until the broker has ended for a promotion.  Raises what `_follow` raises."""
        assert self._copy is not None and self._link is not None
        decoder, has_asked = Decoder(), False
        while not self.has_ended:
            if not (data := self._link.recv(_RECEIVE_BYTES)):
                raise ConnectionError("the broker has ended the connection")
            mark, heard = 0, 0.0
            for frame in decoder.receive(data):
                if frame.kind == frames.MARK:
                    mark, heard = int(frame.fields["mark"]), float(frame.fields["heard"])
                self._take(frame)
            if mark:
                self._copy.sync()
                self._as_of = max(self._as_of, heard) if self.is_complete else self._as_of
                self._send(frames.ACK, mark=mark, stamp=time.monotonic())
            if self.is_complete:
                self._apply()
            if self._takes_over and not has_asked and self.is_complete:
                has_asked = True
                self._send(frames.TAKE_OVER)

    def _apply(self) -> None:
        """Keep records being applied.  Raises CopyUnusable, after marking the copy as unfinished; OSError."""
        try:
            self._applier.keep()
        except CopyUnusable:
            self._give_up()
            raise

    def _give_up(self) -> None:
        """Mark the copy as unfinished, so that the next connection makes it anew.  Raises OSError."""
        data_folder.begin(self._config.data_dir)
        self.is_complete = False

    def _take(self, frame: Frame) -> None:
        """Take in a frame.  Raises Malformed, FeedRefused, OSError."""
        assert self._copy is not None
        fields = frame.fields
        if frame.kind == frames.REFUSED:
            reason = str(fields.get("reason"))
            if not self.is_following:
                raise FeedRefused(f"the broker refuses: {reason}")
            raise Malformed(f"the broker ends the feed: {reason}")
        if frame.kind == frames.WELCOME:
            self._begin(fields)
        elif frame.kind == frames.END:
            self.has_ended = True
        elif not self.is_following:
            raise Malformed("a feed begins with WELCOME")
        elif frame.kind == frames.MARK:
            self.done, self.total = int(fields["done"]), int(fields["total"])
            if fields["base"] == "complete" and not self.is_complete:
                self._copy.complete_base(self._identity, self._config.standby.of)
                self.is_complete = True
                log.info(f"the copy of {self._config.standby.of} is complete, and follows it", code="G553")
        else:
            self._copy.take(frame)

    def _begin(self, fields: dict[str, Any]) -> None:
        """Continue the copy, or begin a new one, as the broker says."""
        assert self._copy is not None
        self._identity = str(fields["identity"])
        if not fields["resumes"]:
            if self._takes_over:
                raise Malformed(f"the broker cannot continue this copy: {fields['why']}")
            had, self.is_complete = self.is_complete, False
            if had:
                log.warning(f"{self._config.standby.of} cannot continue this copy, which is made anew: {fields['why']}",
                            code="G553")
            self._tell_discarded(fields)
            self._applier.stop()
            self._copy.begin_base(self._config.standby.of, int(fields["owners"]))
        self.is_following, self.why = True, ""

    def _tell_discarded(self, fields: dict[str, Any]) -> None:
        """Log what a superseded folder has that the broker which took over never got, before it is emptied."""
        known = standing.read(self._config.data_dir)
        if not known.superseded.http:
            return
        count = copy.lacking(self._config.data_dir, fields["places"]) if fields["took_over"] == [known.identity] \
            else None
        many = "an unknown number of entries" if count is None else f"{count} entries"
        log.warning(f"{self._config.data_dir}: what it has is discarded, with {many} that {self._config.standby.of} "
                    "never got", code="G553")

    def _send(self, kind: int, **fields: Any) -> None:
        assert self._link is not None
        self._link.sendall(b"".join(frames.encode(kind, **fields)))

    def _connected(self) -> socket.socket:
        """Return a connection on which a feed comes.  Raises OSError, NotReachable."""
        try:
            self._http = standbys.http_of(self._config.standby.of)
        except ConnectionRefusedError:      # while a broker cannot serve clients, it may still feed
            if not self._http:
                raise
        http = self._http
        parts = urlsplit(http)
        assert parts.hostname is not None and parts.port is not None, http
        link = socket.create_connection((parts.hostname, parts.port), _SILENT_SECONDS)
        try:
            if (context := self._credentials.context_for(http)) is not None:
                link = _within_tls(context, link, parts.hostname)
            lines = [f"GET {standbys.FEED} HTTP/1.1", f"Host: {parts.netloc}", "Connection: Upgrade",
                     "Upgrade: geminga-feed", *self._credentials.headers(), "", ""]
            link.sendall("\r\n".join(lines).encode())
            _read_answer(link, http)
            return link
        except BaseException:
            link.close()
            raise


def _text_of(error: Exception) -> str:
    return text_of(error) if isinstance(error, OSError) and error.filename else str(error) or type(error).__name__


def _age_of(data_dir: Path) -> float:
    """Return the seconds since records last came to a copy, 0 for none: it may be as far behind when it goes on."""
    times = [path.stat().st_mtime for path in (data_dir / "journal").glob("*/*.journal")]
    return max(0.0, time.time() - max(times)) if times else 0.0


def _within_tls(context: ssl.SSLContext, link: socket.socket, host: str) -> socket.socket:
    return context.wrap_socket(link, server_hostname=host)


def _read_answer(link: socket.socket, http: str) -> None:
    """Read the answer to the request for a feed, and no byte behind it.  Raises NotReachable, OSError."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        if not (byte := link.recv(1)) or len(head) > _HEAD_MAX:
            raise NotReachable(f"{http}: it ends the connection instead of an answer")
        head += byte
    status = head.split(b" ", 2)[1:2]
    if status != [b"101"]:
        text = b""
        with contextlib.suppress(OSError):
            link.settimeout(1.0)
            text = link.recv(4096)
        first = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")[2]
        raise NotReachable(f"{http}: {first}: {text.decode(errors='replace').strip()}")


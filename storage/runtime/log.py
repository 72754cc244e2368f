"""The log for operators: lines with fields to search by.

    stderr is the journal       a datagram in journald's protocol: MESSAGE, PRIORITY, CODE, TOPIC, CLIENT, ...
    [log] format = "json"       a line of JSON
    else                        TIME LEVEL geminga: text [CODE], with the time in UTC

A line at warning or error has a code from log_codes.py, which names a page of the runbook. Fields that the text does
not mention are appended to it. A line that cannot be written at once is lost, and the next line says how many were
lost. Lines of one code or event are limited; lines above the limit are counted, and a later line says how many were
left out.

The newest lines are kept in memory too, for administration (log_lines.py).

Operators set rules at run time. A rule changes the level for a while, for all lines or for the lines of one topic or
client. Every process has the same rules and forgets them when their time is over.
"""
import array
import contextlib
import errno
import fcntl
import json
import os
import re
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from geminga.storage.runtime.log_lines import LogLines

ERROR, WARNING, INFO, DEBUG = 3, 4, 6, 7           # syslog's numbers: a higher one is less important
LEVELS = {"error": ERROR, "warning": WARNING, "info": INFO, "debug": DEBUG}
NAMES = {level: name for name, level in LEVELS.items()}
JOURNAL = "/run/systemd/journal/socket"
_PERIOD_SECONDS = 60.0                              # the period in which lines of one kind are counted
_WARNINGS_MAX, _EVENTS_MAX = 30, 1_000              # lines of one code, or of one event, in a period; arbitrary
_LINE_MAX = 32 << 10                                # characters of a line that are kept
_CONTROL = {number: f"\\x{number:02x}" for number in (*range(32), *range(127, 160)) if chr(number) not in "\n\t"}
_CONTROL[ord("\n")] = "\n    "
# journald refuses a memory file that its sender could still change
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_TOO_LARGE = errno.EMSGSIZE, errno.ENOBUFS          # for a datagram


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The level and format of the log."""

    level: str = "info"                       # error, warning, info or debug: less important lines are left out
    format: str = "text"                      # "text" or "json"; where the journal is listening it gets fields


class Rule(NamedTuple):
    """A temporary log level, for all lines or for the lines of one topic or client."""

    level: int
    until: float              # monotonic time, the same in all processes of a host
    topic: str = ""
    client: str = ""

    def matches(self, fields: Mapping[str, Any]) -> bool:
        """Whether the rule applies to a log line with these fields."""
        return (not self.topic or _is_of_topic(str(fields.get("topic", "")), self.topic)) and (
            not self.client or self.client in _addresses(str(fields.get("client", ""))))


def _is_of_topic(name: str, wanted: str) -> bool:
    """Whether the name is that of topic `wanted` or of one of its partitions."""
    if name == wanted:
        return True
    return name.startswith(wanted) and re.fullmatch(r"-partition-\d+", name[len(wanted):]) is not None


def _addresses(client: str) -> tuple[str, str]:
    """Return the two forms in which a rule may name a client: HOST:PORT, and HOST."""
    return client, client.rpartition(":")[0].strip("[]")


class Log:
    """The log of one process.  Its methods never block and never raise."""

    def __init__(self) -> None:
        self.level = self._configured = INFO      # the most detailed level that any rule or the configuration asks for
        self._rules: tuple[Rule, ...] = ()
        self._always: dict[str, Any] = {}         # fields of every line of this process
        self._write: Callable[[int, str, str, dict[str, Any]], None] = _print
        self._has_begun = False
        self._episodes: dict[str, list[Any]] = {}      # code or event -> [since when, lines, lines left out]
        self._lost = 0
        self.lines: LogLines | None = None        # where the newest lines are kept

    def __repr__(self) -> str:
        return f"<Log level={NAMES[self.level]} rules={len(self._rules)} lost={self._lost}>"

    def begin(self, options: LogOptions) -> None:
        """Begin to write as the options and this process's stderr demand.  Children forked later inherit this."""
        self._has_begun, self._configured = True, LEVELS[options.level]
        if isinstance(self._write, _Stream | _Journal):
            self._write.close()
        if is_journal(2):
            self._write = _Journal()
        else:
            self._write = _Stream(_as_json if options.format == "json" else _as_line)
        self.follow(self._rules)
        _take_over_logging()

    def bind(self, **fields: Any) -> None:
        """Add fields to every later line of this process."""
        self._always |= fields

    def follow(self, rules: Iterable[Rule]) -> None:
        """Set the rules that change log levels."""
        self._rules = tuple(rules)
        self.level = max([self._configured, *(rule.level for rule in self._rules)])

    def rules(self) -> list[Rule]:
        """Return the log rules that have not expired."""
        self._expire()
        return list(self._rules)

    @property
    def configured(self) -> int:
        """The configured level, which holds for lines to which no rule applies."""
        return self._configured

    def error(self, text: str, *, code: str, **fields: Any) -> None:
        """Log a loss, or a failure to serve something."""
        self._tell(ERROR, text, code, fields)

    def warning(self, text: str, *, code: str, **fields: Any) -> None:
        """Log an event that needs an operator, now or soon."""
        if self.level >= WARNING:
            self._tell(WARNING, text, code, fields)

    def info(self, text: str, *, code: str = "", **fields: Any) -> None:
        """Log an occasional event of normal operation."""
        if self.level >= INFO:
            self._tell(INFO, text, code, fields)

    def debug(self, text: str, **fields: Any) -> None:
        """Log a frequent event; never one for each message."""
        if self.level >= DEBUG:
            self._tell(DEBUG, text, "", fields)

    def _tell(self, level: int, text: str, code: str, fields: dict[str, Any]) -> None:
        """Write a log line, unless rules or limits suppress it."""
        if self._rules:
            self._expire()
            levels = [rule.level for rule in self._rules if rule.matches(fields)]
            if level > max(levels, default=self._configured):
                return
        fields = {name: value for name, value in fields.items() if value != ""}
        left_out = self._left_out(level, code or text.partition(":")[0])
        if left_out is None:
            return
        text += "".join(f" {name}={_word(value)}" for name, value in fields.items() if not _names(text, str(value)))
        if left_out:
            text += f" ({left_out} more like it were left out)"
        if self._lost:
            text += f" ({self._lost} lines before it could not be written)"
        if self.lines is not None:
            self.lines.write(self._always.get("process", ""), level, text[:_LINE_MAX], code)
        try:
            self._write(level, text[:_LINE_MAX], code, {**self._always, **fields})
            self._lost = 0
        except (OSError, ValueError):      # full, gone or closed
            self._lost += 1

    def _left_out(self, level: int, kind: str) -> int | None:
        """Count a log line against the limit of its kind.

        Returns how many lines of the kind were suppressed before this one, None if this one is suppressed too.
        """
        now = time.monotonic()
        if len(self._episodes) > _EVENTS_MAX:
            self._episodes.clear()
        episode = self._episodes.setdefault(kind, [now, 0, 0])
        left_out = 0
        if now - episode[0] >= _PERIOD_SECONDS:
            left_out = episode[2]
            episode[:] = now, 0, 0
        if self._has_begun and episode[1] >= (_WARNINGS_MAX if level <= WARNING else _EVENTS_MAX):
            episode[2] += 1
            return None
        episode[1] += 1
        return left_out

    def _expire(self) -> None:
        now = time.monotonic()
        if any(rule.until <= now for rule in self._rules):
            self.follow(rule for rule in self._rules if rule.until > now)


def _names(text: str, value: str) -> bool:
    return value in text and re.search(rf"(?<![\w.]){re.escape(value)}(?![\w.])", text) is not None


def _word(value: Any) -> str:
    text = str(value)
    return json.dumps(text) if re.search(r"[\s\"=]", text) or not text else text


def _take_over_logging() -> None:
    """Send log lines of libraries, from Python's `logging`, to this log."""
    import logging

    class Bridge(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            (log.error if record.levelno >= logging.ERROR else log.warning)(self.format(record), code="G290")

    logging.basicConfig(handlers=[Bridge()], format="%(name)s: %(message)s", level=logging.WARNING, force=True)


# -- where lines go

def is_journal(fd: int) -> bool:
    """Whether journald reads from this file descriptor."""
    try:
        device, inode = map(int, os.environ.get("JOURNAL_STREAM", "").split(":"))
        stderr = os.fstat(fd)
    except (ValueError, OSError):
        return False
    return (stderr.st_dev, stderr.st_ino) == (device, inode)


def _print(level: int, text: str, code: str, fields: dict[str, Any]) -> None:
    """Write a log line for a process that has not called `begin`, such as a command or a test."""
    print(_as_text(level, text, code, fields), file=sys.stderr, flush=True)


def _as_text(level: int, text: str, code: str, fields: dict[str, Any]) -> str:
    """Return a log line as text.

    Control characters are replaced, so that text from clients cannot forge another line.
    """
    return f"geminga: {text.translate(_CONTROL)}"


def _as_line(level: int, text: str, code: str, fields: dict[str, Any]) -> str:
    """Return a log line as text with its time and level, and with its code if it has one."""
    return f"{_now()} {NAMES[level].upper():<7} {_as_text(level, text, code, fields)}" + (f" [{code}]" if code else "")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _as_json(level: int, text: str, code: str, fields: dict[str, Any]) -> str:
    line = {"time": _now(), "level": NAMES[level], "message": text} | ({"code": code} if code else {})
    return json.dumps(line | {name: value if isinstance(value, int) else str(value) for name, value in fields.items()})


class _Stream:
    """Writer of log lines to stderr, which never blocks on a slow reader."""

    def __init__(self, render: Callable[[int, str, str, dict[str, Any]], str]):
        self._render, self._fd = render, 2
        self._end = b""      # ends a line of which only a part was written
        mode = os.fstat(2).st_mode
        self._is_socket = stat.S_ISSOCK(mode)
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            # All processes that inherited stderr share its flags, so it is opened anew to make only this copy
            # non-blocking.  Where opening is forbidden, a slow reader may hold up the process.
            with contextlib.suppress(OSError):
                self._fd = os.open("/proc/self/fd/2", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)

    def close(self) -> None:
        if self._fd != 2:
            os.close(self._fd)

    def __call__(self, level: int, text: str, code: str, fields: dict[str, Any]) -> None:
        data = self._end + self._render(level, text, code, fields).encode(errors="backslashreplace") + b"\n"
        if self._is_socket:
            with socket.socket(fileno=os.dup(2)) as stream:
                written = stream.send(data, socket.MSG_DONTWAIT)
        else:
            written = os.write(self._fd, data)
        self._end = b"" if written == len(data) else b"\n"


class _Journal:
    """Writer in journald's protocol: a datagram of KEY=value lines, or a memory file if that is too large."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def close(self) -> None:
        self._socket.close()

    def __call__(self, level: int, text: str, code: str, fields: dict[str, Any]) -> None:
        known = {"MESSAGE": f"{text} [{code}]" if code else text, "PRIORITY": level, "SYSLOG_IDENTIFIER": "geminga"}
        known |= {name.upper(): value for name, value in fields.items()} | ({"CODE": code} if code else {})
        data = b"".join([_journal_field(name, str(value).encode(errors="backslashreplace"))
                         for name, value in known.items()])
        try:
            self._socket.sendto(data, JOURNAL)
        except OSError as error:
            if error.errno not in _TOO_LARGE:
                raise
            self._send_file(data)

    def _send_file(self, data: bytes) -> None:
        """Send the content of a datagram that is too large for journald in a sealed memory file."""
        fd = os.memfd_create("geminga-log", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        try:
            os.write(fd, data)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            self._socket.sendmsg([], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))], 0, JOURNAL)
        finally:
            os.close(fd)


def _journal_field(name: str, value: bytes) -> bytes:
    if b"\n" in value:
        return name.encode() + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"
    return name.encode() + b"=" + value + b"\n"


log = Log()

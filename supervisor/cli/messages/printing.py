"""Messages on standard output, in the forms of `geminga consume`."""
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from geminga.storage.runtime import units
from geminga.supervisor.cli import output
from geminga.workers.messages.message import Message, printable, value_text
from geminga.workers.pulsar_client.rest import plain

if TYPE_CHECKING:
    from collections.abc import Callable

FORMS = ("lines", *output.FORMS)
PARTS = ("topic", "position", "times", "key", "properties")
_CELL_MAX = 100      # characters of a payload in a table


class OutputClosed(Exception):
    """An error: nobody reads standard output any more, as behind `| head`."""


class OutputFailed(Exception):
    """An error: standard output cannot be written, as on a full disk."""

    exit_status = 1


class Printer:
    """Prints messages: `add` takes them, `flush` writes those that were added."""

    def __init__(self, form: str, parts: frozenset[str], *, is_hex: bool) -> None:
        self._parts = [part for part in PARTS if part in parts]
        self._is_hex, self._is_terminal = is_hex, sys.stdout.isatty()
        self._lines: list[bytes] = []
        self.size = 0                        # bytes that were added since the last flush
        self._form, self._count = form, 0
        self._widths: list[int] = []
        self._shape: Callable[[Message], bytes] = {
            "lines": self._line, "jsonl": self._jsonl, "json": self._json, "yaml": self._yaml,
            "table": self._row}[form]
        if form == "table":
            self._parts = self._parts or ["position", "times", "key"]
            self._widths = [{"position": 16, "times": 24, "key": 12}.get(part, 12) for part in self._parts]
            self._lines.append(self._cells([part.upper() for part in self._parts], "PAYLOAD"))

    def __repr__(self) -> str:
        return f"<Printer {self._form} {self._count} messages>"

    def add(self, message: Message) -> None:
        line = self._shape(message)
        self._lines.append(line)
        self.size += len(line) + 1
        self._count += 1

    def flush(self) -> None:
        """Write what was added.  Raises OutputClosed, OutputFailed."""
        if self._lines:
            self._lines.append(b"")
            self._write(b"\n".join(self._lines))
            self._lines, self.size = [], 0

    def close(self) -> None:
        """Write the end of a document.  Raises OutputClosed, OutputFailed."""
        self.flush()
        if self._form == "json":
            self._write(b"]\n" if self._count else b"[]\n")
        elif self._form == "yaml" and not self._count:
            self._write(b"[]\n")

    def _write(self, data: bytes) -> None:
        try:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            _to_nowhere()
            raise OutputClosed from None
        except OSError as error:
            _to_nowhere()
            raise OutputFailed(f"standard output: {error.strerror}") from None

    # -- forms

    def _line(self, message: Message) -> bytes:
        payload = message.payload
        if message.has_value:
            payload = value_text(message.value).encode(errors="backslashreplace")
        elif not payload.isascii() or self._is_hex or self._is_terminal:
            payload = self._readable(payload).encode()
        if self._is_terminal and message.has_value:
            payload = _harmless(payload.decode()).encode()
        if not self._parts:
            return payload
        return b"\t".join([*(self._part(part, message).encode(errors="backslashreplace") for part in self._parts),
                           payload])

    def _readable(self, payload: bytes) -> str:
        """Return a payload as text: with --hex in hexadecimal if it is not printable, else with escaped bytes."""
        if self._is_hex and printable(payload) is None:
            return payload.hex()
        text = payload.decode(errors="backslashreplace")
        return _harmless(text) if self._is_terminal else text

    def _part(self, part: str, message: Message) -> str:
        if part == "topic":
            return plain(message.topic)
        if part == "position":
            return message.id
        if part == "key":
            return "-" if message.key is None else plain(message.key)
        if part == "properties":
            return plain(",".join(f"{name}={value}" for name, value in message.properties.items())) or "-"
        times = {"": message.publish_time_ms, "event=": message.event_time_ms, "deliverAt=": message.deliver_at_ms}
        return ",".join(name + units.instant(time_ms) for name, time_ms in times.items() if time_ms or not name)

    def _row(self, message: Message) -> bytes:
        text = value_text(message.value) if message.has_value else self._readable(message.payload)
        text = plain(text[:_CELL_MAX]) + ("..." if len(text) > _CELL_MAX else "")
        return self._cells([self._part(part, message) for part in self._parts], text)

    def _cells(self, cells: list[str], payload: str) -> bytes:
        """Return a row of the table.  A column grows with its widest cell so far: rows are not kept."""
        self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, cells, strict=True)]
        padded = [cell.ljust(width) for cell, width in zip(cells, self._widths, strict=True)]
        return "  ".join([*padded, payload]).rstrip().encode(errors="backslashreplace")

    def _jsonl(self, message: Message) -> bytes:
        return _dumped(self._object(message))

    def _json(self, message: Message) -> bytes:
        lines = _dumped(self._object(message), indent=2).replace(b"\n", b"\n  ")
        return (b"[\n  " if self._count == 0 else b", ") + lines      # the comma of the object before

    def _yaml(self, message: Message) -> bytes:
        import yaml
        text = yaml.safe_dump([self._object(message)], allow_unicode=True, sort_keys=False)
        return text.rstrip("\n").encode(errors="backslashreplace")

    def _object(self, message: Message) -> dict[str, Any]:
        shown = message.as_json()
        if self._is_hex and "payloadBase64" in shown:
            del shown["payloadBase64"]
            shown["payloadHex"] = message.payload.hex()
        return shown


def _dumped(value: Any, indent: int | None = None) -> bytes:
    separators = (",", ":") if indent is None else None
    return json.dumps(value, ensure_ascii=False, separators=separators, indent=indent,
                      default=str).encode(errors="backslashreplace")


def _harmless(text: str) -> str:
    """Escape what a terminal would obey, but no ends of lines and tabs."""
    return text if text.isprintable() else "".join(
        char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text)


def _to_nowhere() -> None:
    """Let what is still buffered vanish: the interpreter flushes standard output at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)

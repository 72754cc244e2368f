"""The live screen of `geminga top` as lines of text with styles, and what each key does to it.

Nothing here draws or asks: `wanted` says what to ask the broker, `lines` what to draw.
"""
from collections.abc import Sequence
from typing import Any, NamedTuple

from geminga.supervisor.cli import output
from geminga.supervisor.cli.output import Column
from geminga.supervisor.cli.views.snapshots import Question, Snapshot, Wanted
from geminga.supervisor.cli.views.tables import CLIENTS, SUBSCRIPTIONS, TOPICS
from geminga.supervisor.wording.human import count, length, rate, short, size
from geminga.workers.pulsar_client.rest import plain, quoted, topic_path

ROWS = 200                       # fetched for a table that fills the screen
_ROWS_OF_OVERVIEW = 30
_NAME_MIN = 16                   # characters of a shortened name
HELP = """\
t          topics
u          subscriptions
c          clients
o, Esc     overview
up, down   choose a row; also k, j, page up, page down, home, end
Enter      open the topic of the row: its subscriptions
w          ask why the subscription of the row stands still
s          sort by the next column
r          turn the order
/          filter by a part of the name; Enter keeps it, Esc removes it
h          this help
q          quit
""".splitlines()
# The last line, as far as it fits: help, which tells the rest, and the way out come first.
_HINTS = ("h help", "q quit", "t topics", "u subscriptions", "c clients", "o overview", "Enter open", "w why", "s sort",
          "/ filter")


def _hints(width: int) -> str:
    """Return the hints that a line of that many characters has room for, each of them whole."""
    line = ""
    for hint in _HINTS:
        if len(line) + 2 + len(hint) > width:
            break
        line += f"  {hint}"
    return line


def _chosen(columns: Sequence[Column], *keys: str) -> list[Column]:
    by_key = {column.key: column for column in columns}
    return [by_key[key] for key in keys]


_VIEWS: dict[str, list[Column]] = {
    "topics": _chosen(TOPICS, "topic", "rate_in", "throughput_in", "rate_out", "throughput_out", "backlog",
                      "oldest_seconds", "producers", "consumers", "storage_bytes"),
    "subscriptions": _chosen(SUBSCRIPTIONS, "topic", "subscription", "type", "backlog", "oldest_seconds",
                             "unacknowledged", "delayed", "rate_out", "redelivery_rate", "consumers"),
    "clients": _chosen(CLIENTS, "address", "role", "library", "connected_ms", "producers", "consumers", "topics"),
}
_BUSIEST = _chosen(TOPICS, "topic", "rate_in", "throughput_in", "rate_out", "backlog", "producers", "consumers")
_SLOWEST = _chosen(SUBSCRIPTIONS, "topic", "subscription", "type", "backlog", "oldest_seconds", "rate_out", "consumers")
_FIRST_SORT = {"topics": "rate_in", "subscriptions": "backlog", "clients": "connected_ms"}


class Line(NamedTuple):
    """A line of the screen; style: a style of Rich."""

    text: str
    style: str = ""


class Screen:
    """The state of the screen: the view, the chosen row, the order and the filter."""

    def __init__(self, address: str):
        self._address = address
        self._snapshot = Snapshot({}, {}, {})
        self._error = ""
        self._view = "overview"
        self._topic = ""                     # the topic that is opened, in the view of subscriptions
        self._why: tuple[str, str] | None = None      # (topic, subscription; "": all) that is asked about
        self._is_help = False
        self._sorts, self._is_reverse = dict(_FIRST_SORT), False
        self._filter, self._is_typing = "", False
        self._selected = self._offset = 0
        self.is_over = False

    def __repr__(self) -> str:
        return f"<Screen {self._view} {self._topic} selected={self._selected}>"

    # -- what to ask

    def wanted(self) -> Wanted:
        """Return the questions whose answers the screen shows."""
        if self._why is not None:
            topic, subscription = self._why
            return {"why": Question(f"/ops/v1/why/{topic_path(topic)}/{quoted(subscription)}")}
        match = (("match", f"*{_escaped(self._filter)}*"),) if self._filter else ()
        if self._view == "overview":
            limit = ("limit", str(_ROWS_OF_OVERVIEW))
            return {"topics": Question("/ops/v1/topics", (("sort", "rate_in"), limit, *match)),
                    "subscriptions": Question("/ops/v1/subscriptions", (("sort", "oldest_seconds"), limit, *match))}
        query = [("sort", self._sorts[self._view]), ("reverse", str(self._is_reverse).lower()), ("limit", str(ROWS))]
        path = f"/ops/v1/{self._view}"
        if self._topic:
            path += f"/{topic_path(self._topic)}"
        elif self._view != "clients":      # these are filtered here, by address and library
            query += match
        return {self._view: Question(path, tuple(query))}

    def show(self, snapshot: Snapshot) -> None:
        """Take in a snapshot; one without values leaves the older values on the screen."""
        self._error = snapshot.error
        if snapshot.error:
            return
        if snapshot.wanted != self.wanted():      # keys have asked for something else meanwhile
            snapshot = snapshot._replace(parts=self._snapshot.parts, wanted=self._snapshot.wanted)
        self._snapshot = snapshot

    # -- keys

    def press(self, key: str) -> None:
        """Do what a key means."""
        if self._is_typing:
            self._type(key)
        elif key == "q":
            self.is_over = True
        elif key in ("h", "?"):
            self._is_help = not self._is_help
        elif self._is_help or self._why is not None:
            if key in ("escape", "left", "backspace", "enter", "w", "o"):
                self._is_help, self._why = False, None
        elif key in ("t", "u", "c", "o"):
            self._go({"t": "topics", "u": "subscriptions", "c": "clients", "o": "overview"}[key])
        elif key in ("escape", "left", "backspace"):
            self._back()
        elif key == "/":
            self._is_typing = True
        elif key == "s" and self._view != "overview":
            keys = [column.key for column in _VIEWS[self._view]]
            self._sorts[self._view] = keys[(keys.index(self._sorts[self._view]) + 1) % len(keys)]
            self._selected = 0
        elif key == "r" and self._view != "overview":
            self._is_reverse, self._selected = not self._is_reverse, 0
        elif key == "enter":
            self._open()
        elif key == "w":
            self._ask_why()
        else:
            self._move(key)

    def _type(self, key: str) -> None:
        self._selected = 0
        if key in ("enter", "escape"):
            self._is_typing = False
            self._filter = self._filter if key == "enter" else ""
        elif key == "backspace":
            self._filter = self._filter[:-1]
        elif len(key) == 1:
            self._filter += key

    def _go(self, view: str, topic: str = "") -> None:
        self._view, self._topic, self._selected, self._offset, self._is_reverse = view, topic, 0, 0, False
        if topic:
            self._filter = ""

    def _back(self) -> None:
        if self._filter:
            self._filter, self._selected = "", 0
        else:
            self._go("topics" if self._topic else "overview")

    def _open(self) -> None:
        row = self._row()
        if row is not None and not self._topic and "topic" in row:
            self._go("subscriptions", row["topic"])

    def _ask_why(self) -> None:
        row = self._row()
        if row is not None and "subscription" in row:
            self._why = row["topic"], row["subscription"]
        elif row is not None and "topic" in row:      # the first subscription is chosen in its table
            self._go("subscriptions", row["topic"])

    def _move(self, key: str) -> None:
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -10, "page down": 10, "home": -ROWS, "end": ROWS}
        self._selected = max(0, min(self._selected + steps.get(key, 0), len(self._rows()) - 1))

    # -- rows

    def _part(self, name: str) -> Any:
        """Return the answer that a part of the screen shows, None until there is one.

        After another order or filter was chosen, the former answer is shown until the new one has come.
        """
        question, answered = self.wanted().get(name), self._snapshot.wanted.get(name)
        if question is None or answered is None or question.path != answered.path:
            return None
        return self._snapshot.parts.get(name)

    def _rows_of(self, name: str) -> list[dict[str, Any]]:
        part = self._part(name)
        rows: list[dict[str, Any]] = part["rows"] if isinstance(part, dict) else []
        if self._filter and (name == "clients" or self._topic):
            keys = ("subscription",) if self._topic else ("address", "role", "library")
            rows = [row for row in rows if any(self._filter in (row[key] or "") for key in keys)]
        return rows

    def _rows(self) -> list[dict[str, Any]]:
        """Return the rows that can be chosen, from the top to the bottom of the screen."""
        if self._view == "overview":
            return self._shown_topics + self._rows_of("subscriptions")
        return self._rows_of(self._view)

    @property
    def _shown_topics(self) -> list[dict[str, Any]]:
        return self._rows_of("topics")[:self._half]

    _half = _ROWS_OF_OVERVIEW      # rows of the overview's first table, as the screen's height allows

    def _row(self) -> dict[str, Any] | None:
        rows = self._rows()
        return rows[min(self._selected, len(rows) - 1)] if rows else None

    # -- what is drawn

    def lines(self, width: int, height: int) -> list[Line]:
        """Return the lines of a screen of that size, at most `height`."""
        head = self._head(width)
        room = max(0, height - len(head) - 1)
        if self._is_help:
            body = [Line(""), *(Line("  " + line) for line in HELP)]
        elif self._why is not None:
            body = self._why_lines(width)
        elif self._view == "overview":
            body = self._overview(width, room)
        else:
            body = self._table(width, room)
        body = body[:room]
        footer = Line(f" filter: {self._filter}_   Enter keeps it, Esc removes it" if self._is_typing
                      else _hints(width), "reverse")
        return [*head, *body, *(Line("") for _ in range(room - len(body))), footer][:height]

    def _head(self, width: int) -> list[Line]:
        status, snapshot = self._snapshot.status, self._snapshot
        lines = []
        if self._error:
            lines.append(Line(f"not reachable, trying again: {plain(self._error)}", "bold red"))
        if not status:
            return [*lines, Line(f"Geminga at {self._address}", "bold")]
        ready = "ready" if status["ready"] else "not ready: " + "; ".join(map(plain, status["obstacles"]))
        lines.append(Line(f"Geminga {status['version']} at {self._address}, up {length(status['uptime_seconds'])}, "
                          f"{ready}", "bold"))
        lines += [Line(f"ALARM {alarm['alarm']}: {plain(alarm['text'])}", "bold red") for alarm in status["alarms"][:3]]
        rates, loaded, topics = snapshot.rates or status["rates"], status["loaded"], status["topics"]
        lines.append(Line(
            f"in {rate(rates['messages_in'])} messages/s {size(rates['bytes_in'])}/s   "
            f"out {rate(rates['messages_out'])} messages/s {size(rates['bytes_out'])}/s   "
            f"backlog {count(loaded['backlog_entries'])}"))
        not_loaded = topics["total"] - topics["loaded"]
        missing = f" ({count(not_loaded)} not loaded)" if not_loaded > 0 else ""
        lines.append(Line(
            f"{count(topics['total'])} topics{missing}  {count(loaded['subscriptions'])} subscriptions  "
            f"{count(status['connections'])} connections  {count(loaded['producers'])} producers  "
            f"{count(loaded['consumers'])} consumers"))
        disk, memory = status["disk"], status["memory"]
        lines.append(Line(
            f"disk {size(disk['free_bytes'])} of {size(disk['bytes'])} free, {size(loaded['stored_bytes'])} stored   "
            f"memory {size(memory['used_bytes'])} of {size(memory['limit_bytes'])} used"))
        cores = "  ".join(f"{number}:{busy:4.0%}" for number, busy in enumerate(snapshot.cores))
        lines.append(Line(f"cores      {cores or 'counting'}"))
        used = [f"{process['process']} {self._used(process['process'])} {size(process['memory_bytes'])}"
                for process in status["processes"]]
        return lines + [Line(text) for text in _wrapped("processes  ", used, width)]

    def _used(self, process: str) -> str:
        used = self._snapshot.processes.get(process)
        return "" if used is None else f"{used:.0%}"

    def _overview(self, width: int, room: int) -> list[Line]:
        self._half = max(1, (room - 4) // 2)
        topics = self._shown_topics
        slowest = self._rows_of("subscriptions")
        lines = [Line(f"Busiest topics{self._filtered()}", "bold cyan"),
                 *self._draw(topics, _BUSIEST, width, self._half + 1, self._selected)]
        lines += [Line(""), Line("Slowest subscriptions", "bold cyan")]
        return lines + self._draw(slowest, _SLOWEST, width, room - len(lines), self._selected - len(topics))

    def _table(self, width: int, room: int) -> list[Line]:
        part = self._part(self._view)
        what = f"Subscriptions of {short(self._topic)}" if self._topic else self._view.capitalize()
        if isinstance(part, str):
            return [Line(what, "bold cyan"), Line(plain(part), "red")]
        total = f", {len(part['rows'])} of {count(part['total'])}" if part and part["more"] else ""
        order = " turned" if self._is_reverse else ""
        by = next(column.heading or column.key for column in _VIEWS[self._view]
                  if column.key == self._sorts[self._view])
        title = f"{what} by {by}{order}{total}{self._filtered()}"
        if part is None:
            return [Line(title, "bold cyan"), Line("asking", "dim")]
        return [Line(title, "bold cyan"),
                *self._draw(self._rows(), _VIEWS[self._view], width, room - 1, self._selected)]

    def _filtered(self) -> str:
        return f", with {plain(self._filter)}" if self._filter else ""

    def _draw(self, rows: list[dict[str, Any]], columns: list[Column], width: int, room: int,
              selected: int) -> list[Line]:
        """Return the lines of a table with its heading, scrolled so that the chosen row is seen."""
        if not rows:
            return [Line("none", "dim")]
        room = max(1, room - 1)
        first = max(0, min(selected - room + 1, len(rows) - room)) if selected >= room else 0
        some = rows[first:first + room]
        others = _width(output.table(some, columns[1:]))
        most = max(_NAME_MIN, width - others - 2)
        name = columns[0]
        shown = name._replace(shown=lambda value: _shortened(name.shown(value) if name.shown else str(value), most))
        heading, *texts = output.table(some, [shown, *columns[1:]])
        return [Line(heading, "bold"), *(Line(text.ljust(width) if first + at == selected else text,
                                              "reverse" if first + at == selected else "")
                                         for at, text in enumerate(texts))]

    def _why_lines(self, width: int) -> list[Line]:
        from geminga.supervisor.wording import sentences
        assert self._why is not None
        topic, subscription = self._why
        part = self._part("why")
        if part is None:
            texts = [f"asking why {short(topic)}, subscription {subscription}, stands still"]
        elif isinstance(part, str):
            texts = [plain(part)]
        else:
            texts = sentences.tell(part, short(topic), subscription)
        return [Line(line) for text in texts for line in _folded(text, width)]


def _escaped(text: str) -> str:
    """Return a text with its wildcards escaped."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in text)


def _width(lines: list[str]) -> int:
    return max(map(len, lines))


def _shortened(text: str, most: int) -> str:
    """Return a text of `most` characters at most: its middle is left out."""
    if len(text) <= most:
        return text
    end = most // 2
    return f"{text[:most - end - 1]}…{text[len(text) - end:]}"


def _wrapped(label: str, parts: list[str], width: int) -> list[str]:
    """Return parts behind a label, in as few lines as fit into the width."""
    lines = [label]
    for part in parts:
        if len(lines[-1]) + len(part) > width and lines[-1].strip() != label.strip():
            lines.append(" " * len(label))
        lines[-1] += part + "   "
    return [line.rstrip() for line in lines]


def _folded(text: str, width: int) -> list[str]:
    """Return a text as lines of the width, broken at spaces and indented like the text."""
    import textwrap
    indent = " " * (len(text) - len(text.lstrip()))
    return textwrap.wrap(text.strip(), max(20, width - 1), initial_indent=indent,
                         subsequent_indent=indent + "  ") or [""]

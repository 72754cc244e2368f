"""Values -> HTML: Jinja's templates, with filters for values and the words of `text.toml`.

Everything that comes from messages, names and properties is escaped by Jinja. Control characters and those that change
the direction of writing are shown by their codes, because a name could pretend to be another one with them.
"""
import json
import time
import tomllib
import unicodedata
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

from markupsafe import Markup, escape

from geminga.storage.runtime.units import instant
from geminga.supervisor.console.static_files import address_of
from geminga.supervisor.wording import human

if TYPE_CHECKING:
    from jinja2 import Environment

HERE = Path(__file__).resolve().parent
_LIVE = "live_"                    # blocks that are sent again begin so
_HIDDEN = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}      # categories of characters that cannot be seen
_KEPT = "\n\t"

class Entry(NamedTuple):
    """An entry of the navigation.  It is left out for roles that REST would refuse what its page shows."""

    name: str
    address: str
    needs: str = ""              # path of REST that the role must be allowed to get; "": every role sees the entry


# Pages that stand in the navigation.
NAVIGATION = (
    Entry("overview", "/"),
    Entry("topics", "/console/topics"),
    Entry("subscriptions", "/console/subscriptions"),
    Entry("messages", "/console/messages"),
    Entry("delayed", "/console/delayed", "/ops/v1/subscriptions"),
    Entry("schedules", "/console/schedules", "/ops/v1/schedules"),
    Entry("clients", "/console/clients", "/ops/v1/clients"),
    Entry("tenants", "/console/tenants", "/admin/v2/tenants"),
    Entry("access", "/console/access"),
    Entry("audit", "/console/audit", "/ops/v1/audit"),
    Entry("nights", "/console/nights", "/ops/v1/compaction/report"),
    Entry("transactions", "/console/transactions", "/ops/v1/transactions"),
    Entry("configuration", "/console/configuration", "/ops/v1/configuration"),
    Entry("log", "/console/log", "/ops/v1/log"),
    Entry("documents", "/console/documents"),
    Entry("rest", "/console/rest"),
)
_OF_SCRIPTS = "common"             # table of the words that scripts show, too


@cache
def texts() -> dict[str, str]:
    """Return all words of the console: "page.name" -> text."""
    return dict(_flat("", tomllib.loads((HERE / "text.toml").read_text())))


def _flat(before: str, table: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(f"{before}{name}.", value)
        else:
            yield f"{before}{name}", value


def text(key: str, /, **values: Any) -> str:
    """Return a text of the console, with values in its braces."""
    return texts()[key].format(**values) if values else texts()[key]


def counted(key: str, number: int, /, **values: Any) -> str:
    """Return a text that has a number in it as {number}: that of KEY_one for one, else that of KEY."""
    return text(f"{key}_one" if number == 1 else key, number=f"{number:,}", **values)


def _script_words(table: str = _OF_SCRIPTS) -> dict[str, str]:
    return {key.partition(".")[2]: value for key, value in texts().items() if key.startswith(f"{table}.")}


def visible(value: Any) -> str:
    """Return a text with the characters that cannot be seen as codes: \\u202e."""
    string = str(value)
    if string.isascii() and string.isprintable():
        return string
    return "".join(_code(char) if char not in _KEPT and unicodedata.category(char) in _HIDDEN else char
                   for char in string)


def _code(char: str) -> str:
    number = ord(char)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _number(value: Any, form: Any) -> str:
    return "–" if value is None else form(value)      # noqa: RUF001 - a dash stands for a missing value


def _moment(time_ms: int | None) -> Markup:
    """Return a time element: ISO 8601 in UTC, which a script shows in the browser's zone too."""
    if not time_ms:
        return Markup("–")      # noqa: RUF001
    try:
        text = datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return Markup("{}").format(time_ms)
    return Markup('<time datetime="{}">{}</time>').format(text, text)


def _since(time_ms: int | None) -> Markup:
    """Return a time element that says how long ago a moment was."""
    if not time_ms:
        return Markup("–")      # noqa: RUF001
    return Markup('<span title="{}">{}</span>').format(
        datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(timespec="seconds"), human.ago(time_ms))


def topic_path(topic: str) -> str:
    """Return a topic's name as a path: persistent/acme/eu/orders, each part quoted."""
    domain, _, rest = topic.partition("://")
    return "/".join(quote(part, safe="") for part in (domain, *rest.split("/", 2)))


def namespace_path(namespace: str) -> str:
    """Return a namespace's name as a path: acme/eu, each part quoted."""
    return "/".join(quote(part, safe="") for part in namespace.split("/", 1))


def _make() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # when the first page is shown
    made = Environment(loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined,
                       trim_blocks=True, lstrip_blocks=True, finalize=_finalized, auto_reload=False)
    made.filters |= {
        "count": lambda value: _number(value, human.count), "size": lambda value: _number(value, human.size),
        "rate": lambda value: _number(value, human.rate), "length": lambda value: _number(value, human.length),
        "size_rate": lambda value: _number(value, lambda size: f"{human.size(size)}/s"),
        "moment": _moment, "moment_text": instant, "number_of": len, "exact": lambda value: escape(str(value)),
        "since": _since, "short": human.short, "topic_path": topic_path, "night_progress": human.night_progress,
        "quoted": lambda value: quote(str(value), safe=""), "json": _json, "query_string": urlencode}
    made.globals |= {
        "t": text, "counted": counted, "has_text": lambda key: key in texts(),
        "words": _script_words, "static": address_of,
        "ago": human.ago, "now_ms": now_ms}
    # Macros as a global, because blocks that are rendered alone do not see what their template imports.
    made.globals["ui"] = made.get_template("ui.html").module
    return made


def now_ms() -> int:
    """Return the time in ms."""
    return time.time_ns() // 1_000_000


def _finalized(value: Any) -> Any:
    """Show what a template inserts: hidden characters as codes, unless it is HTML already."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _json(value: Any) -> Markup:
    """Return a value as JSON for a script element: nothing in it can end the element."""
    said = json.dumps(value, ensure_ascii=True, separators=(",", ":"), default=str)
    return Markup(said.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))      # noqa: S704


@cache
def environment() -> "Environment":
    """Return the templates, which are loaded at the first page: most brokers serve none for days."""
    return _make()


def page(template: str, values: dict[str, Any]) -> str:
    """Return a whole page."""
    return environment().get_template(template).render(values)


def live_parts(template: str, values: dict[str, Any]) -> dict[str, str]:
    """Return the HTML of all blocks of a page that change, by their names."""
    loaded = environment().get_template(template)
    return {name: "".join(render(loaded.new_context(values))) for name, render in loaded.blocks.items()
            if name.startswith(_LIVE)}

"""Documents of the broker for reading in a browser: Markdown -> HTML, links between pages, and search.

Pages are those of the checkout, or of the installed package. A page has the same name in both:

    README.md    docs/monitoring.md    docs/examples/README.md    runbook/disk.md
"""
import itertools
import posixpath
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from markupsafe import Markup

if TYPE_CHECKING:
    from markdown_it.token import Token

PREFIX = "/console/documents/"
INDEX, RUNBOOK = "docs/README.md", "runbook/README.md"
WORDS_MAX, TEXT_MAX = 8, 100     # words of a search, and its characters
_FOUND_MAX = 30                  # sections
_SNIPPET = 160                   # characters of a section's text in a list of results
_CHECKOUT, _INSTALLED = Path(__file__).resolve().parents[2], Path("/usr/share/doc/geminga")
# Name of a folder's pages -> the folder.
_FOLDERS = {"docs": "docs", "runbook": "systemd/runbook"}


class Section(NamedTuple):
    """A part of a page below a heading."""

    page: str
    title: str               # of the page
    heading: str
    anchor: str
    text: str

    @property
    def address(self) -> str:
        return address_of(self.page) + (f"#{self.anchor}" if self.anchor else "")


class Found(NamedTuple):
    """A section with all words of a search, and some text round the first of them."""

    section: Section
    before: str
    word: str
    after: str


def address_of(page: str) -> str:
    """Return the address of a page in the console."""
    return PREFIX + quote(page)


@cache
def pages() -> dict[str, Path]:
    """Return {name: file} of all pages, in the order of their names."""
    is_checkout = (_CHECKOUT / "docs").is_dir()
    root = _CHECKOUT if is_checkout else _INSTALLED
    pages = {"README.md": root / "README.md"}
    for name, folder in _FOLDERS.items():
        place = root / (folder if is_checkout else name)
        pages |= {f"{name}/{path.relative_to(place)}": path for path in sorted(place.rglob("*.md"))}
    return {name: path for name, path in pages.items() if path.is_file()}


@cache
def title_of(page: str) -> str:
    """Return the first heading of a page."""
    heading = re.search(r"^# +(.+)$", _text(page), re.MULTILINE)
    return _plain(heading[1]) if heading else page


def _text(page: str) -> str:
    return pages()[page].read_text("utf-8", errors="replace")


def _plain(text: str) -> str:
    """Return a text of Markdown without its signs."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"[`*|]+|:?-{3,}:?|^#+ ", "", text).strip()


# -- a page as HTML

@lru_cache(maxsize=64)
def as_html(page: str) -> Markup:
    """Return a page as HTML, without its first heading.  HTML inside of the page is shown as text."""
    from markdown_it import MarkdownIt  # a broker whose documents nobody reads starts without it
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(_text(page))
    if tokens and tokens[0].type == "heading_open" and tokens[0].tag == "h1":
        del tokens[:3]
    _name_headings(tokens)
    for token in tokens:
        if "style" in token.attrs:      # the alignment of a column: the console allows no style in an attribute
            is_right = "right" in str(token.attrs.pop("style"))
            token.attrs |= {"class": "number"} if is_right else {}
        for inner in token.children or ():
            _lead(inner, page)
    return Markup(parser.renderer.render(tokens, parser.options, {}))      # noqa: S704 - the parser escapes


def _name_headings(tokens: "list[Token]") -> None:
    """Give each heading the id by which links lead to it: small letters, digits, `_`, and `-` for each blank."""
    seen: dict[str, int] = {}
    for opening, text in itertools.pairwise(tokens):
        if opening.type == "heading_open":
            opening.attrs["id"] = _anchor(text.content, seen)


def _anchor(heading: str, seen: dict[str, int]) -> str:
    anchor = re.sub(r"[^\w -]", "", _plain(heading).lower()).strip().replace(" ", "-")
    number = seen[anchor] = seen.get(anchor, -1) + 1
    return f"{anchor}-{number}" if number else anchor


def _lead(token: "Token", page: str) -> None:
    """Have a link lead to the page in the console; a link to a file that is no page becomes plain text."""
    if token.type == "image":
        token.attrs["src"] = ""      # nothing is fetched
    if token.type == "link_close" and token.meta.get("is_text"):
        token.tag = "span"
    if token.type != "link_open":
        return
    target = str(token.attrs.get("href", ""))
    path, _, anchor = target.partition("#")
    if re.match(r"[a-z]+:", target):
        token.attrs["rel"] = "noreferrer"
    elif not path:
        token.attrs["href"] = f"#{anchor}"
    elif (name := _named(page, path)) is not None:
        token.attrs["href"] = address_of(name) + (f"#{anchor}" if anchor else "")
    else:
        token.attrs.clear()


def _named(page: str, path: str) -> str | None:
    """Return the name of the page to which a link on another page leads, None if there is no such page."""
    real = posixpath.dirname(page.replace("runbook/", "systemd/runbook/") if page.startswith("runbook/") else page)
    for base in (real, posixpath.dirname(page)):
        target = posixpath.normpath(posixpath.join(base, path)).removeprefix("systemd/")
        for name in (target, f"{target}/README.md"):
            if name in pages():
                return name
    return None


# -- search

@cache
def _sections() -> list[Section]:
    return [section for page in pages() for section in _sections_of(page)]


def _sections_of(page: str) -> Iterator[Section]:
    """Yield the parts of a page; the first, below its title, has no anchor."""
    title = title_of(page)
    seen: dict[str, int] = {}
    lines: list[str] = []
    heading, anchor, is_code = title, "", False
    for line in _text(page).splitlines():
        is_code ^= line.startswith("```")
        if not is_code and (match := re.match(r"##+ +(.+)", line)):
            yield Section(page, title, heading, anchor, _plain("\n".join(lines)))
            heading, lines = _plain(match[1]), []
            anchor = _anchor(match[1], seen)
        else:
            lines.append(line)
    yield Section(page, title, heading, anchor, _plain("\n".join(lines)))


def search(text: str) -> list[Found]:
    """Return the sections that have every word of a text; those with the words in their headings come first."""
    words = text[:TEXT_MAX].lower().split()[:WORDS_MAX]
    if not words:
        return []
    matches = []
    for section in _sections():
        heading, whole = section.heading.lower(), f"{section.heading}\n{section.text}".lower()
        if all(word in whole for word in words):
            title = section.title.lower()
            matches.append((-sum((word in heading) + (word in title) for word in words), section))
    matches.sort(key=lambda pair: pair[0])
    return [_snippet(section, words[0]) for _, section in matches[:_FOUND_MAX]]


def _snippet(section: Section, word: str) -> Found:
    text = re.sub(r"\s+", " ", section.text)
    at = text.lower().find(word)
    if at < 0:
        return Found(section, text[:_SNIPPET], "", "")
    begin = max(0, at - _SNIPPET // 3)
    return Found(section, ("…" if begin else "") + text[begin:at], text[at:at + len(word)],
                 text[at + len(word):at + len(word) + _SNIPPET])

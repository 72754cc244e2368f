"""The language of filters: conditions on a message's key and properties, as SQL-92 and JMS selectors write them.

    compile_filter("region = 'eu' AND (price >= 10 OR key LIKE 'vip-%') AND trial IS NULL") -> Expression

The grammar is in docs/filters.md.  A condition is true, false or unknown: unknown where the property is missing, or
its text is no number and is compared with one.  NOT of unknown is unknown; AND takes the least of its sides and OR the
greatest, with false < unknown < true.  A message matches if the whole is true.

Everything is bounded before it is used: the text, its conditions, its depth.  Patterns are matched without going back.
"""
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

LENGTH_MAX = 4_096           # characters of a filter; a property of a subscription may be as long anyway
TERMS_MAX = 64               # conditions of a filter: each costs a look at every distinct value
DEPTH_MAX = 32               # of parentheses and NOTs: reading and evaluating go as deep
VALUES_MAX = 256             # of one IN
VALUE_SIZE_MAX = 4_096       # bytes of a value that is compared; about a longer one nothing is known
FALSE, UNKNOWN, TRUE = 0, 1, 2

_TOKEN = re.compile(
    r"""\s*(?:(?P<word>[^\W\d][\w.$]*|\$[\w.$]*)|(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?)"""
    r"""|(?P<string>'(?:[^']|'')*')|(?P<quoted>"(?:[^"]|"")*")|(?P<sign><=|>=|<>|[=<>(),]))""")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_NUMBER_MAX = 64             # characters of a number; a longer text is none
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_KEYWORDS = {"AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "KEY", "LIKE", "NOT", "NULL", "OR", "TRUE"}
_COMPARED: dict[str, Callable[[object, object], bool]] = {
    "=": lambda a, b: a == b, "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,      # type: ignore[operator]
    ">": lambda a, b: a > b, ">=": lambda a, b: a >= b}      # type: ignore[operator]
Value = str | int | float | bool


class FilterError(ValueError):
    """Error: the text is no filter.  The message says at which character."""


@dataclass(frozen=True, slots=True)
class Name:
    """What a condition is about: the message's key, or one of its properties."""

    text: str
    is_key: bool = False


@dataclass(frozen=True, slots=True)
class Term(ABC):
    """One condition on one name."""

    name: Name

    @abstractmethod
    def truth(self, value: str) -> int:
        """Return FALSE, UNKNOWN or TRUE for a value that the message has."""


@dataclass(frozen=True, slots=True)
class IsNull(Term):
    """name IS NULL; the one condition that a missing value decides."""

    def truth(self, value: str) -> int:
        return FALSE


@dataclass(frozen=True, slots=True)
class Compared(Term):
    """name = 'text', name >= 10, name <> TRUE."""

    sign: str
    wanted: Value

    def truth(self, value: str) -> int:
        known = _as(type(self.wanted), value)
        return UNKNOWN if known is None else _truth(_COMPARED[self.sign](known, self.wanted))


@dataclass(frozen=True, slots=True)
class Between(Term):
    """name BETWEEN 10 AND 20, both included."""

    least: Value
    most: Value

    def truth(self, value: str) -> int:
        known = _as(type(self.least), value)
        return UNKNOWN if known is None else _truth(self.least <= known <= self.most)      # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class Among(Term):
    """name IN ('a', 'b'), name IN (1, 2)."""

    wanted: frozenset[Value]
    kind: type

    def truth(self, value: str) -> int:
        known = _as(self.kind, value)
        return UNKNOWN if known is None else _truth(known in self.wanted)


@dataclass(frozen=True, slots=True)
class Like(Term):
    """name LIKE 'a_c%'.

    pieces: the pattern between its `%`; None stands for one character.  A pattern without `%` has one piece.  Each
    piece is taken at the first place where it fits, so nothing is ever tried twice.
    """

    pieces: tuple[tuple[str | None, ...], ...]

    def truth(self, value: str) -> int:
        first, *others = self.pieces
        if not _fits(first, value, 0):
            return FALSE
        at = len(first)
        if not others:
            return _truth(at == len(value))
        for piece in others[:-1]:
            at = _find(piece, value, at)
            if at < 0:
                return FALSE
            at += len(piece)
        start = len(value) - len(others[-1])
        return _truth(start >= at and _fits(others[-1], value, start))


@dataclass(frozen=True, slots=True)
class Not:
    """NOT part."""

    part: "Node"


@dataclass(frozen=True, slots=True)
class All:
    """part AND part ..."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Any:
    """part OR part ..."""

    parts: tuple["Node", ...]


Node = Term | Not | All | Any


@dataclass(frozen=True, slots=True)
class Expression:
    """A filter that has been read."""

    text: str
    root: Node
    names: tuple[Name, ...]      # each once
    # Whether messages with these values of the names match; for `entries.py`, which bounds it.
    verdicts: dict[tuple[str | bytes | None, ...], bool] = field(default_factory=dict, compare=False, repr=False)

    def matches(self, values: Mapping[Name, str | None]) -> bool:
        """Return True if a message matches.

        values: the value of each name that the message has; None for one that is too long to compare.
        """
        return _evaluate(self.root, values) == TRUE


def truth_of(term: Term, values: Mapping[Name, str | None]) -> int:
    """Return FALSE, UNKNOWN or TRUE for a message with these values, see `Expression.matches`."""
    if term.name not in values:
        return TRUE if isinstance(term, IsNull) else UNKNOWN
    if (value := values[term.name]) is None:
        return FALSE if isinstance(term, IsNull) else UNKNOWN
    return term.truth(value)


def _evaluate(node: Node, values: Mapping[Name, str | None]) -> int:
    if isinstance(node, Term):
        return truth_of(node, values)
    if isinstance(node, Not):
        return TRUE - _evaluate(node.part, values)
    least_or_most = min if isinstance(node, All) else max
    return least_or_most(_evaluate(part, values) for part in node.parts)


def terms(node: Node) -> Iterator[Term]:
    """Return an iterator over all conditions of a filter."""
    if isinstance(node, Term):
        yield node
    else:
        for part in (node.part,) if isinstance(node, Not) else node.parts:
            yield from terms(part)


def _truth(value: bool) -> int:
    return TRUE if value else FALSE


def _as(kind: type, text: str) -> Value | None:
    """Return a text as a value of the kind that it is compared with; None if it is not one."""
    if kind is str:
        return text
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower())
    return number_of(text)


def number_of(text: str) -> int | float | None:
    """Return the number that a text is, without blanks around it; None if it is none."""
    if len(text) > _NUMBER_MAX or not _NUMBER.fullmatch(text):
        return None
    return int(text) if _INTEGER.fullmatch(text) else float(text)


def _fits(piece: tuple[str | None, ...], text: str, at: int) -> bool:
    """Tell whether a piece of a pattern fits the text at a place."""
    if len(piece) > len(text) - at:
        return False
    return all(wanted is None or wanted == found for wanted, found in zip(piece, text[at:at + len(piece)], strict=True))


def _find(piece: tuple[str | None, ...], text: str, at: int) -> int:
    """Return the first place from `at` on where a piece of a pattern fits; -1 if there is none."""
    if None not in piece:
        return text.find("".join(filter(None, piece)), at)
    return next((place for place in range(at, len(text) - len(piece) + 1) if _fits(piece, text, place)), -1)


# -- reading

class _Token(NamedTuple):
    kind: str      # word, number, string, quoted, sign, end
    text: str
    at: int        # its first character

    @property
    def keyword(self) -> str:
        upper = self.text.upper()
        return upper if self.kind == "word" and upper in _KEYWORDS else ""


def compile_filter(text: str) -> Expression:
    """Read a filter.  Raises FilterError."""
    if len(text) > LENGTH_MAX:
        raise FilterError(f"a filter of {len(text)} characters is longer than {LENGTH_MAX}")
    reader = _Reader(text)
    root = reader.either(0)
    reader.end()
    return Expression(text, root, tuple(dict.fromkeys(term.name for term in terms(root))))


class _Reader:
    """Reads the text of a filter from left to right, with a function for each rule of the grammar."""

    def __init__(self, text: str):
        self._text = text
        self._token = self._next(0)
        self._terms = 0

    def __repr__(self) -> str:
        return f"<_Reader at {self._token}>"

    def _next(self, at: int) -> _Token:
        found = _TOKEN.match(self._text, at)
        if found is None or found.lastgroup is None:
            start = at + len(self._text[at:]) - len(self._text[at:].lstrip())
            if start == len(self._text):
                return _Token("end", "", start)
            what = "a text that does not end" if self._text[start] in "'\"" else repr(self._text[start])
            raise FilterError(f"{what} at character {start + 1}")
        return _Token(found.lastgroup, found[found.lastgroup], found.start(found.lastgroup))

    def _take(self) -> _Token:
        token = self._token
        self._token = self._next(token.at + len(token.text))
        return token

    def _is(self, *keywords: str) -> bool:
        return self._token.keyword in keywords

    def _skip(self, keyword: str) -> bool:
        """Skip the keyword or sign if it is next."""
        is_next = self._token.keyword == keyword or (self._token.kind == "sign" and self._token.text == keyword)
        if is_next:
            self._take()
        return is_next

    def _expect(self, keyword: str) -> None:
        if not self._skip(keyword):
            raise self._error(keyword)

    def _error(self, wanted: str) -> FilterError:
        token = self._token
        found = "the end" if token.kind == "end" else token.text[:40]
        return FilterError(f"expected {wanted}, found {found} at character {token.at + 1}")

    def end(self) -> None:
        if self._token.kind != "end":
            raise self._error("AND, OR or the end")

    def either(self, depth: int) -> Node:
        """either = both { OR both }"""
        parts = [self._both(depth)]
        while self._skip("OR"):
            parts.append(self._both(depth))
        return parts[0] if len(parts) == 1 else Any(tuple(parts))

    def _both(self, depth: int) -> Node:
        """both = one { AND one }"""
        parts = [self._one(depth)]
        while self._skip("AND"):
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _one(self, depth: int) -> Node:
        """one = NOT one | "(" either ")" | condition"""
        if depth > DEPTH_MAX:
            raise FilterError(f"more than {DEPTH_MAX} parentheses and NOTs at character {self._token.at + 1}")
        if self._skip("NOT"):
            return Not(self._one(depth + 1))
        if self._skip("("):
            inner = self.either(depth + 1)
            self._expect(")")
            return inner
        return self._condition()

    def _condition(self) -> Node:
        """condition = name ( sign value | [NOT] ( IN | LIKE | BETWEEN ) ... | IS [NOT] NULL )"""
        self._terms += 1
        if self._terms > TERMS_MAX:
            raise FilterError(f"more than {TERMS_MAX} conditions at character {self._token.at + 1}")
        name = self._name()
        if self._skip("IS"):
            is_not = self._skip("NOT")
            self._expect("NULL")
            return Not(IsNull(name)) if is_not else IsNull(name)
        is_not = self._skip("NOT")
        if self._skip("IN"):
            term: Term = self._among(name)
        elif self._skip("LIKE"):
            term = self._like(name)
        elif self._skip("BETWEEN"):
            term = self._between(name)
        elif not is_not and self._token.kind == "sign" and self._token.text in _COMPARED:
            term = self._compared(name)
        else:
            raise self._error("IN, LIKE or BETWEEN" if is_not else "a comparison, IN, LIKE, BETWEEN or IS")
        return Not(term) if is_not else term

    def _name(self) -> Name:
        token = self._token
        if token.kind == "quoted" and len(token.text) > 2:
            return Name(self._take().text[1:-1].replace('""', '"'))
        if token.kind == "word" and token.keyword in ("", "KEY"):
            self._take()
            return Name("key", is_key=True) if token.keyword else Name(token.text)
        raise self._error("the name of a property, key, NOT or (")

    def _value(self) -> Value:
        token = self._token
        if token.kind == "string":
            return self._take().text[1:-1].replace("''", "'")
        if token.kind == "number" and (number := number_of(token.text)) is not None:
            self._take()
            return number
        if token.keyword in ("TRUE", "FALSE"):
            return self._take().keyword == "TRUE"
        raise self._error("a text in single quotes, a number, TRUE or FALSE")

    def _compared(self, name: Name) -> Compared:
        sign, token = self._take().text, self._token
        value = self._value()
        if isinstance(value, bool) and sign not in ("=", "<>"):
            raise FilterError(f"TRUE and FALSE have no order, at character {token.at + 1}")
        return Compared(name, sign, value)

    def _among(self, name: Name) -> Among:
        self._expect("(")
        kind = self._token.kind
        values: list[Value] = []
        while True:
            token = self._token
            if token.kind not in ("string", "number") or token.kind != kind:
                raise self._error("a text in single quotes" if values and kind == "string" else
                                  "a number" if values else "a text in single quotes, or a number")
            values.append(self._value())
            if len(values) > VALUES_MAX:
                raise FilterError(f"more than {VALUES_MAX} values at character {token.at + 1}")
            if not self._skip(","):
                break
        self._expect(")")
        return Among(name, frozenset(values), str if kind == "string" else float)

    def _between(self, name: Name) -> Between:
        token = self._token
        least = self._value()
        self._expect("AND")
        most = self._value()
        if isinstance(least, bool) or isinstance(most, bool) or isinstance(least, str) != isinstance(most, str):
            raise FilterError(f"BETWEEN needs two numbers or two texts, at character {token.at + 1}")
        return Between(name, least, most)

    def _like(self, name: Name) -> Like:
        pattern = self._string()
        escape = ""
        if self._skip("ESCAPE"):
            token = self._token
            escape = self._string()
            if len(escape) != 1:
                raise FilterError(f"ESCAPE needs one character, at character {token.at + 1}")
        pieces: list[list[str | None]] = [[]]
        characters = iter(pattern)
        for character in characters:
            if escape and character == escape:
                pieces[-1].append(next(characters, escape))
            elif character == "%":
                pieces.append([])
            else:
                pieces[-1].append(None if character == "_" else character)
        return Like(name, tuple(map(tuple, pieces)))

    def _string(self) -> str:
        if self._token.kind != "string":
            raise self._error("a text in single quotes")
        value = self._value()
        assert isinstance(value, str)
        return value

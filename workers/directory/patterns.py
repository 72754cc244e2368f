"""Patterns that choose topics, and the hash by which a client recognises a list of topics.

A pattern is matched against a topic's whole name without scheme and without -partition-N, as in Pulsar.
"""
import re
import struct
import time
from functools import lru_cache
from weakref import WeakSet

import re2
from crc32c import crc32c

from geminga.proto import names

LENGTH_MAX = 1_000              # characters of a pattern; an arbitrary bound, above what is written by hand
_MEMORY_MAX = 1 << 20           # bytes of one compiled pattern with its cache
PATTERNS_MAX = 256              # compiled at a time for all clients; above it, clients evaluate patterns themselves
_SECONDS, _SECONDS_PER_NAME = 0.1, 1e-5     # of CPU for one list: ten times the need of usual patterns
_LOOK_EVERY = 64                # names between two looks at the clock
_SCHEME = re.compile("(?:non-)?persistent://")
_HOPELESS = (b"missing", b"unexpected", b"trailing", b"no argument")     # RE2's words for a pattern that no dialect has


class BrokenPattern(Exception):
    """The text is not a regular expression in any dialect."""


class ForeignPattern(Exception):
    """The pattern is too long, too slow, or not in RE2's dialect; only the client can evaluate it."""


class Pattern:
    """A client's compiled pattern of topic names.  Raises BrokenPattern, ForeignPattern."""

    # Patterns come from any client, and Python's re may take for ever over a short one.  RE2, which is Pulsar's dialect
    # as well, takes time in proportion to the names.  A set of one pattern is RE2's cheapest way to ask whether a name
    # matches.
    def __init__(self, text: str):
        if len(text) > LENGTH_MAX:
            raise ForeignPattern(f"Pattern longer than maximum: {LENGTH_MAX}")
        if len(_compiled) >= PATTERNS_MAX:
            pattern.cache_clear()       # frees those that no client uses any more
            if len(_compiled) >= PATTERNS_MAX:
                raise ForeignPattern("Too many patterns")
        self._set = re2.Set.FullMatchSet(_options())
        self._is_slow = False
        self._path = _without_scheme(text)
        try:
            self._set.Add(self._path)
            self._set.Compile()
        except re2.error:
            raise _why(self._path) from None
        _compiled.add(self)

    def __repr__(self) -> str:
        return f"<Pattern {self._path!r}{' too slow' if self._is_slow else ''}>"

    def choose(self, topics: list[str]) -> list[str]:
        """Return the complete topic names that match.  Raises ForeignPattern: matching takes too long."""
        match, chosen = self._set.Match, []
        began, allowed = time.thread_time(), _SECONDS + _SECONDS_PER_NAME * len(topics)
        for number, topic in enumerate(topics, 1):
            if self._is_slow or (number % _LOOK_EVERY == 0 and time.thread_time() - began > allowed):
                self._is_slow = True        # refused at once the next time
                raise ForeignPattern("Pattern takes too long")
            if match(names.without_partition(topic).partition("://")[2]):
                chosen.append(topic)
        return chosen

    def matches(self, topic: str) -> bool:
        """Whether a topic's complete name matches the pattern."""
        return not self._is_slow and bool(self.choose([topic]))     # one name never takes too long


_compiled: WeakSet[Pattern] = WeakSet()


@lru_cache(maxsize=128)
def pattern(text: str) -> Pattern:
    """Compile a pattern, or return the cached one.  Raises BrokenPattern, ForeignPattern."""
    return Pattern(text)


def topics_hash(topics: list[str]) -> str:
    """Return the hash of a topic list as Pulsar's clients compute it.

    The hash is the CRC32-C of the sorted names, in hexadecimal with the lowest byte first.
    """
    return struct.pack("<I", crc32c(",".join(sorted(topics)).encode())).hex()


def _options() -> re2.Options:
    """Return RE2's options for patterns of clients.

    RE2 must not log errors, because it would print a client's raw text to standard error.
    """
    options = re2.Options()
    options.log_errors, options.max_mem = False, _MEMORY_MAX
    return options


def _without_scheme(text: str) -> str:
    """Return a pattern without the schemes in it: behind an anchor, quoted, or one in each alternative."""
    path = _SCHEME.sub("", text)
    scheme, separator, _ = path.partition("://")
    if separator:
        raise BrokenPattern(f"Does not support topic domain: {scheme}")
    return path


def _why(path: str) -> BrokenPattern | ForeignPattern:
    """Return the error for a pattern that RE2 cannot compile."""
    try:
        re2.compile(path, _options())
    except re2.error as error:
        text = error.args[0]
        kind = BrokenPattern if text.startswith(_HOPELESS) else ForeignPattern
        return kind(text.decode(errors="replace"))
    return ForeignPattern("Pattern takes too much memory")

"""Exponential backoff with jitter: the time from a failure to the next try."""
import random

FIRST_S, MAX_S = 0.1, 60.0
_JITTER = 0.2                # part of a delay by which it is shorter or longer, so that not all try at once


class Backoff:
    """The delays of one thing that fails: FIRST_S, twice as long after each failure, at most MAX_S."""

    __slots__ = ("failures",)

    def __init__(self) -> None:
        self.failures = 0            # since the last success

    def __repr__(self) -> str:
        return f"<Backoff failures={self.failures}>"

    def next_s(self) -> float:
        """Count a failure, and return the seconds until the next try."""
        delay = min(MAX_S, FIRST_S * 2.0 ** min(self.failures, 20))
        self.failures += 1
        return delay * _jitter()

    def reset(self) -> None:
        """Begin anew, after a success."""
        self.failures = 0


def slow_s() -> float:
    """Return the seconds until the next try of what only an operator can mend."""
    return MAX_S * _jitter()


def _jitter() -> float:
    return random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - not for cryptography

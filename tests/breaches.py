"""Checks that look at many files say everything they found at once: one line for each breach, and nothing is left out.

A case for each file would cost more than the look at it: pytest sets up, reports and tears down every case.
"""
from collections.abc import Iterable


def assert_none(breaches: Iterable[str]) -> None:
    """Fail with one line for each breach: file, line if there is one, and the rule."""
    __tracebackhide__ = True
    said = list(breaches)
    if said:
        raise AssertionError(f"{len(said)} of its kind:\n" + "\n".join(said))

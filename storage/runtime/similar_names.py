"""Names that are like a mistyped one: of commands, keys, topics, subscriptions and fields."""
from collections.abc import Iterable

_NAMES_MAX = 20_000        # names that are compared; more would take seconds
_SLIP_LENGTHS = 2          # difference of lengths that a slip of the fingers makes
_SLIP_CUTOFF = 0.8


def likest(text: str, names: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return the names most like a text, the likest first; [] if none is like it."""
    import difflib
    return difflib.get_close_matches(text, sorted(names)[:_NAMES_MAX], most, cutoff)


def question(text: str, names: Iterable[str], most: int = 3) -> str:
    """Return a question for the names most like a text, such as "  Did you mean topics?"; "" if none is like it."""
    close = likest(text, names, most)
    return f"  Did you mean {' or '.join(close)}?" if close else ""


def question_of_topic(name: str, local_names: Iterable[str], *, is_slip: bool = False) -> str:
    """Return the question for a topic of the same namespace.

    name: up to its last slash, it is in the answer as it is.  local_names: those of the namespace's topics, without
    numbers of partitions.  is_slip: only names that a slip of the fingers would change to this one.
    """
    place, slash, local = name.rpartition("/")
    base, _, number = local.rpartition("-partition-")
    text = base if base and number.isdigit() else local
    names: Iterable[str] = set(local_names)
    if is_slip:
        names = [one for one in names if abs(len(one) - len(text)) <= _SLIP_LENGTHS]
    close = likest(text, names, cutoff=_SLIP_CUTOFF if is_slip else 0.6)
    return f"  Did you mean {place}{slash}{close[0]}?" if close else ""

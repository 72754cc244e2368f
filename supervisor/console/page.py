"""Declaration of pages: a path, a template, and the function that loads the values for it."""
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from geminga.supervisor.console.asking import Asking

Values = dict[str, Any]
Load = Callable[[Asking], Awaitable[Values]]
PATH = "/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic:[^/]+}"      # of a topic
SCALABLE_PATH = PATH.replace("persistent|non-persistent", "topic")
ANY_PATH = PATH.replace("persistent}", "persistent|topic}")      # of both kinds


class Page(NamedTuple):
    """A page of the console.

    Blocks of its template whose names begin with `live_` are sent again when they have changed.
    """

    path: str                    # for aiohttp's router
    template: str
    load: Load
    every_s: float               # between two updates; 0: the page does not change by itself


class Pages(list[Page]):
    """The pages that a file declares."""

    def at(self, path: str, template: str, *, every_s: float = 0.0) -> Callable[[Load], Load]:
        """Return a decorator that declares a function as the one that loads a page."""
        def declare(load: Load) -> Load:
            self.append(Page(path, template, load, every_s))
            return load
        return declare

"""Questions to an owner whose answers are tables: of topics, subscriptions and client connections.

Each owner answers with its first rows in the asked order; the admin process merges the answers of all owners.
"""
import fnmatch
import re
from collections.abc import Callable
from dataclasses import dataclass

from geminga.proto import names
from geminga.storage.admin.questions import Question


@dataclass(frozen=True)
class Listing:
    """Rows of a table, each an object."""

    stale: int                         # topics whose rows are not up to date yet; above 0 there are no rows: ask again
    total: int                         # rows in the scope, of which `rows` are the first
    stored: int                        # rows of persistent topics among them; 0 unless these are rows of topics
    rows: list[object]


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The topics that a question is about."""

    within: str = ""                   # a namespace, or a complete topic name, which means its partitions too; "": all
    match: str = ""                    # wildcards: of names in the namespace, else of tenant/namespace/topic

    def test(self) -> Callable[[str], bool]:
        """Return a test whether a topic's complete name is in the scope."""
        is_match = re.compile(fnmatch.translate(self.match)).match if self.match else None
        if "://" in self.within:
            return lambda name: self.within in (name, names.without_partition(name))
        if self.within:
            places = tuple(f"{domain}://{self.within}/" for domain in names.DOMAINS)
            return lambda name: name.startswith(places) and (
                is_match is None or bool(is_match(name.rpartition("/")[2])))
        return lambda name: is_match is None or bool(is_match(name.partition("://")[2]))


@dataclass(frozen=True, kw_only=True)
class Sorting:
    """The order of rows, and how many of them are wanted."""

    sort: str                          # a key of the rows
    ascending: bool
    most: int


@dataclass(frozen=True, kw_only=True)
class ListTopics(Question[Listing], Scope, Sorting, name="list-topics"):
    """A question for rows of open topics."""


@dataclass(frozen=True, kw_only=True)
class ListSubscriptions(Question[Listing], Scope, Sorting, name="list-subscriptions"):
    """A question for rows of subscriptions of open topics."""


@dataclass(frozen=True, kw_only=True)
class ListClients(Question[Listing], Scope, name="list-clients"):
    """A question for a row of each client connection that the owner knows."""

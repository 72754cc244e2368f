"""The catalogue: one SQLite file that all processes share, with everything that is small and relational.

Every process opens it for itself, and writers take turns. A reader asks `changed` (one pragma, no I/O) whether any
process has committed since it last asked. What a committed transaction wrote is on disk.

Each table has a class in a file of its own; `Catalogue` holds one of each.
"""
import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from geminga.storage.catalogue import layout
from geminga.storage.catalogue.database import Database
from geminga.storage.catalogue.ids import Counters, Ids
from geminga.storage.catalogue.inherited_contents import InheritedContents
from geminga.storage.catalogue.kept_topics import KeptTopics
from geminga.storage.catalogue.layout import VERSION
from geminga.storage.catalogue.partitions import Partitions, Subscriptions
from geminga.storage.catalogue.scalable_topics import ScalableTopics
from geminga.storage.catalogue.stored_policies import ChangedOptions, Properties, StoredPolicies
from geminga.storage.catalogue.stored_schedules import StoredSchedules
from geminga.storage.catalogue.stored_schemas import StoredSchemas
from geminga.storage.catalogue.tenants import Namespaces, Tenants
from geminga.storage.catalogue.topics import Topics

_FIRST_NAMESPACES = ("public/default", "pulsar/system")


class CatalogueError(Exception):
    """Error: the catalogue cannot be used, because a newer version wrote it or it is no SQLite file."""


class Catalogue(Database):
    """The connection of one process to the catalogue: its tables, and one transaction for all of them."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time, *, is_read_only: bool = False):
        super().__init__(path, is_read_only=is_read_only)
        self._seen = -1, -1      # the version that `changed` compares with
        self.counters = counters = Counters(self)
        self.ids = Ids(self, counters, clock)
        self.policies = StoredPolicies(self, counters)
        self.options = ChangedOptions(self.policies)
        self.properties = Properties(self, counters)
        self.schemas = StoredSchemas(self)
        self.schedules = StoredSchedules(self, counters)
        self.tenants = Tenants(self, self.policies)
        self.namespaces = Namespaces(self, self.tenants, self.policies, self.schemas)
        self.topics = Topics(self, self.policies, self.schemas, self.schedules, counters)
        self.scalable_topics = ScalableTopics(self, self.topics, self.properties, self.schedules, counters)
        self.subscriptions = Subscriptions(self, self.policies)
        self.inherited_contents = InheritedContents(self)
        self.partitions = Partitions(self, self.topics, self.subscriptions, counters)
        self.kept_topics = KeptTopics(self, self.topics, self.scalable_topics, self.partitions, counters)

    def __repr__(self) -> str:
        return f"<Catalogue {self.path}>"

    def changed(self) -> bool:
        """Return whether any process has written to the catalogue since the last call."""
        version = self.version()
        if version == self._seen:
            return False
        self._seen = version
        return True


def open_catalogue(path: Path, clock: Callable[[], float] = time.time) -> Catalogue:
    """Open the catalogue, and create or upgrade it first if necessary.

    The supervisor does so before it starts other processes.  Raises CatalogueError, StorageFull, NotDurable.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _opened(path, clock) as catalogue:
        version = layout.version_of(catalogue)
        if version == 0:
            layout.create(catalogue)
            for namespace in _FIRST_NAMESPACES:
                catalogue.namespaces.create(namespace)
            catalogue.commit()
        elif version > VERSION:
            raise CatalogueError(f"{path} has format version {version}; this program reads {VERSION}")
        elif version < VERSION:
            layout.upgrade(catalogue)
            catalogue.commit()
    return catalogue


def open_to_read(path: Path) -> Catalogue:
    """Open an existing catalogue for reading only, for programs beside the broker.  Raises CatalogueError."""
    with _opened(path, is_read_only=True) as catalogue:
        if (version := layout.version_of(catalogue)) != VERSION:
            raise CatalogueError(f"{path} has format version {version}; this program reads {VERSION}")
    return catalogue


@contextlib.contextmanager
def _opened(path: Path, clock: Callable[[], float] = time.time, *, is_read_only: bool = False) -> Iterator[Catalogue]:
    """Yield an open catalogue, which stays open unless the `with` block fails.  Raises CatalogueError."""
    with contextlib.ExitStack() as on_failure:
        try:
            catalogue = Catalogue(path, clock, is_read_only=is_read_only)
            on_failure.callback(catalogue.close)
            yield catalogue
        except sqlite3.DatabaseError as error:
            raise CatalogueError(f"{path}: {error}") from error
        on_failure.pop_all()

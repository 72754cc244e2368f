"""Tenants and namespaces."""
import sqlite3

from geminga.proto import names
from geminga.storage.catalogue.database import Database
from geminga.storage.catalogue.stored_policies import StoredPolicies, names_between
from geminga.storage.catalogue.stored_schemas import StoredSchemas


class Tenants:
    """Tenants in the catalogue, by name."""

    def __init__(self, database: Database, policies: StoredPolicies):
        self._database, self._policies = database, policies

    def names(self) -> list[str]:
        """Return all tenants, sorted.  Raises StorageFull."""
        return self._database.column("SELECT name FROM tenants ORDER BY name")

    def exists(self, name: str) -> bool:
        """Whether there is a tenant of that name.  Raises StorageFull."""
        return self._database.value("SELECT 1 FROM tenants WHERE name = ?", (name,)) is not None

    def create(self, name: str) -> None:
        """Create a tenant if there is none of that name.  Raises StorageFull, NotDurable."""
        self._database.write("INSERT OR IGNORE INTO tenants VALUES (?)", (name,))

    def delete(self, name: str) -> None:
        """Delete a tenant without namespaces, and its policies.  Raises StorageFull, NotDurable."""
        self._database.write("DELETE FROM tenants WHERE name = ?", (name,))
        self._policies.delete_scopes(name)


class Namespaces:
    """Namespaces in the catalogue, by name: `tenant/namespace`."""

    def __init__(self, database: Database, tenants: Tenants, policies: StoredPolicies, schemas: StoredSchemas):
        self._database, self._tenants, self._policies, self._schemas = database, tenants, policies, schemas

    def of_tenant(self, tenant: str) -> list[str]:
        """Return the tenant's namespaces, sorted.  Raises StorageFull."""
        return self._database.column("SELECT name FROM namespaces WHERE tenant = ? ORDER BY name", (tenant,))

    def exists(self, name: str) -> bool:
        """Whether there is a namespace of that name.  Raises StorageFull."""
        return self._database.value("SELECT 1 FROM namespaces WHERE name = ?", (name,)) is not None

    def create(self, name: str) -> None:
        """Create a namespace, and its tenant, if there is none of that name.  Raises StorageFull, NotDurable."""
        tenant = name.split("/", 1)[0]
        self._tenants.create(tenant)
        self._database.write("INSERT OR IGNORE INTO namespaces VALUES (?, ?)", (name, tenant))

    def delete(self, name: str) -> bool:
        """Delete a namespace with its policies, and the policies and schemas of its topics that were never created.

        Returns False, and deletes nothing, when it has topics.  Raises StorageFull, NotDurable.
        """
        try:
            self._database.write("DELETE FROM namespaces WHERE name = ?", (name,))
        except sqlite3.IntegrityError:
            return False
        self._policies.delete_scopes(name)
        for domain in (*names.DOMAINS, names.SCALABLE):
            first, last = names_between(domain, name)
            self._schemas.forget_between(first, last)
            self._policies.delete_scopes(*self._database.column(
                "SELECT scope FROM policies WHERE scope > ? AND scope < ?", (first, last)))
        return True

"""Policies, options and properties as they were set, by scope.

A scope is a tenant, a namespace (`tenant/namespace`), a topic by its base name, or a subscription (`#id`). Values are
JSON. `policies.py` makes the policies in force for a topic from them.
"""
import json
from dataclasses import fields, replace
from typing import Any

from geminga.proto import names
from geminga.storage.catalogue.database import Database
from geminga.storage.catalogue.ids import Counters
from geminga.storage.options import StorageOptions

# Policies that are rights: of tenants, namespaces and topics.
ADMIN_ROLES, PERMISSIONS, SUBSCRIPTION_PERMISSIONS, AUTH_MODE = RIGHTS = (
    "adminRoles", "permissions", "subscriptionPermissions", "subscriptionAuthMode")
REPLICATION = "replicationClusters"      # the policy that names the clusters to which messages go
DEAD_LETTER = "deadLetter"               # the policy by which messages go to dead letter topics
_OPTIONS = "/options"      # scope of the options that were changed while the broker ran


class StoredPolicies:
    """Policies in the catalogue, as users set them, by scope."""

    def __init__(self, database: Database, counters: Counters):
        self._database, self._counters = database, counters

    def of(self, scope: str) -> dict[str, Any]:
        """Return {name: value} of the policies set for a scope."""
        rows = self._database.connection.execute("SELECT name, value FROM policies WHERE scope = ?", (scope,))
        return {name: json.loads(value) for name, value in rows}

    def set(self, scope: str, name: str, value: Any) -> None:
        """Set a policy of a scope; None removes it.  Raises StorageFull, NotDurable."""
        if value is None:
            self._database.write("DELETE FROM policies WHERE scope = ? AND name = ?", (scope, name))
        else:
            self._database.write(
                "INSERT INTO policies VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
                (scope, name, json.dumps(value)))
        if name in RIGHTS:
            self._counters.take("rights")

    def move(self, scope: str, to: str) -> None:
        """Give another scope the policies of a scope, before its own; grants are added.

        Raises StorageFull, NotDurable.
        """
        there = self.of(to)
        for name, value in self.of(scope).items():
            self.set(to, name, there.get(name, {}) | value if name == PERMISSIONS else value)
            self.set(scope, name, None)

    def everywhere(self, name: str) -> dict[str, Any]:
        """Return {scope: value} of all scopes that set the policy.  Raises StorageFull."""
        return {scope: json.loads(value) for scope, value in self._database.read(
            "SELECT scope, value FROM policies WHERE name = ? ORDER BY scope", (name,))}

    def of_topics(self, namespace: str, name: str) -> dict[str, Any]:
        """Return {topic or partition: value} of the namespace's topics that set the policy.  Raises StorageFull."""
        domains = (*names.DOMAINS, names.SCALABLE)
        return {scope: json.loads(value) for domain in domains for scope, value in self._database.read(
            "SELECT scope, value FROM policies WHERE scope > ? AND scope < ? AND name = ?",
            (*names_between(domain, namespace), name))}

    def rights_version(self) -> int:
        """Return a number that changes whenever a right was granted or revoked.  Raises StorageFull."""
        return self._counters.value("rights")

    def delete_scopes(self, *scopes: str, rights: bool = True) -> None:
        """Delete the policies and properties of scopes.  Raises StorageFull, NotDurable.

        rights: whether the RIGHTS among the policies are deleted too.
        """
        kept = () if rights else RIGHTS
        for scope in scopes:
            deleted = self._database.write(
                f"DELETE FROM policies WHERE scope = ? AND name NOT IN ({', '.join('?' * len(kept))})", (scope, *kept))
            if rights and deleted.rowcount:
                self._counters.take("rights")
            self._database.write("DELETE FROM properties WHERE scope = ?", (scope,))


class ChangedOptions:
    """Options of the broker that were changed while it ran, which override the configuration's."""

    def __init__(self, policies: StoredPolicies):
        self._policies = policies

    def set(self, name: str, value: Any) -> None:
        """Change an option, a field of StorageOptions; None undoes the change.  Raises StorageFull, NotDurable."""
        self._policies.set(_OPTIONS, name, value)

    def applied_to(self, configured: StorageOptions) -> StorageOptions:
        """Return the configured options with the changes applied; unknown option names are ignored."""
        known = {field.name for field in fields(StorageOptions)}
        changes: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value
                                   for name, value in self._policies.of(_OPTIONS).items() if name in known}
        return replace(configured, **changes)


class Properties:
    """Properties that users set for a namespace, a topic (by its base name) or a subscription (by its id)."""

    def __init__(self, database: Database, counters: Counters):
        self._database, self._counters = database, counters

    def of(self, scope: str | int) -> dict[str, str]:
        """Return the properties of a scope, or of the subscription with that id.  Raises StorageFull."""
        properties: dict[str, str] = json.loads(
            self._database.value("SELECT value FROM properties WHERE scope = ?", (scope_of(scope),)) or "{}")
        return properties

    def of_subscriptions(self, partition_id: int) -> dict[int, dict[str, str]]:
        """Return {subscription's id: properties} of a partition's subscriptions for which they were set, also to none.

        Raises StorageFull.
        """
        rows = self._database.read(
            "SELECT subscriptions.id, value FROM subscriptions JOIN properties ON scope = '#' || subscriptions.id "
            "WHERE partition_id = ?", (partition_id,))
        return {subscription_id: json.loads(value) for subscription_id, value in rows}

    def move(self, scope: str, to: str) -> None:
        """Give another scope the properties of a scope, before its own.  Raises StorageFull, NotDurable."""
        self.set(to, self.of(to) | self.of(scope))
        self.set(scope, {})

    def set(self, scope: str | int, properties: dict[str, str]) -> None:
        """Replace all properties of a scope or subscription.  Raises StorageFull, NotDurable.

        A subscription without properties keeps a row that says so: else its next consumer would set its own.
        """
        self._database.write("DELETE FROM properties WHERE scope = ?", (scope_of(scope),))
        if properties or isinstance(scope, int):
            self._database.write("INSERT INTO properties VALUES (?, ?)", (scope_of(scope), json.dumps(properties)))
        if isinstance(scope, str) and scope.startswith(f"{names.SCALABLE}://"):
            self._counters.take("topics")      # consumers of a namespace may ask for topics with certain properties


def scope_of(scope: str | int) -> str:
    """Return a subscription's id as a scope, `#id`; a scope is returned unchanged."""
    return f"#{scope}" if isinstance(scope, int) else scope


def names_between(domain: str, namespace: str) -> tuple[str, str]:
    """Return two strings between which all topic names of a namespace in one domain sort."""
    return f"{domain}://{namespace}/", f"{domain}://{namespace}0"       # 0 follows /

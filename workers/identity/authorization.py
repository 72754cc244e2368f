"""What somebody may do: (Identity, action, resource) -> allowed or not, and why.

    super users ([authorization])          everything
    administrators of a tenant             everything in the tenant's namespaces
    grants of a namespace, or of a topic   produce, consume, functions, sinks, sources, packages

A grant for a partitioned topic holds for its partitions.  Of a namespace's subscriptions some may be for certain roles, or all for those
with whose role the name begins: that binds whoever consumes because of a grant.  Who asks on behalf of others needs what these need.

A resource is a topic, a namespace ("tenant/namespace"), a tenant ("tenant"), or the broker ("").
"""
from collections.abc import Iterator
from typing import Any, NamedTuple

from geminga.proto.names import TopicName
from geminga.storage.catalogue.catalogue import ADMIN_ROLES, AUTH_MODE, PERMISSIONS, SUBSCRIPTION_PERMISSIONS, Catalogue
from geminga.workers.identity.authentication import INTERNAL, Identity
from geminga.workers.identity.options import AuthorizationOptions

ADMINISTER, PRODUCE, CONSUME, LOOKUP = "administer", "produce", "consume", "lookup"     # who may produce or consume may look up
GRANTED = (CONSUME, "functions", "packages", PRODUCE, "sinks", "sources")              # what grants are for
ACTIONS = (ADMINISTER, LOOKUP, *GRANTED)
_DECISIONS_MAX = 16_384      # that are remembered
_SIZE_MAX = 1_024            # characters of all names in one of them

Resource = TopicName | str


class Decision(NamedTuple):
    is_allowed: bool
    why: str
    told: str = ""      # what its client is told instead of what is said of the command, when that helps more


class Right(NamedTuple):
    """What something is done by: a producer, a consumer."""

    action: str
    resource: Resource
    subscription: str = ""


class Authorization:
    """Decides by the catalogue as it was when `version` was last asked: whoever has other means to be up to date need not ask each time."""

    def __init__(self, options: AuthorizationOptions, catalogue: Catalogue):
        self._catalogue = catalogue
        self._seen: tuple[int, int] | None = None
        self._rights_version = -1
        self._decided: dict[tuple[str, str, str, Resource, str], Decision] = {}
        self._policies: dict[str, dict[str, Any]] = {}       # of tenants, namespaces and topics, as far as they were needed
        self.configure(options)

    def configure(self, options: AuthorizationOptions) -> None:
        """These hold from now on."""
        self.is_enabled = options.enabled
        self._supers = frozenset(options.super_user_roles)
        self._wildcards = options.wildcards
        self._forget()

    def version(self) -> int:
        """Another one whenever somebody's rights have changed."""
        seen = self._catalogue.version()
        if seen != self._seen:
            version = self._catalogue.rights_version()
            if version != self._rights_version:
                self._forget()
                self._rights_version = version
            self._seen = seen
        return self._rights_version

    def allows(self, identity: Identity, action: str, resource: Resource, subscription: str = "") -> bool:
        return self.decide(identity, action, resource, subscription).is_allowed

    def decide(self, identity: Identity, action: str, resource: Resource, subscription: str = "") -> Decision:
        """subscription: the one that is used, where the action is about one."""
        if not self.is_enabled:
            return Decision(True, "Authorization is off")
        if identity.method == INTERNAL:
            return Decision(True, "The broker itself asks")
        key = identity.role, identity.proxy, action, resource, subscription
        decision = self._decided.get(key)
        if decision is None:
            if max(len(self._decided), len(self._policies)) >= _DECISIONS_MAX:
                self._forget()
            decision = self._decide(*key)
            if len(identity.role) + len(identity.proxy) + len(str(resource)) + len(subscription) <= _SIZE_MAX:
                self._decided[key] = decision
        return decision

    def _forget(self) -> None:
        self._decided.clear()
        self._policies.clear()

    def _of(self, scope: str) -> dict[str, Any]:
        found = self._policies.get(scope)
        if found is None:
            found = self._catalogue.policies(scope)
            if len(scope) <= _SIZE_MAX:
                self._policies[scope] = found
        return found

    def _decide(self, role: str, proxy: str, action: str, resource: Resource, subscription: str) -> Decision:
        decision = self._of_role(role, action, resource, subscription)
        if not proxy or not decision.is_allowed:
            return decision
        of_proxy = self._of_role(proxy, action, resource, subscription)
        return of_proxy._replace(why=f"{decision.why}. Of the proxy: {of_proxy.why}")

    def _of_role(self, role: str, action: str, resource: Resource, subscription: str) -> Decision:
        if role and role in self._supers:
            return Decision(True, f"{role} is a super user")
        who = f"'{role}'"
        if resource == "":
            return Decision(False, f"{who} is no super user")
        tenant = tenant_of(resource)
        if role and role in self._of(tenant).get(ADMIN_ROLES, ()):
            return Decision(True, f"{role} is an administrator of tenant {tenant}")
        others = f"is no administrator of tenant {tenant}"
        if action == ADMINISTER or resource == tenant:
            return Decision(False, f"{who} {others}")
        if action == CONSUME and subscription and (obstacle := self._obstacle(role, resource, subscription)) is not None:
            return obstacle
        for scope, holder, actions in self._grants(role, resource):
            if action in actions or (action == LOOKUP and not {PRODUCE, CONSUME}.isdisjoint(actions)):
                return Decision(True, f"{' and '.join(actions)} on {scope} is granted to {holder}")
        what = f"{PRODUCE} or {CONSUME}" if action == LOOKUP else action
        return Decision(False, f"{what} on {resource} is not granted to {who}, who {others}")

    def _grants(self, role: str, resource: Resource) -> Iterator[tuple[str, str, list[str]]]:
        """(what it was granted for, to whom, actions) of those that hold for the role."""
        for scope in scopes_of(resource):
            for holder, actions in self._of(scope).get(PERMISSIONS, {}).items():
                if role and (holder == role or (self._wildcards and _matches(holder, role))):
                    yield scope, holder, actions

    def _obstacle(self, role: str, resource: Resource, subscription: str) -> Decision | None:
        """What keeps a role from that subscription, though it may consume."""
        namespace = namespace_of(resource)
        policies = self._of(namespace)
        roles = policies.get(SUBSCRIPTION_PERMISSIONS, {}).get(subscription)
        if roles and role not in roles:
            return Decision(False, f"Subscription {subscription} of {namespace} is for other roles than '{role}'")
        if policies.get(AUTH_MODE) == "Prefix" and not subscription.startswith(role):
            text = "Failed to create consumer - The subscription name needs to be prefixed by the authentication role, like " \
                   f"{role}-xxxx for topic: {resource}"
            return Decision(False, f"In {namespace} a subscription's name begins with the role that uses it", text)
        return None

    def helpers(self, resource: Resource) -> list[str]:
        """Roles that may grant rights to it."""
        admins = self._of(tenant_of(resource)).get(ADMIN_ROLES, ()) if resource else ()
        return sorted({*self._supers, *admins})


def tenant_of(resource: Resource) -> str:
    return resource.partition("/")[0] if isinstance(resource, str) else resource.tenant


def namespace_of(resource: Resource) -> str:
    return resource if isinstance(resource, str) else resource.namespace


def scopes_of(resource: Resource) -> list[str]:
    """What grants that hold for the resource are made for."""
    if isinstance(resource, str):
        return [resource]
    return list(dict.fromkeys((resource.namespace, str(resource.base), str(resource))))


def _matches(holder: str, role: str) -> bool:
    """As Pulsar has it: a * at the end or at the beginning."""
    return bool(holder) and ((holder.endswith("*") and role.startswith(holder[:-1])) or (holder.startswith("*") and role.endswith(holder[1:])))

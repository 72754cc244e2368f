"""Authorization: (Identity, action, resource) -> allowed or not, and why.

    super users ([authorization])          everything
    administrators of a tenant             everything in the tenant's namespaces
    grants of a namespace, or of a topic   produce, consume, functions, sinks, sources, packages

Each of these names may also be a group of the role: a role has the rights of all its groups.

A producer under the name of a replicator of another cluster moves what the topic has of that cluster: whatever lies
before the position that it names is dropped from then on.  So only super users, administrators of the tenant, and roles
of `replicator_roles` that may produce open one.  A replication cursor is changed by administrators only, because
acknowledging it gives up what the other cluster does not have.

A grant for a partitioned topic holds for its partitions.  A namespace may reserve some subscriptions for certain roles,
or demand that a subscription's name begins with its consumer's role; both bind roles that consume because of a grant.
A proxy needs every right that the role on whose behalf it asks needs.

A resource is a topic, a namespace ("tenant/namespace"), a tenant ("tenant"), or the broker ("").
"""
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from geminga.proto.commands import CONSUME, LOOKUP, PRODUCE
from geminga.proto.names import REPLICATOR_PREFIX, TopicName, remote_of
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.stored_policies import ADMIN_ROLES, AUTH_MODE, PERMISSIONS, SUBSCRIPTION_PERMISSIONS
from geminga.workers.identity.authentication import LOCAL, Identity
from geminga.workers.identity.options import AuthorizationOptions

ADMINISTER = "administer"
REPLICATE = "replicate"        # to produce under the name of another cluster's replicator
GRANTED = (CONSUME, "functions", "packages", PRODUCE, "sinks", "sources")      # actions that grants are made for
ACTIONS = (ADMINISTER, LOOKUP, REPLICATE, *GRANTED)
_DECISIONS_MAX = 16_384      # remembered
_SIZE_MAX = 1_024            # characters of all names in a decision that is remembered
_NO_REPLICATOR = f"Client is not authorized to Produce under the name of a replicator, {REPLICATOR_PREFIX}..."

Resource = TopicName | str


class Decision(NamedTuple):
    """Whether an action is allowed, and the reason in words."""

    is_allowed: bool
    why: str            # for administration
    told: str = ""      # for the client, instead of the command's usual text; "": the usual text
    lacks: str = ""     # action whose grant alone would allow it; "": allowed, or more is in the way


class Right(NamedTuple):
    """The right that a command, a producer or a consumer needs: an action on a resource."""

    action: str
    resource: Resource
    subscription: str = ""


class Authorization:
    """Decides by the grants in the catalogue, as they were when `version` was last called."""

    def __init__(self, options: AuthorizationOptions, catalogue: Catalogue):
        self._catalogue = catalogue
        self._seen: tuple[int, int] | None = None
        self._rights_version = -1
        self._decided: dict[tuple[tuple[str, ...], str, str, Resource, str], Decision] = {}
        self._policies: dict[str, dict[str, Any]] = {}       # by tenant, namespace or topic; filled when needed
        self.configure(options)

    def configure(self, options: AuthorizationOptions) -> None:
        """Apply new options."""
        self.is_enabled = options.enabled
        self._supers = frozenset(options.super_user_roles)
        self._replicators = frozenset(options.replicator_roles)
        self._wildcards = options.wildcards
        self._forget()

    def __repr__(self) -> str:
        state = f"{len(self._decided)} decisions remembered" if self.is_enabled else "off"
        return f"<Authorization {state}, version {self._rights_version}>"

    def version(self) -> int:
        """A number that changes whenever rights have changed; later decisions go by the grants of that version."""
        seen = self._catalogue.version()
        if seen != self._seen:
            version = self._catalogue.policies.rights_version()
            if version != self._rights_version:
                self._forget()
                self._rights_version = version
            self._seen = seen
        return self._rights_version

    def allows(self, identity: Identity, action: str, resource: Resource, subscription: str = "") -> bool:
        """Whether the identity may do this; see `decide` for the arguments."""
        return self.decide(identity, action, resource, subscription).is_allowed

    def decide(self, identity: Identity, action: str, resource: Resource, subscription: str = "") -> Decision:
        """Decide whether the identity may perform the action on the resource, and say why.

        subscription: name of the subscription, where the action concerns one.
        """
        if not self.is_enabled:
            return Decision(True, "Authorization is off")
        if identity.method == LOCAL:
            return Decision(True, "It came by the socket in the data folder")
        key = (identity.role, *identity.groups), identity.proxy, action, resource, subscription
        decision = self._decided.get(key)
        if decision is None:
            if max(len(self._decided), len(self._policies)) >= _DECISIONS_MAX:
                self._forget()
            decision = self._decide(*key)
            if sum(map(len, key[0])) + len(identity.proxy) + len(str(resource)) + len(subscription) <= _SIZE_MAX:
                self._decided[key] = decision
        return decision

    def decide_resolved(self, identity: Identity, right: Right,
                        hiding: Callable[[TopicName], TopicName | None]) -> Decision:
        """Decide about a name by which clients of Pulsar 5 get a scalable topic: a right to that topic is enough.

        hiding: returns the scalable topic that hides a regular one.
        """
        decision = self.decide(identity, *right)
        scalable = None if decision.is_allowed or isinstance(right.resource, str) else hiding(right.resource)
        return decision if scalable is None else self.decide(identity, *right._replace(resource=scalable))

    def _forget(self) -> None:
        self._decided.clear()
        self._policies.clear()

    def _policies_of(self, scope: str) -> dict[str, Any]:
        policies = self._policies.get(scope)
        if policies is None:
            policies = self._catalogue.policies.of(scope)
            if len(scope) <= _SIZE_MAX:
                self._policies[scope] = policies
        return policies

    def _decide(self, names: tuple[str, ...], proxy: str, action: str, resource: Resource,
                subscription: str) -> Decision:
        decision = self._decide_for_role(names, action, resource, subscription)
        if not proxy or not decision.is_allowed:
            return decision
        of_proxy = self._decide_for_role((proxy,), action, resource, subscription)
        return of_proxy._replace(lacks="", why=f"{decision.why}. Of the proxy: {of_proxy.why}")

    def _decide_for_role(self, names: tuple[str, ...], action: str, resource: Resource,
                         subscription: str) -> Decision:
        """Decide for a role, the first of the names, and its groups, which are the others."""
        if (name := _first(names, self._supers)) is not None:
            return Decision(True, f"{name} is a super user")
        who = f"'{names[0]}'" if len(names) == 1 else f"'{names[0]}' with its groups"
        if resource == "":
            return Decision(False, f"{who} is no super user")
        tenant = tenant_of(resource)
        if (name := _first(names, self._policies_of(tenant).get(ADMIN_ROLES, ()))) is not None:
            return Decision(True, f"{name} is an administrator of tenant {tenant}")
        others = f"is no administrator of tenant {tenant}"
        if action == ADMINISTER or resource == tenant:
            return Decision(False, f"{who} {others}")
        if action == REPLICATE:
            if _first(names, self._replicators) is None:
                return Decision(False, f"{who} is none of replicator_roles, and {others}", _NO_REPLICATOR)
            action = PRODUCE
        if action == CONSUME and subscription:
            refusal = self._subscription_refusal(names, who, resource, subscription)
            if refusal is not None:
                return refusal
        for scope, holder, actions in self._grants(names, resource):
            if action in actions or (action == LOOKUP and not {PRODUCE, CONSUME}.isdisjoint(actions)):
                return Decision(True, f"{' and '.join(actions)} on {scope} is granted to {holder}")
        what = f"{PRODUCE} or {CONSUME}" if action == LOOKUP else action
        return Decision(False, f"{what} on {resource} is not granted to {who}, who {others}",
                        lacks=CONSUME if action == LOOKUP else action)

    def _grants(self, names: tuple[str, ...], resource: Resource) -> Iterator[tuple[str, str, list[str]]]:
        """Return (scope, holder, actions) of the grants that apply to these names and this resource."""
        scopes = scopes_of(resource)
        if not isinstance(resource, str) and (whole := str(self._catalogue.topics.whole(resource))) not in scopes:
            scopes.append(whole)      # the topic was made scalable
        for scope in scopes:
            for holder, actions in self._policies_of(scope).get(PERMISSIONS, {}).items():
                if any(name and (holder == name or (self._wildcards and _matches(holder, name))) for name in names):
                    yield scope, holder, actions

    def _subscription_refusal(self, names: tuple[str, ...], who: str, resource: Resource,
                              subscription: str) -> Decision | None:
        """Return the refusal for names that may consume, but not from this subscription; None if they may.

        who: the names in words.
        """
        if remote_of(subscription) is not None:
            return Decision(False, f"{subscription} is a replication cursor, and {who} is no administrator of "
                                   f"tenant {tenant_of(resource)}")
        namespace = namespace_of(resource)
        policies = self._policies_of(namespace)
        roles = policies.get(SUBSCRIPTION_PERMISSIONS, {}).get(subscription)
        if roles and set(roles).isdisjoint(names):
            return Decision(False, f"Subscription {subscription} of {namespace} is for other roles than {who}")
        if policies.get(AUTH_MODE) == "Prefix" and not subscription.startswith(names):
            text = "Failed to create consumer - The subscription name needs to be prefixed by the authentication " \
                   f"role, like {names[0]}-xxxx for topic: {resource}"
            return Decision(False, f"In {namespace} a subscription's name begins with the role that uses it", text)
        return None

    def helpers(self, resource: Resource) -> list[str]:
        """Return the roles that may grant rights to the resource, sorted."""
        admins = self._policies_of(tenant_of(resource)).get(ADMIN_ROLES, ()) if resource else ()
        return sorted({*self._supers, *admins})


def tenant_of(resource: Resource) -> str:
    """Return the tenant of a topic, a namespace or a tenant."""
    return resource.partition("/")[0] if isinstance(resource, str) else resource.tenant


def namespace_of(resource: Resource) -> str:
    """Return the namespace of a topic or a namespace."""
    return resource if isinstance(resource, str) else resource.namespace


def scopes_of(resource: Resource) -> list[str]:
    """Return the scopes whose grants apply to the resource; for a topic: namespace, partitioned topic, topic."""
    if isinstance(resource, str):
        return [resource]
    return list(dict.fromkeys((resource.namespace, str(resource.base), str(resource))))


def _first(names: tuple[str, ...], among: Collection[str]) -> str | None:
    """Return the first of the names that is among others, None if none is; the empty name is nobody."""
    return next((name for name in names if name and name in among), None)


def _matches(holder: str, role: str) -> bool:
    """Whether a grant's holder names the role; a * at the holder's end or beginning stands for any text, as in
    Pulsar.
    """
    begins = holder.endswith("*") and role.startswith(holder[:-1])
    return bool(holder) and (begins or (holder.startswith("*") and role.endswith(holder[1:])))

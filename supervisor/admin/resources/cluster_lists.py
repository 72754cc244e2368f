"""Lists of clusters in policies and of tenants: which names may stand in them, and where a cluster is used."""
from typing import NamedTuple

from aiohttp import web

from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.stored_policies import REPLICATION

ALLOWED = "allowedClusters"      # a policy of tenants, too
LISTS = REPLICATION, ALLOWED
PEERS = "/clusters/peers"    # scope of policies in the catalogue: cluster -> clusters that stand in for it


class Choice(NamedTuple):
    """The clusters among which a list of a namespace or topic may choose."""

    own: str                             # this broker's
    known: frozenset[str]                # those with a record, and the own one
    tenant: str
    of_tenant: frozenset[str]            # that the tenant may use
    of_namespace: frozenset[str]         # that the namespace may use; empty: all that the tenant may
    peers: dict[str, list[str]]


def choice_of(catalogue: Catalogue, own: str, known: frozenset[str], namespace: str) -> Choice:
    """Return the choice of lists in a namespace, which does not need to exist yet.

    known: clusters with a record, and the own one.
    """
    tenant = namespace.partition("/")[0]
    return Choice(own, known, tenant, frozenset(catalogue.policies.of(tenant).get(ALLOWED) or [own]),
                  frozenset(catalogue.policies.of(namespace).get(ALLOWED, ())), catalogue.policies.of(PEERS))


def check(policy: str, names: list[str], choice: Choice, *, is_topic: bool) -> list[str]:
    """Return a list of clusters as it is stored: sorted, without repetitions.

    Pulsar would delete the topics of a namespace whose list lacks the own cluster.  Here such a list is refused.

    Raises HTTPPreconditionFailed, HTTPForbidden, HTTPConflict.
    """
    if not names:
        raise web.HTTPPreconditionFailed(text="ClusterIds should not be null or empty")
    if "global" in names:
        raise web.HTTPPreconditionFailed(text="Cannot specify global in the list of replication clusters")
    if is_topic and choice.own not in names:
        raise web.HTTPPreconditionFailed(text="Can not remove local cluster from the local topic-level replication "
                                              "clusters policy")
    for name in names:
        if name not in choice.known:
            raise web.HTTPForbidden(text=f"Invalid cluster id: {name}")
    for name in names:
        if name not in choice.of_tenant:
            raise web.HTTPForbidden(text=f"Cluster [{name}] is not in the list of allowed clusters list for tenant "
                                         f"[{choice.tenant}]")
        if policy == REPLICATION and choice.of_namespace and name not in choice.of_namespace:
            raise web.HTTPForbidden(text=f"Cluster [{name}] is not in the list of allowed clusters of the namespace")
    if choice.own not in names:
        raise web.HTTPPreconditionFailed(text=f"The list has to name {choice.own}, the cluster of this broker")
    if policy == REPLICATION:
        _refuse_peers(names, choice)
    return sorted(set(names))


def _refuse_peers(names: list[str], choice: Choice) -> None:
    for name in names:
        if together := sorted(set(choice.peers.get(name, ())) & set(names)):
            raise web.HTTPConflict(text=f"{', '.join(together)} replication of a namespace and its peer cluster {name} "
                                        "is not possible")


def refuse_gap(catalogue: Catalogue, namespace: str, allowed: list[str]) -> None:
    """Refuse allowed clusters of a namespace that lack one to which it, or a topic of it, is replicated.  Raises 400.
    """
    lists = catalogue.policies.everywhere(REPLICATION)
    for scope, names in lists.items():
        is_inside = scope == namespace or scope.partition("://")[2].rpartition("/")[0] == namespace
        if is_inside and (missing := sorted(set(names) - set(allowed))):
            raise web.HTTPBadRequest(text=f"Allowed clusters do not contain the replication cluster {missing[0]} of "
                                          f"{scope}. Please remove the replication cluster if the cluster is not "
                                          "allowed for this namespace")


def use_of(catalogue: Catalogue, cluster: str) -> str:
    """Return the place of a list that names the cluster, "" if no list does."""
    for policy in LISTS:
        for scope, names in catalogue.policies.everywhere(policy).items():
            if cluster in names:
                return f"{policy} of {scope}"
    return ""

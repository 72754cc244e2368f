"""Tenants and their namespaces: who administers them, what they hold, and the policies and rights that are set."""
import asyncio
import json
from typing import Any

from geminga.storage.catalogue.policy_declaration import NAMESPACE
from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.page import Pages, Values
from geminga.supervisor.console.pages import policy_rows
from geminga.supervisor.console.rendering import namespace_path

pages = Pages()
_SHOWN = 100                 # tenants, or namespaces, of which a page shows details
# Members of a namespace's object that are shown elsewhere, or say nothing about this broker.
_LEFT_OUT = "auth_policies", "bundles", "latency_stats_sample_rate", "properties", "deleted"


@pages.at("/console/tenants", "tenants.html")
async def tenants(ask: Asking) -> Values:
    names, match = await ask.get("/admin/v2/tenants"), ask.query.get("match", "").strip()
    matching = [name for name in sorted(names) if match.lower() in name.lower()]

    async def row(name: str) -> Values:
        path = ask.quoted(name)
        about, namespaces = await asyncio.gather(ask.maybe(f"/admin/v2/tenants/{path}"),
                                                 ask.maybe(f"/admin/v2/namespaces/{path}"))
        return {"tenant": name, "roles": (about or {}).get("adminRoles", []), "namespaces": len(namespaces or ())}

    rows = await asyncio.gather(*map(row, matching[:_SHOWN]))
    return {"rows": rows, "found": len(matching), "total": len(names), "match": match,
            "commands": ["geminga admin tenants list"]}


@pages.at("/console/tenants/{tenant:[^/]+}", "tenant.html")
async def tenant(ask: Asking) -> Values:
    name = ask.part("tenant")
    path, match = ask.quoted(name), ask.query.get("match", "").strip()
    about, names = await asyncio.gather(ask.get(f"/admin/v2/tenants/{path}"), ask.get(f"/admin/v2/namespaces/{path}"))
    matching = [one for one in sorted(names) if match.lower() in one.partition("/")[2].lower()]

    async def row(namespace: str) -> Values:
        place = namespace_path(namespace)
        topics, kept = await asyncio.gather(ask.maybe(f"/admin/v2/namespaces/{place}/topics", mode="ALL"),
                                            ask.maybe(f"/admin/v2/namespaces/{place}"))
        return {"namespace": namespace.partition("/")[2], "topics": None if topics is None else len(topics),
                "policies": policies_of(kept or {}), "grants": grants_of(namespace, kept or {})}

    rows = await asyncio.gather(*map(row, matching[:_SHOWN]))
    return {"tenant": name, "about": about, "rows": rows, "found": len(matching), "total": len(names), "match": match,
            "commands": [f"geminga admin tenants get {name}", f"geminga admin namespaces list {name}"]}


@pages.at("/console/namespaces/{tenant:[^/]+}/{namespace:[^/]+}", "namespace.html", every_s=5)
async def namespace(ask: Asking) -> Values:
    tenant, own = ask.part("tenant"), ask.part("namespace")
    place, name = namespace_path(f"{tenant}/{own}"), f"{tenant}/{own}"
    kept, topics, table, subscriptions, policies = await asyncio.gather(
        ask.maybe(f"/admin/v2/namespaces/{place}"),
        ask.maybe(f"/admin/v2/namespaces/{place}/topics", mode="ALL"),
        ask.get(f"/ops/v1/topics/{place}", sort="backlog", limit=1_000),
        ask.maybe(f"/ops/v1/subscriptions/{place}", limit=0),
        policy_rows.policies_of(ask, name, NAMESPACE))
    rows = table["rows"]
    return {"tenant": tenant, "own": own, "namespace": name, "kept": kept,
            "policies": policies, "grants": grants_of(name, kept or {}),
            "properties": (kept or {}).get("properties", {}),
            "numbers": {"topics": table["total"] if topics is None else len(topics),
                        "subscriptions": (subscriptions or {}).get("total"),
                        **{key: sum(row[key] or 0 for row in rows) for key in (
                            "backlog", "storage_bytes", "rate_in", "rate_out", "producers", "consumers")}},
            "is_whole": not table["more"],
            "commands": [f"geminga topics '{name}'", f"geminga admin namespaces policies {name}",
                         f"geminga admin namespaces permissions {name}"]}


def policies_of(kept: dict[str, Any]) -> list[tuple[str, str]]:
    """Return name and value, as JSON, of the policies that are set for a namespace, by its object of REST."""
    return [(name, json.dumps(value, ensure_ascii=False)) for name, value in sorted(kept.items())
            if name not in _LEFT_OUT and _is_set(name, value)]


def _is_set(name: str, value: Any) -> bool:
    """Whether a member of a namespace's object says something; Pulsar answers with defaults too."""
    defaults = {"schema_compatibility_strategy": "UNDEFINED", "subscription_auth_mode": "None",
                "is_allow_auto_update_schema": True, "offload_threshold": -1, "offload_threshold_in_seconds": -1}
    if name == "replication_clusters":      # a list of only this broker's own cluster is the default
        return len(value) > 1
    return value not in (None, {}, [], False) and value != defaults.get(name)


def grants_of(namespace: str, kept: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each grant of a namespace's object: of the namespace, its topics, and its subscriptions."""
    rights = kept.get("auth_policies", {})
    place = {"namespace": namespace, "topic": "", "subscription": ""}
    rows = [place | {"role": role, "actions": actions}
            for role, actions in sorted(rights.get("namespace_auth", {}).items())]
    rows += [place | {"topic": topic, "role": role, "actions": actions}
             for topic, grants in sorted(rights.get("destination_auth", {}).items())
             for role, actions in sorted(grants.items())]
    return rows + [place | {"subscription": name, "role": role, "actions": ["consume"]}
                   for name, roles in sorted(rights.get("subscription_auth_roles", {}).items())
                   for role in sorted(roles)]

"""Actions on tenants and namespaces."""
import shlex

from geminga.supervisor.admin.requests.request_parts import TOPICS
from geminga.supervisor.console.actions.action import Actions, Field, Plan, Values, Wrong
from geminga.supervisor.console.asking import Asking, Refused
from geminga.supervisor.console.rendering import counted, text
from geminga.supervisor.wording import human

actions = Actions()
_TENANT = "/admin/v2/tenants/{}"
_ROLES = Field("roles", is_required=False)


def _names(typed: str) -> list[str]:
    """Return the names of a list with commas."""
    return list(dict.fromkeys(name for one in typed.split(",") if (name := one.strip())))


def _body(ask: Asking, roles: list[str]) -> dict[str, list[str]]:
    return {"adminRoles": roles, "allowedClusters": [ask.request.app[TOPICS].config.cluster_name]}


def _told(roles: list[str]) -> str:
    return text("action.create-tenant.by", roles=", ".join(roles)) if roles else text("action.create-tenant.by_super")


@actions.named("create-tenant", "", Field("tenant"), _ROLES)
async def create_tenant(ask: Asking, values: Values) -> Plan:
    tenant, roles = values["tenant"].strip(), _names(values["roles"])
    if tenant in await ask.get("/admin/v2/tenants"):
        raise Wrong(text("action.create-tenant.exists"))
    command = ["geminga", "admin", "tenants", "create", tenant, *(["--admin-roles", ",".join(roles)] if roles else [])]
    return Plan("PUT", _TENANT.format(ask.quoted(tenant)), text("action.create-tenant.effect") + " " + _told(roles),
                shlex.join(command), _body(ask, roles), next=f"/console/tenants/{ask.quoted(tenant)}")


@actions.named("update-tenant", "tenant", Field("roles"))
async def update_tenant(ask: Asking, values: Values) -> Plan:
    tenant, roles = values["tenant"], _names(values["roles"])
    before = (await ask.get(_TENANT.format(ask.quoted(tenant))))["adminRoles"]
    gone = [role for role in before if role not in roles]
    effect = _told(roles) + (" " + text("action.update-tenant.lose", roles=", ".join(gone)) if gone else "")
    clusters = (await ask.get(_TENANT.format(ask.quoted(tenant))))["allowedClusters"]
    return Plan("POST", _TENANT.format(ask.quoted(tenant)), effect,
                shlex.join(["geminga", "admin", "tenants", "update", tenant, "--admin-roles", ",".join(roles)]),
                {"adminRoles": roles, "allowedClusters": clusters})


async def _contents(ask: Asking, namespaces: list[str]) -> tuple[int, str]:
    """Return the number of topics in namespaces, and a sentence about what goes with them."""
    topics = subscriptions = backlog = stored = 0
    for name in namespaces:
        tenant, _, own = name.partition("/")
        place = f"{ask.quoted(tenant)}/{ask.quoted(own)}"
        topics += len(await ask.get(f"/admin/v2/namespaces/{place}/topics", mode="ALL"))
        rows = (await ask.get(f"/ops/v1/topics/{place}", limit=1_000, sort="storage_bytes"))["rows"]
        subscriptions += sum(row["subscriptions"] or 0 for row in rows)
        backlog += sum(row["backlog"] or 0 for row in rows)
        stored += sum(row["storage_bytes"] or 0 for row in rows)
    return topics, counted("action.delete-namespace.contents", topics, subscriptions=human.count(subscriptions),
                           backlog=human.count(backlog), stored=human.size(stored))


@actions.named("delete-tenant", "tenant", Field("force", "check", is_required=False), is_dangerous=True)
async def delete_tenant(ask: Asking, values: Values) -> Plan:
    tenant, is_forced = values["tenant"], values["force"] == "true"
    names = await ask.get(f"/admin/v2/namespaces/{ask.quoted(tenant)}")
    storage = ask.request.app[TOPICS].storage
    may_force = storage.force_delete_tenants and storage.force_delete_namespaces
    parts, is_possible = [counted("action.delete-tenant.effect", len(names))], True
    if names:
        topics, contents = await _contents(ask, names)
        parts += [contents] if topics else []
        if not is_forced or not may_force:
            is_possible = False
            parts.append(text("action.delete-tenant.not_empty" if may_force else "action.delete-tenant.not_allowed"))
    return Plan("DELETE", _TENANT.format(ask.quoted(tenant)) + ("?force=true" if is_forced else ""), " ".join(parts),
                shlex.join(["geminga", "admin", "tenants", "delete", tenant, *["--force"] * is_forced]),
                next="/console/tenants", is_possible=is_possible)


@actions.named("create-namespace", "tenant", Field("namespace"))
async def create_namespace(ask: Asking, values: Values) -> Plan:
    tenant, own = values["tenant"], values["namespace"].strip().removeprefix(values["tenant"] + "/")
    if f"{tenant}/{own}" in await ask.get(f"/admin/v2/namespaces/{ask.quoted(tenant)}"):
        raise Wrong(text("action.create-namespace.exists"))
    place = f"{ask.quoted(tenant)}/{ask.quoted(own)}"
    return Plan("PUT", f"/admin/v2/namespaces/{place}", text("action.create-namespace.effect"),
                shlex.join(["geminga", "admin", "namespaces", "create", f"{tenant}/{own}"]), {},
                next=f"/console/namespaces/{place}")


@actions.named("delete-namespace", "namespace", Field("force", "check", is_required=False), is_dangerous=True)
async def delete_namespace(ask: Asking, values: Values) -> Plan:
    name, is_forced = values["namespace"], values["force"] == "true"
    tenant, _, own = name.partition("/")
    topics, contents = await _contents(ask, [name])
    may_force = ask.request.app[TOPICS].storage.force_delete_namespaces
    parts, is_possible = [text("action.delete-namespace.effect")], True
    if topics:
        parts.append(contents)
        if not is_forced or not may_force:
            is_possible = False
            parts.append(text(
                "action.delete-namespace.not_allowed" if not may_force else "action.delete-namespace.not_empty"))
    place = f"{ask.quoted(tenant)}/{ask.quoted(own)}"
    return Plan("DELETE", f"/admin/v2/namespaces/{place}" + ("?force=true" if is_forced else ""), " ".join(parts),
                shlex.join(["geminga", "admin", "namespaces", "delete", name, *["--force"] * is_forced]),
                next=f"/console/tenants/{ask.quoted(tenant)}", is_possible=is_possible)


@actions.named("set-namespace-property", "namespace", Field("key"), Field("value"))
async def set_namespace_property(ask: Asking, values: Values) -> Plan:
    name, key, value = values["namespace"], values["key"].strip(), values["value"].strip()
    tenant, _, own = name.partition("/")
    path = f"/admin/v2/namespaces/{ask.quoted(tenant)}/{ask.quoted(own)}"
    try:
        before = (await ask.get(f"{path}/properties")).get(key)
    except Refused as refused:
        raise Wrong(refused.text) from None
    effect = text("action.set-namespace-property.effect") if before is None else text(
        "action.set-namespace-property.replaces", before=before)
    return Plan("PUT", f"{path}/property/{ask.quoted(key)}/{ask.quoted(value)}", effect, shlex.join(
        ["geminga", "admin", "namespaces", "set-property", name, "--key", key, "--value", value]))

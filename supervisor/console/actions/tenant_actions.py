"""Actions on tenants and namespaces."""
from geminga.supervisor.admin.requests.request_parts import TOPICS
from geminga.supervisor.console.actions.action import Actions, Field, Plan, Values, Wrong, command
from geminga.supervisor.console.asking import Asking, QuestionRefused
from geminga.supervisor.console.rendering import counted, namespace_path, text
from geminga.supervisor.wording import human

actions = Actions()
_TENANT = "/admin/v2/tenants/{}"
_ROLES = Field("roles", is_required=False)


def _names(typed: str) -> list[str]:
    """Return the names of a list with commas."""
    return list(dict.fromkeys(name for part in typed.split(",") if (name := part.strip())))


def _told(roles: list[str]) -> str:
    return text("action.create-tenant.by", roles=", ".join(roles)) if roles else text("action.create-tenant.by_super")


@actions.named("create-tenant", "", Field("tenant"), _ROLES)
async def create_tenant(ask: Asking, values: Values) -> Plan:
    tenant, roles = values["tenant"].strip(), _names(values["roles"])
    if tenant in await ask.get("/admin/v2/tenants"):
        raise Wrong(text("action.create-tenant.exists"))
    clusters = [ask.request.app[TOPICS].config.cluster_name]
    return Plan("PUT", _TENANT.format(ask.quoted(tenant)), text("action.create-tenant.effect") + " " + _told(roles),
                command("admin", "tenants", "create", tenant, *["--admin-roles", ",".join(roles)] * bool(roles)),
                {"adminRoles": roles, "allowedClusters": clusters}, next=f"/console/tenants/{ask.quoted(tenant)}")


@actions.named("update-tenant", "tenant", Field("roles"))
async def update_tenant(ask: Asking, values: Values) -> Plan:
    tenant, roles = values["tenant"], _names(values["roles"])
    before = await ask.get(_TENANT.format(ask.quoted(tenant)))
    gone = [role for role in before["adminRoles"] if role not in roles]
    effect = _told(roles) + (" " + text("action.update-tenant.lose", roles=", ".join(gone)) if gone else "")
    return Plan("POST", _TENANT.format(ask.quoted(tenant)), effect,
                command("admin", "tenants", "update", tenant, "--admin-roles", ",".join(roles)),
                {"adminRoles": roles, "allowedClusters": before["allowedClusters"]})


async def _contents(ask: Asking, namespaces: list[str]) -> tuple[int, str]:
    """Return the number of topics in namespaces, and a sentence about what goes with them."""
    topics = subscriptions = backlog = stored = 0
    for place in map(namespace_path, namespaces):
        topics += len(await ask.get(f"/admin/v2/namespaces/{place}/topics", mode="ALL"))
        rows = (await ask.get(f"/ops/v1/topics/{place}", limit=1_000, sort="storage_bytes"))["rows"]
        subscriptions += sum(row["subscriptions"] or 0 for row in rows)
        backlog += sum(row["backlog"] or 0 for row in rows)
        stored += sum(row["storage_bytes"] or 0 for row in rows)
    if not topics:
        return 0, ""
    return topics, counted("action.delete-namespace.contents", topics, subscriptions=human.count(subscriptions),
                           backlog=human.count(backlog), stored=human.size(stored))


@actions.named("delete-tenant", "tenant", Field("force", "check", is_required=False), is_dangerous=True)
async def delete_tenant(ask: Asking, values: Values) -> Plan:
    tenant, storage = values["tenant"], ask.request.app[TOPICS].storage
    names = await ask.get(f"/admin/v2/namespaces/{ask.quoted(tenant)}")
    _, contents = await _contents(ask, names)
    obstacle = ""
    if names and not (storage.force_delete_tenants and storage.force_delete_namespaces):
        obstacle = text("action.delete-tenant.not_allowed")
    elif names and values["force"] != "true":
        obstacle = text("action.delete-tenant.not_empty")
    return _deleting(values, "tenant", [counted("action.delete-tenant.effect", len(names)), contents, obstacle],
                     _TENANT.format(ask.quoted(tenant)), "/console/tenants", is_possible=not obstacle)


def _deleting(values: Values, what: str, parts: list[str], path: str, next: str, *, is_possible: bool) -> Plan:
    """Return the plan to delete a tenant or namespace.  parts: sentences that say what goes, and what is in the way."""
    is_forced = values["force"] == "true"
    return Plan("DELETE", path + ("?force=true" if is_forced else ""), " ".join(filter(None, parts)),
                command("admin", f"{what}s", "delete", values[what], *["--force"] * is_forced), next=next,
                is_possible=is_possible)


@actions.named("create-namespace", "tenant", Field("namespace"))
async def create_namespace(ask: Asking, values: Values) -> Plan:
    tenant, own = values["tenant"], values["namespace"].strip().removeprefix(values["tenant"] + "/")
    if f"{tenant}/{own}" in await ask.get(f"/admin/v2/namespaces/{ask.quoted(tenant)}"):
        raise Wrong(text("action.create-namespace.exists"))
    path = f"namespaces/{namespace_path(f'{tenant}/{own}')}"
    return Plan("PUT", f"/admin/v2/{path}", text("action.create-namespace.effect"),
                command("admin", "namespaces", "create", f"{tenant}/{own}"), {}, next=f"/console/{path}")


@actions.named("delete-namespace", "namespace", Field("force", "check", is_required=False), is_dangerous=True)
async def delete_namespace(ask: Asking, values: Values) -> Plan:
    name = values["namespace"]
    topics, contents = await _contents(ask, [name])
    obstacle = ""
    if topics and not ask.request.app[TOPICS].storage.force_delete_namespaces:
        obstacle = text("action.delete-namespace.not_allowed")
    elif topics and values["force"] != "true":
        obstacle = text("action.delete-namespace.not_empty")
    return _deleting(values, "namespace", [text("action.delete-namespace.effect"), contents, obstacle],
                     f"/admin/v2/namespaces/{namespace_path(name)}",
                     f"/console/tenants/{ask.quoted(name.partition('/')[0])}", is_possible=not obstacle)


@actions.named("set-namespace-property", "namespace", Field("key"), Field("value"))
async def set_namespace_property(ask: Asking, values: Values) -> Plan:
    name, key, value = values["namespace"], values["key"].strip(), values["value"].strip()
    path = f"/admin/v2/namespaces/{namespace_path(name)}"
    try:
        before = (await ask.get(f"{path}/properties")).get(key)
    except QuestionRefused as refused:
        raise Wrong(refused.text) from None
    effect = text("action.set-namespace-property.effect") if before is None else text(
        "action.set-namespace-property.replaces", before=before)
    return Plan("PUT", f"{path}/property/{ask.quoted(key)}/{ask.quoted(value)}", effect,
                command("admin", "namespaces", "set-property", name, "--key", key, "--value", value))

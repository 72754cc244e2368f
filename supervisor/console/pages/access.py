"""Rights: who looks at the page, grants, whether a role may do something, and how tokens are made."""
import asyncio
import json

from yarl import URL

from geminga.supervisor.admin.requests.authentication import AUTHENTICATOR, IDENTITY
from geminga.supervisor.admin.requests.authorization import AUTHORIZATION, refusal
from geminga.supervisor.admin.requests.request_parts import TOPICS
from geminga.supervisor.console.actions.action import Wrong, topic_named
from geminga.supervisor.console.asking import Asking, QuestionRefused
from geminga.supervisor.console.page import Pages, Values
from geminga.supervisor.console.pages.tenants import grants_of
from geminga.supervisor.console.rendering import namespace_path, topic_path
from geminga.workers.identity.authorization import ACTIONS

pages = Pages()
_NAMESPACES = 100            # whose grants a page shows
_GRANTS = 500                # rows of a page
_MAKING = "geminga admin tokens create --private-key FILE --subject ROLE --expiry-time 30d"
_MAY_EVERYTHING = "/ops/v1/status"      # asked by super users only


@pages.at("/console/access", "access.html")
async def access(ask: Asking) -> Values:
    query = ask.query
    tenant, role = query.get("tenant", "").strip(), query.get("role", "").strip()
    names = await _namespaces(ask, tenant)
    kept = await asyncio.gather(*(ask.maybe(f"/admin/v2/namespaces/{namespace_path(name)}")
                                  for name in (names or ())[:_NAMESPACES]))
    grants = [row for name, one in zip(names or (), kept, strict=False) if one is not None
              for row in grants_of(name, one) if not role or role.lower() in row["role"].lower()]
    app, identity = ask.request.app, ask.request[IDENTITY]
    is_super = not await refusal(ask.request.clone(method="GET", rel_url=URL(_MAY_EVERYTHING)))
    authentication = app[TOPICS].config.authentication
    return {"who": identity.role, "method": identity.method, "is_super": is_super,
            "is_authorized": app[AUTHORIZATION].is_enabled, "is_on": app[AUTHENTICATOR].is_on,
            "methods": authentication.methods, "has_namespaces": names is not None,
            "grants": grants[:_GRANTS], "found": len(grants), "tenant": tenant, "filter": role,
            "namespaces": (names or [])[:_NAMESPACES], "left_out": max(0, len(names or ()) - _NAMESPACES),
            "question": await _question(ask), "actions": ACTIONS, "asked": query,
            "making": _MAKING, "commands": ["geminga admin namespaces permissions TENANT/NAMESPACE", _MAKING]}


async def _namespaces(ask: Asking, tenant: str) -> list[str] | None:
    """Return the namespaces whose grants are shown: of one tenant, or of all; None if the role may not list them."""
    tenants = [tenant] if tenant else await ask.maybe("/admin/v2/tenants")
    if tenants is None:
        return None
    namespaces: list[str] = []
    for name in sorted(tenants):
        if (names := await ask.maybe(f"/admin/v2/namespaces/{ask.quoted(name)}")) is None and tenant:
            return None
        namespaces += sorted(names or ())
        if len(namespaces) > _NAMESPACES:
            break
    return namespaces


async def _question(ask: Asking) -> Values | None:
    """Return the answer to the question whether a role may do something; None if none was asked."""
    role, topic = ask.query.get("who", "").strip(), ask.query.get("topic", "").strip()
    if not role or not topic:
        return None
    try:
        name = topic_named(topic)
        answer = await ask.get(f"/ops/v1/can-i/{topic_path(name)}", role=role,
                               action=ask.query.get("action", ACTIONS[0]),
                               subscription=ask.query.get("subscription", "").strip() or None)
    except (QuestionRefused, Wrong) as error:
        return {"problem": str(error)}
    return {"problem": "", "topic": name, **answer, "could_grant": _texts(answer.get("could_grant"))}


def _texts(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else json.dumps(value)

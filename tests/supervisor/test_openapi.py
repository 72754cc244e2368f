"""/openapi.json: a valid description, which has every route of REST, and nothing else."""
import json
import re
from urllib.parse import quote

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from geminga.storage.catalogue.policy_table import TABLE
from geminga.supervisor.admin import app  # noqa: F401 - declares the routes of REST
from geminga.supervisor.admin.requests.rights import DEMANDS
from geminga.supervisor.admin.resources import http_messages, websockets  # noqa: F401 - likewise

from ..harness import request

_T = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"


@pytest.fixture(scope="module")
def document(broker):
    status, text = request("GET", f"{broker.http_url}/openapi.json")
    assert status == 200
    return json.loads(text)


def operations(document):
    return {(method.upper(), path): one
            for path, methods in document["paths"].items() for method, one in methods.items()}


def named(document, method, path):
    """Return the names of an operation's parameters of the query."""
    return {one["name"] for one in operations(document)[method, path]["parameters"] if one["in"] == "query"}


def body(document, method, path):
    return operations(document)[method, path]["requestBody"]["content"]["application/json"]["schema"]


@pytest.mark.slow
def test_the_description_is_valid(document):
    assert document["openapi"].startswith("3.1")
    OpenAPIV31SpecValidator(document).validate()


def test_every_route_is_described_and_nothing_else(document):
    """Every route has a right, as another test holds; a route for every method is described as four."""
    every = {(method, path) for known, path in DEMANDS
             for method in (("GET", "PUT", "POST", "DELETE") if known == "*" else (known,))}
    assert operations(document).keys() == every


def test_every_operation_has_a_summary_its_path_and_its_right(document):
    every = operations(document)
    assert [at for at, one in every.items() if not one["summary"] or one["summary"].endswith(".")] == []
    assert [(method, path) for (method, path), one in every.items()
            if [part["name"] for part in one["parameters"] if part["in"] == "path"]
            != re.findall(r"\{(\w+)\}", path)] == []
    demands = {(method, path): DEMANDS.get((method, path), DEMANDS.get(("*", path))) for method, path in every}
    assert {at: one.get("x-geminga-right") and one["x-geminga-right"]["action"] for at, one in every.items()} == {
        at: demand and demand.action for at, demand in demands.items()}
    assert [at for at, demand in demands.items() if demand and str(demand.status) not in every[at]["responses"]] == []


def test_parameters_are_those_that_handlers_and_their_helpers_read(document):
    assert "force" in named(document, "DELETE", _T)
    assert {"limit", "skip", "payload", "order", "from", "key", "property", "grep"} <= named(
        document, "GET", "/ops/v1/messages/{domain}/{tenant}/{namespace}/{topic}")
    assert {"topics", "topicsPattern"} <= named(document, "GET", "/ws/v3/{kind}/{rest}")
    assert named(document, "POST", f"{_T}/messageTTL") == {"messageTTL"}
    assert {"max", "wait"} <= named(
        document, "GET", "/topics/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}")
    [domain] = [one for one in operations(document)["GET", f"{_T}/stats"]["parameters"] if one["name"] == "domain"]
    assert domain["schema"]["enum"] == ["persistent", "non-persistent"]


def test_bodies_of_policies_are_those_of_their_table(document):
    for name, policy in TABLE.items():
        for route, prefix in ((policy.namespace, "/admin/v2/namespaces/{tenant}/{namespace}"), (policy.topic, _T)):
            if route is None or route.kind or route.query or route.implied is not None:
                continue
            schema = body(document, route.method, f"{prefix}/{route.path}")
            parts = [part.json for part in TABLE[name].parts if part.json]
            assert list(schema.get("properties", ())) == parts
    assert body(document, "POST", f"{_T}/retention")["properties"]["retentionSizeInMB"]["type"] == "integer"
    assert "messages" in body(document, "POST", "/topics/{domain}/{tenant}/{namespace}/{topic}")["properties"]
    assert "requestBody" not in operations(document)["GET", f"{_T}/stats"]
    assert "requestBody" in operations(document)["PUT", "/admin/v2/tenants/{tenant}"]


@pytest.mark.slow
def test_the_console_shows_every_operation(broker, document):
    def page(more):
        status, html = request("GET", f"{broker.http_url}/console/rest{more}")
        assert status == 200
        return html

    first = page("")
    subjects = {one["tags"][0] for one in operations(document).values()}
    assert subjects and [name for name in subjects if f'?subject={quote(name, safe="")}"' not in first] == []
    shown = "".join(page(f"?subject={name}") for name in subjects)
    assert [at for at in operations(document) if f"<code>{' '.join(at)}</code>" not in shown] == []
    assert page("?match=set+retention").count("<details>") == 4

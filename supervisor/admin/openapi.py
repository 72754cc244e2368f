"""The description of REST in OpenAPI 3.1: every route of the application, without the pages of the console.

    paths, methods       the application's router
    summary              the first sentence of the handler's docstring, and the rest as description
    parameters           the path's; those of the query that the handler, and the functions it calls, read
    bodies               the table of policies; elsewhere only whether the handler reads one
    rights               the routes' own

So a description can be short, but says nothing that the code does not do.
"""
import ast
import asyncio
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from aiohttp import web

from geminga.proto.responses import VERSION
from geminga.storage.catalogue.policy_declaration import Part, Policy, Route
from geminga.supervisor.admin.requests import rights
from geminga.supervisor.admin.requests.authentication import is_page
from geminga.supervisor.admin.requests.request_parts import READ_ELSEWHERE, ReadElsewhere
from geminga.supervisor.admin.requests.rights import demand_of
from geminga.supervisor.admin.resources.policies import SETTERS

routes = rights.Routes()
PATH = "/openapi.json"
DOCUMENT = web.AppKey("openapi", dict)       # made when it is first asked for
_ANY = "get", "put", "post", "delete"       # methods of a route for all of them
_OURS = "geminga.supervisor."
_BODIES = {"body_of", "properties_of"}       # functions that read a request's body
_GROUP = re.compile(r"\(\?P<(\w+)>((?:[^()]|\([^()]*\))*)\)")
_CHOICES = re.compile(r"[\w-]+(?:\|[\w-]+)+")
_USUAL = "[^{}/]+", "[^/]+", ".*"            # patterns that say nothing
_TYPES = {"number": "integer", "decimal": "number", "true or false": "boolean", "text": "string"}
_REASON = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}


class Reads(NamedTuple):
    """The parts of a request that a handler reads, beside its path."""

    query: frozenset[str]
    has_body: bool


@routes.get(PATH, right=None)
async def openapi(request: web.Request) -> web.Response:
    """Answer with this description of REST, in OpenAPI 3.1."""
    app = request.app
    if not app[DOCUMENT]:      # in a thread, as it takes a second
        app[DOCUMENT].update(await asyncio.to_thread(described, app))
    return web.json_response(app[DOCUMENT])


def described(app: web.Application) -> dict[str, Any]:
    """Return the description of an application's routes."""
    paths: dict[str, dict[str, Any]] = {}
    tags: dict[str, None] = {}
    for method, path, pattern, handler in _routes(app):
        tag = _tag(path)
        tags[tag] = None
        elsewhere = app[READ_ELSEWHERE].get(handler, ReadElsewhere({}))
        operation = _operation(method.upper(), path, pattern, handler, elsewhere) | {"tags": [tag]}
        paths.setdefault(path, {})[method] = operation
    schemes = {"token": {"type": "http", "scheme": "bearer"}, "password": {"type": "http", "scheme": "basic"},
               "certificate": {"type": "mutualTLS"}}
    error = {"type": "object", "required": ["reason"], "properties": {"reason": {"type": "string"}}}
    return {"openapi": "3.1.0", "info": {"title": "Geminga", "version": VERSION},
            "servers": [{"url": "/"}], "security": [{}, *({name: []} for name in schemes)],
            "tags": [{"name": name} for name in sorted(tags)], "paths": dict(sorted(paths.items())),
            "components": {"securitySchemes": schemes, "schemas": {"Error": error}}}


def _routes(app: web.Application) -> Iterator[tuple[str, str, str, Callable[..., Any]]]:
    """Yield (method, path, the path's regular expression, handler) of each route."""
    for route in app.router.routes():
        resource = route.resource
        assert resource is not None      # every route here has one
        path = resource.canonical
        if is_page(path) or route.method == "HEAD":
            continue
        pattern = resource.get_info().get("pattern")
        for method in _ANY if route.method == "*" else (route.method.lower(),):
            yield method, path, pattern.pattern if pattern is not None else "", route.handler


def _tag(path: str) -> str:
    """Return the subject of a path: its first part that is no version and no place."""
    parts = [part.partition("{")[0] or part for part in path.split("/") if part and not re.fullmatch(r"v\d", part)]
    return "/".join(parts[:2]) if parts[0] in ("admin", "ops", "lookup") and not parts[1].startswith("{") else (
        "admin/topics" if parts[0] == "admin" else parts[0])


def _operation(method: str, path: str, pattern: str, handler: Callable[..., Any],
               elsewhere: ReadElsewhere) -> dict[str, Any]:
    reads, setter = read_by(handler), SETTERS.get(handler)
    summary, _, more = (inspect.getdoc(handler) or "").partition("\n\n")
    operation: dict[str, Any] = {"summary": " ".join(summary.split()).removesuffix(".")}
    if more:
        operation["description"] = " ".join(more.split())
    operation["parameters"] = [*_of_path(path, pattern), *_of_query(reads, setter, elsewhere)]
    body = elsewhere.body or (_policy_schema(setter[0]) if setter is not None else {})
    has_body = reads.has_body if setter is None else not (setter[1].query or setter[1].implied is not None)
    if has_body or elsewhere.body:
        operation["requestBody"] = {"content": {"application/json": {"schema": body}}}
    demand = demand_of(method, path)
    operation["responses"] = {"2XX": {"description": "The answer"},
                              "default": {"description": "An error", "content": _REASON}}
    if demand is not None:
        operation["x-geminga-right"] = {"action": demand.action, "of": demand.of or "broker"}
        operation["responses"][str(demand.status)] = {"description": f"The role may not {demand.action} this "
                                                      f"{demand.of or 'broker'}", "content": _REASON}
    return operation


# -- parameters

def _of_path(path: str, pattern: str) -> list[dict[str, Any]]:
    said = dict(_GROUP.findall(pattern))
    parameters = []
    for name in re.findall(r"\{(\w+)\}", path):
        schema: dict[str, Any] = {"type": "string"}
        if _CHOICES.fullmatch(said.get(name, "")):
            schema["enum"] = said[name].split("|")
        elif said.get(name, ".*") not in _USUAL:
            schema["pattern"] = f"^{said[name]}$"
        parameters.append({"name": name, "in": "path", "required": True, "schema": schema})
    return parameters


def _of_query(reads: Reads, setter: tuple[Policy, Route] | None, elsewhere: ReadElsewhere) -> list[dict[str, Any]]:
    schemas = {name: {"type": "string"} for name in sorted(reads.query)} | elsewhere.query
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "query", "schema": schema} for name, schema in schemas.items()]
    if setter is not None and setter[1].query:
        parameters.append({"name": setter[1].query, "in": "query", "schema": _policy_schema(setter[0])})
    return parameters


def _policy_schema(policy: Policy) -> dict[str, Any]:
    if not policy.is_object:
        return _part_schema(policy.parts[0])
    return {"type": "object", "properties": {part.json: _part_schema(part) for part in policy.parts}}


def _part_schema(part: Part) -> dict[str, Any]:
    choices = list(part.type.choices)
    if part.type.name == "list":
        return {"type": "array", "items": {"type": "string", "enum": choices} if choices else {"type": "string"}}
    schema: dict[str, Any] = {"type": _TYPES[part.type.name]}
    if choices:
        schema["enum"] = choices
    if part.least is not None:
        schema["minimum"] = part.least
    if part.most is not None:
        schema["maximum"] = part.most
    return schema


# -- what a handler reads, by its source

def read_by(handler: Callable[..., Any]) -> Reads:
    """Return what a handler reads of a request, also by the functions of ours that it calls."""
    query: set[str] = set()
    has_body, seen, ahead = False, set(), [inspect.unwrap(handler)]
    while ahead:
        function = ahead.pop()
        if function not in seen:
            seen.add(function)
            reads, called = _own(function)
            query |= reads.query
            has_body |= reads.has_body
            ahead += called
    return Reads(frozenset(query), has_body)


@cache
def _own(function: FunctionType) -> tuple[Reads, tuple[FunctionType, ...]]:
    """Return what a function reads of a request by itself, and the functions of ours that it names."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    named, query, has_body = _names_of_query(tree), set(), False
    called: set[FunctionType] = set()
    for node in ast.walk(tree):
        query |= set(_read_at(node, named))
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            other = _function(function, node)
            if other is not None and other.__module__.startswith(_OURS):
                has_body |= other.__name__ in _BODIES
                called.add(other)
    return Reads(frozenset(query), has_body), tuple(called)


def _names_of_query(tree: ast.AST) -> set[str]:
    """Return the names of variables that stand for the query."""
    names = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            names |= {one.id for one, said in pairs if isinstance(one, ast.Name) and _is_query(said, set())}
    return names


def _is_query(node: ast.AST, named: set[str]) -> bool:
    return node.attr == "query" if isinstance(node, ast.Attribute) else isinstance(node, ast.Name) and node.id in named


def _read_at(node: ast.AST, named: set[str]) -> Iterable[str]:
    """Yield the parameter of the query that an expression reads."""
    name: Any = None
    if isinstance(node, ast.Call) and node.args:
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr in ("get", "getall") and _is_query(called.value, named):
            name = node.args[0]
        elif isinstance(called, ast.Name) and called.id == "is_set":
            name = node.args[1]
    elif isinstance(node, ast.Subscript) and _is_query(node.value, named):
        name = node.slice
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In) and _is_query(node.comparators[0], named):
        name = node.left
    if isinstance(name, ast.Constant) and isinstance(name.value, str):
        yield name.value


def _function(inside: FunctionType, node: ast.Name | ast.Attribute) -> FunctionType | None:
    """Return the function that a name, or MODULE.NAME, stands for in a function; None for anything else."""
    if isinstance(node, ast.Name):
        called = inside.__globals__.get(node.id)
    else:
        module = inside.__globals__.get(node.value.id) if isinstance(node.value, ast.Name) else None
        called = getattr(module, node.attr, None) if isinstance(module, ModuleType) else None
    return called if isinstance(called, FunctionType) else None

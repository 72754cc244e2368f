"""The routes of REST, as /openapi.json describes them."""
from collections import Counter
from typing import Any

from geminga.supervisor.admin.openapi import PATH
from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.page import Pages, Values

pages = Pages()
_SHOWN = 200                 # requests on a page: more than any subject has
_VERBS = "get", "put", "post", "delete", "patch"


@pages.at("/console/rest", "rest.html")
async def rest(ask: Asking) -> Values:
    match, subject = (ask.query.get(name, "").strip() for name in ("match", "subject"))
    every = [_row(method, path, methods[method]) for path, methods in (await ask.get(PATH))["paths"].items()
             for method in sorted(methods, key=_VERBS.index)]
    words = match.lower().split()
    matching = [row for row in every if row["subject"] == subject or (words
             and all(word in f"{row['method']} {row['path']} {row['summary']}".lower() for word in words))]
    return {"match": match, "subject": subject, "subjects": sorted(Counter(row["subject"] for row in every).items()),
            "found": len(matching) if words or subject else len(every), "rows": matching[:_SHOWN], "address": PATH,
            "commands": []}


def _row(method: str, path: str, said: dict[str, Any]) -> Values:
    body = said.get("requestBody", {}).get("content", {}).get("application/json")
    return {"subject": said["tags"][0], "method": method.upper(), "path": path, "summary": said["summary"],
            "description": said.get("description", ""), "right": said.get("x-geminga-right"),
            "parameters": said["parameters"], "has_body": body is not None, "body": body and body["schema"]}

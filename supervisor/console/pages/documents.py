"""The documents and the runbook, which every role may read."""
import asyncio

from aiohttp import web

from geminga.supervisor.console import document_pages
from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.page import Pages, Values

pages = Pages()
_AT = "/usr/share/doc/geminga"


@pages.at("/console/documents", "documents.html")
async def documents(ask: Asking) -> Values:
    text = ask.query.get("match", "").strip()
    found = await asyncio.to_thread(document_pages.search, text) if text else []
    titles = [(name, document_pages.title_of(name)) for name in document_pages.pages()]
    return {"match": text, "found": found, "address_of": document_pages.address_of,
            "guides": [pair for pair in titles if not pair[0].startswith("runbook/")],
            "runbook": [pair for pair in titles if pair[0].startswith("runbook/")],
            "commands": [f"ls {_AT}/docs {_AT}/runbook"]}


@pages.at("/console/documents/{page:.+}", "document.html")
async def document(ask: Asking) -> Values:
    name = ask.part("page")
    if name not in document_pages.pages():
        raise web.HTTPNotFound(text="There is no such page")
    # In a thread: the longest page takes a tenth of a second the first time.
    return {"name": name, "title": document_pages.title_of(name), "commands": [f"less {_AT}/{name}"],
            "html": await asyncio.to_thread(document_pages.as_html, name)}

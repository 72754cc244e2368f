"""Scripts and styles of the console: from the package itself, under addresses that change with their content."""
import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from geminga.supervisor.admin.requests.authentication import STATIC

FOLDER = Path(__file__).resolve().parent / "static"
PREFIX = STATIC
_KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_DIGITS = 12
routes = web.RouteTableDef()


class _File(NamedTuple):
    content: bytes
    kind: str
    digest: str


@cache
def _files() -> dict[str, _File]:
    """Return {name: file} of all files, which stay in memory: together they are smaller than one page of messages."""
    files = {}
    for path in sorted(FOLDER.iterdir()):
        if path.suffix in _KINDS:
            content = path.read_bytes()
            files[path.name] = _File(content, _KINDS[path.suffix], hashlib.sha256(content).hexdigest()[:_DIGITS])
    return files


def version() -> str:
    """Return a digest of all files: scripts import each other by relative names, so all share one folder's name."""
    return hashlib.sha256("".join(file.digest for file in _files().values()).encode()).hexdigest()[:_DIGITS]


@cache
def address_of(name: str) -> str:
    """Return the address of a file, which browsers may keep for ever."""
    assert name in _files(), name
    return f"{PREFIX}{version()}/{name}"


@routes.get(PREFIX + "{version}/{name}")
async def file(request: web.Request) -> web.Response:
    """Answer with a file.  One of another version is answered too, but not to be kept: a page may be older."""
    file = _files().get(request.match_info["name"])
    if file is None:
        raise web.HTTPNotFound(text="There is nothing under this path")
    is_this = request.match_info["version"] == version()
    return web.Response(body=file.content, content_type=file.kind, charset="utf-8",
                        headers={"Cache-Control": "public, max-age=31536000, immutable" if is_this else "no-store"})

"""Backups requested over HTTP, and the last one.  Each runs in a separate process, as `geminga backup` does."""
import os
from pathlib import Path

from aiohttp import web

from geminga.supervisor.admin.requests import rights
from geminga.supervisor.admin.requests.authentication import IDENTITY
from geminga.supervisor.admin.requests.jobs import answer_of
from geminga.supervisor.admin.requests.request_parts import TOPICS, body_of, catalogue_of
from geminga.supervisor.tasks.backups import last_backup
from geminga.workers.identity.authentication import NOT_ASKED

routes = rights.Routes()


@routes.get("/ops/v1/backup")
async def last(request: web.Request) -> web.Response:
    """Answer with the report of the last backup."""
    report = last_backup(request.app[TOPICS].config.data_dir)
    if report is None:
        raise web.HTTPNotFound(text="There was no backup yet")
    return web.json_response(report)


@routes.post("/ops/v1/backup")
async def make(request: web.Request) -> web.Response:
    """Make a backup, and answer with its report.

    The body is {"folder": absolute path on the broker's host, "keep": number}.
    """
    asked = await body_of(request)
    if not (isinstance(asked, dict) and isinstance(folder := asked.get("folder"), str)
                and os.path.isabs(folder) and _is_path(folder)):
        raise web.HTTPBadRequest(text="folder is the absolute path of a folder on the broker's host")
    if not isinstance(keep := asked.get("keep", 0), int) or isinstance(keep, bool) or keep < 0:
        raise web.HTTPBadRequest(text="keep is how many backups are left there; 0: all")
    _refuse_elsewhere(request, folder)
    data_dir = catalogue_of(request).path.resolve().parent
    return web.json_response(await answer_of(
        "backup", "--data-dir", data_dir, "--keep", keep, "--json", "--parent", os.getpid(), "--", folder))


def _is_path(text: str) -> bool:
    """Whether the operating system accepts the text as a path."""
    is_short = len(text.encode()) < 4_096 and all(len(part.encode()) <= 255 for part in text.split("/"))
    return is_short and "\0" not in text


def _refuse_elsewhere(request: web.Request, folder: str) -> None:
    """Refuse a folder in which the caller may not create and delete backups.  Raises 403."""
    allowed = request.app[TOPICS].config.http.backup_folders
    if allowed:
        if not any(Path(folder).resolve().is_relative_to(Path(parent).resolve()) for parent in allowed):
            raise web.HTTPForbidden(text=f"Backups over HTTP go to {', '.join(allowed)}: "
                                         "backup_folders of [http] in the configuration")
    elif request[IDENTITY] is NOT_ASKED and not _is_on_this_host(request):
        raise web.HTTPForbidden(
            text="Backups over HTTP are for callers on the broker's host, for super users where clients authenticate, "
            "and for folders that backup_folders of [http] in the configuration names"
        )


def _is_on_this_host(request: web.Request) -> bool:
    """Whether the caller is on the broker's host: both ends of the connection have the same address."""
    peer, own = (request.get_extra_info(name) for name in ("peername", "sockname"))
    return bool(peer) and peer[0] == own[0]

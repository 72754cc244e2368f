"""A backup that is asked for over HTTP: a job beside this process makes it, as `geminga backup` does."""
import asyncio
import os
import sys

from aiohttp import web

from geminga.supervisor.admin.topics import body_of, catalogue_of

routes = web.RouteTableDef()


@routes.post("/ops/v1/backup")
async def make(request: web.Request) -> web.Response:
    """{"folder": absolute, on the broker's host, "keep": how many} -> its report, when it is made."""
    asked = await body_of(request)
    if not (isinstance(asked, dict) and isinstance(folder := asked.get("folder"), str) and os.path.isabs(folder) and "\0" not in folder):
        raise web.HTTPBadRequest(text="folder is the absolute path of a folder on the broker's host")
    if not isinstance(keep := asked.get("keep", 0), int) or isinstance(keep, bool) or keep < 0:
        raise web.HTTPBadRequest(text="keep is how many backups are left there; 0: all")
    data_dir = catalogue_of(request).path.resolve().parent
    command = [sys.executable, "-P", "-m", "geminga.supervisor.main", "backup", "--data-dir", str(data_dir), "--keep", str(keep), "--json",
               "--parent", str(os.getpid()), "--", folder]
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("GEMINGA_", "PULSAR_PREFIX_"))}
    job = await asyncio.create_subprocess_exec(*command, env=ours, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                                               stderr=asyncio.subprocess.PIPE, start_new_session=True)
    try:
        printed, said = await job.communicate()
    finally:
        if job.returncode is None:      # nobody waits for the answer any more
            job.terminate()
    if job.returncode:
        raise web.HTTPConflict(text=said.decode(errors="replace").strip().removeprefix("geminga: ") or "The backup's job was killed")
    return web.Response(body=printed, content_type="application/json")

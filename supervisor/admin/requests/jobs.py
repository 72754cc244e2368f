"""Jobs that requests start: processes of this program beside the admin process."""
import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from typing import Any

from aiohttp import web


def command(module: str, *words: object) -> list[str]:
    """Return the command that runs a module of this program; -P leaves modules of the current folder out."""
    return [sys.executable, "-P", "-m", f"geminga.{module}", *map(str, words)]


def environment() -> dict[str, str]:
    """Return the environment of a job: without what would give it another broker or configuration."""
    return {name: value for name, value in os.environ.items()
            if not name.startswith(("GEMINGA_", "PULSAR_")) and name != "XDG_CONFIG_HOME"}


async def answer_of(*words: object) -> Any:
    """Run a `geminga` command in a process of its own, and return the JSON that the command prints.

    words: the command line behind `geminga`.  Raises 409 with the text on standard error if the output is not JSON.
    """
    job = await asyncio.create_subprocess_exec(
        *command("supervisor.main", *words), env=environment(), stdin=DEVNULL, stdout=PIPE, stderr=PIPE,
        start_new_session=True)
    try:
        printed, said = await job.communicate()
    finally:
        if job.returncode is None:      # the request was cancelled
            job.terminate()
    try:
        return json.loads(printed)
    except ValueError:
        why = said.decode(errors="replace").strip().removeprefix("geminga: ")
        raise web.HTTPConflict(text=why or f"The job was killed: geminga {words[0]}") from None

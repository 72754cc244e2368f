"""`geminga debug bundle`: an archive of facts about a broker, for finding out what is wrong with it."""
import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from geminga.supervisor.cli import grammar, options, output
from geminga.supervisor.configuration import target
from geminga.supervisor.host import installed


@click.group(cls=grammar.Group)
def debug() -> None:
    """Collect facts about a broker, to find a fault."""


@debug.command(epilog="Exit status: 0 the archive is written; 1 it cannot be written; 2 wrong usage.")
@click.argument("file", required=False)
@options.CONFIG
@output.FORM
@target.admin_options
def bundle(file: str | None, config: str | None, data_dir: str | None, form: str, **who: Any) -> int:
    """Write facts about a broker to FILE (geminga-debug-TIME.tar.gz unless given), also when it hangs or is down.

    The archive has versions, configuration, metrics, stats of the busiest topics, stacks of all processes, queues,
    limits, log, disk and catalogue.  It has no keys, passwords, hashes and tokens, but names of topics, roles and
    hosts.  Run the command on the broker's host, as root or as its user; the journal may be for root only.  It takes
    half a minute at most.
    """
    from geminga.supervisor.tasks import bundle as bundles
    loaded = options.configured(config := installed.configuration(config, data_dir), data_dir)

    def as_owner() -> None:
        installed.become_owner(loaded.data_dir, writes=False)

    if os.geteuid():      # who may not read the folder is told so before there is an archive
        as_owner()
    words = [word for name, value in (("--config", config), ("--data-dir", data_dir)) if value
               for word in (name, value)]
    archive = Path(file or time.strftime("geminga-debug-%Y%m%d-%H%M%S.tar.gz"))
    try:
        broker = target.of(who, loaded.data_dir)
        missing = bundles.write(archive, loaded, broker.admin_url, broker.credentials, words, os.environ, as_owner)
    except OSError as error:
        raise output.Failed(1, error) from None
    shown = output.Output(form)
    if shown.is_for_people:
        for line in missing:
            print(f"not in it: {line}", file=sys.stderr)
    shown.value({"archive": str(archive.absolute()), "missing": missing}, lambda _: str(archive))
    return 0

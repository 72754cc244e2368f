"""`geminga debug bundle`: an archive of facts about a broker, for finding out what is wrong with it."""
import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from geminga.supervisor.cli import installed
from geminga.supervisor.pulsar_client import credentials


@click.group()
def debug() -> None:
    """Find out what is wrong with a broker."""


@debug.command(epilog="Exit status: 0 the archive is written; 1 it cannot be written; 2 wrong usage.")
@click.argument("file", required=False)
@click.option("--config", metavar="FILE", help="the broker's: TOML, or Pulsar's broker.conf")
@click.option("--data-dir", metavar="DIR", help="the broker's (default: ./data, or the installed broker's)")
@click.option("--admin-url", "--http-url", metavar="URL", default="http://127.0.0.1:8080", show_default=True)
@credentials.options
def bundle(file: str | None, config: str | None, data_dir: str | None, admin_url: str, **who: Any) -> int:
    """Collect facts about a broker in FILE (default: geminga-debug-TIME.tar.gz), also when it hangs or is down.

    The archive has versions, configuration, metrics, stats of the busiest topics, stacks of all processes, queues,
    limits, log, disk and catalogue.  It has no keys, passwords, hashes and tokens, but names of topics, roles and
    hosts.  Run the command on the broker's host, as its user.  It takes half a minute at most.
    """
    from geminga.supervisor.configuration import config as configuration
    from geminga.supervisor.tasks import bundle as bundles
    config = installed.configuration(config, data_dir)
    try:
        loaded, _ = configuration.load(config, os.environ, {"data_dir": data_dir})
    except configuration.ConfigError as error:
        print(f"geminga: {error}", file=sys.stderr)
        return 2
    options = [word for name, value in (("--config", config), ("--data-dir", data_dir)) if value
               for word in (name, value)]
    target = Path(file or time.strftime("geminga-debug-%Y%m%d-%H%M%S.tar.gz"))
    try:
        missing = bundles.write(target, loaded, admin_url, credentials.of(**who), options, os.environ)
    except OSError as error:
        print(f"geminga: {error}", file=sys.stderr)
        return 1
    for line in missing:
        print(f"not in it: {line}", file=sys.stderr)
    print(target)
    return 0

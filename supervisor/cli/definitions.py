"""`geminga definitions export|import`: everything but messages, as a file."""
import json
import sys
from typing import Any

import click

from geminga.supervisor.pulsar_client import credentials
from geminga.supervisor.pulsar_client.rest import WRONG_USAGE, Broker

_SECONDS = 600
_PATH = "/ops/v1/definitions"
_url = click.option("--admin-url", "--http-url", default="http://127.0.0.1:8080", show_default=True)


@click.group()
def definitions() -> None:
    """Tenants, namespaces, topics, subscriptions, policies, grants, schemas and changed settings, as JSON; for super users."""


@definitions.command("export")
@click.argument("file", type=click.File("w", lazy=True), default="-")
@_url
@credentials.options
def export(file: Any, admin_url: str, **who: Any) -> None:
    """Write them to FILE, or print them."""
    found = Broker(admin_url, _SECONDS, credentials.of(**who)).ask("GET", _PATH).value()
    file.write(json.dumps(found, indent=2) + "\n")


@definitions.command("import", epilog="Exit status: 0 done; 1 refused by the broker, in one line; 2 wrong usage; 3 not reachable.")
@click.argument("file", type=click.File())
@click.option("--dry-run", is_flag=True, help="only say what would change")
@_url
@credentials.options
def bring(file: Any, dry_run: bool, admin_url: str, **who: Any) -> int | None:
    """Bring about what FILE says (-: standard input), and print what changed; nothing, when all is so already.

    What the file names has what it says there; schemas, subscriptions and partitions are only added.  What it does not name stays.
    """
    try:
        wanted = json.load(file)
    except (ValueError, RecursionError) as error:
        print(f"geminga: {file.name}: it is no JSON: {error}", file=sys.stderr)
        return WRONG_USAGE
    query = {"dry-run": "true"} if dry_run else None
    for text in Broker(admin_url, _SECONDS, credentials.of(**who)).ask("POST", _PATH, query, wanted).value()["changes"]:
        print(text)
    return None

"""`geminga definitions export|import`: the definitions of a broker, which is everything but messages, as a file."""
import json
import sys
from typing import Any

import click

from geminga.supervisor.pulsar_client import credentials
from geminga.supervisor.pulsar_client.rest import WRONG_USAGE, Broker

_SECONDS = 600      # limit for an answer of the broker
_PATH = "/ops/v1/definitions"
_url = click.option("--admin-url", "--http-url", default="http://127.0.0.1:8080", show_default=True)


@click.group()
def definitions() -> None:
    """Export and import all definitions as JSON; for super users.

    Definitions are tenants, namespaces, topics, subscriptions, policies, grants, schemas and changed settings.
    """


@definitions.command("export")
@click.argument("file", type=click.File("w", lazy=True), default="-")
@_url
@credentials.options
def export(file: Any, admin_url: str, **who: Any) -> None:
    """Write all definitions to FILE, or print them."""
    document = Broker(admin_url, _SECONDS, credentials.of(**who)).ask("GET", _PATH).value()
    file.write(json.dumps(document, indent=2) + "\n")


@definitions.command("import", epilog="Exit status: 0 done; 1 refused by the broker, in one line; 2 wrong usage; "
                                      "3 not reachable.")
@click.argument("file", type=click.File())
@click.option("--dry-run", is_flag=True, help="only print what would change")
@_url
@credentials.options
def bring(file: Any, dry_run: bool, admin_url: str, **who: Any) -> int | None:
    """Create and change definitions as FILE has them (-: standard input), and print every change.

    Definitions that FILE does not name stay.  Schemas, subscriptions and partitions are only added, never removed.
    """
    try:
        wanted = json.load(file)
    except (ValueError, RecursionError) as error:
        print(f"geminga: {file.name}: it is no JSON: {error}", file=sys.stderr)
        return WRONG_USAGE
    query = {"dry-run": "true"} if dry_run else None
    answer = Broker(admin_url, _SECONDS, credentials.of(**who)).ask("POST", _PATH, query, wanted).value()
    for text in answer["changes"]:
        print(text)
    return None

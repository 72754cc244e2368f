"""`geminga definitions export|import`: the definitions of a broker, which is everything but messages, as a file."""
import contextlib
import json
from typing import Any

import click

from geminga.supervisor.cli import grammar, output
from geminga.supervisor.configuration import target
from geminga.workers.pulsar_client.rest import WRONG_USAGE

_SECONDS = 600      # limit for an answer of the broker
_PATH = "/ops/v1/definitions"


@click.group(cls=grammar.Group)
def definitions() -> None:
    """Export and import all definitions as JSON.

    Only super users may do this.  Definitions are tenants, namespaces, topics, subscriptions, policies, grants, schemas
    and changed settings.
    """


@definitions.command("export", epilog=grammar.STATUS)
@click.argument("file", type=click.File("w", lazy=True), default="-")
@output.FORM
@target.admin_options
def export(file: Any, form: str, **who: Any) -> None:
    """Write all definitions to FILE, or print them.

    They are JSON, which `geminga definitions import` reads, unless --output asks for YAML.
    """
    document = target.of(who).broker(_SECONDS).ask("GET", _PATH).value()
    with contextlib.redirect_stdout(file):
        output.Output(form).value(document, lambda document: json.dumps(document, indent=2))


@definitions.command("import", epilog=grammar.STATUS)
@click.argument("file", type=click.File())
@click.option("--dry-run", is_flag=True, help="Only print what would be done.")
@output.FORM
@target.admin_options
def bring(file: Any, dry_run: bool, form: str, **who: Any) -> None:
    """Create and change definitions as FILE has them (-: standard input), and print every change.

    Definitions that FILE does not name stay.  Schemas, subscriptions and partitions are only added, never removed.
    """
    try:
        wanted = json.load(file)
    except (ValueError, RecursionError) as error:
        why = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else f"it is no JSON: {error}"
        raise output.Failed(WRONG_USAGE, f"{file.name}: {why}") from None
    query = {"dry-run": "true"} if dry_run else None
    answer = target.of(who).broker(_SECONDS).ask("POST", _PATH, query, wanted).value()
    output.Output(form).value(answer, lambda answer: "\n".join(answer["changes"]))

"""`geminga status`, `geminga log`, `geminga tune`: a broker as its operator sees it."""
from typing import Any

import click

from geminga.supervisor.cli import credentials
from geminga.supervisor.cli.rest import Broker

_URL = "--http-url", "--admin-url"
_url = click.option(*_URL, default="http://127.0.0.1:8080", show_default=True)


@click.group()
def log() -> None:
    """What a broker tells in its log."""


@log.command()
@click.argument("level", type=click.Choice(["error", "warning", "info", "debug"]), required=False)
@click.option("--topic", metavar="NAME", default="", help="only what is about this topic and its partitions")
@click.option("--client", metavar="ADDRESS", default="", help="only what is about this client: HOST, or HOST:PORT")
@click.option("--for", "length", metavar="TIME", default="5m", show_default=True, help="after which what was configured holds again")
@click.option("--reset", is_flag=True, help="what was configured holds again, now")
@_url
@credentials.options
def level(level: str | None, topic: str, client: str, length: str, reset: bool, http_url: str, **who: Any) -> None:
    """Show how much is told, or change it for a while: of all, of a topic, of a client."""
    from geminga.supervisor.cli import units
    broker = Broker(http_url, credentials=credentials.of(**who))
    if reset:
        found = broker.ask("DELETE", "/ops/v1/log-level").value()
    elif level is None:
        if topic or client:
            raise click.UsageError("--topic and --client need a level")
        found = broker.ask("GET", "/ops/v1/log-level").value()
    else:
        try:
            body = {"level": level, "topic": topic, "client": client, "seconds": units.millis(length) / 1000}
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--for") from None
        found = broker.ask("PUT", "/ops/v1/log-level", body=body).value()
    print(f"{found['level']} is configured")
    for rule in found["for_now"]:
        about = " and ".join(f"{what} {rule[what]}" for what in ("topic", "client") if rule[what])
        print(f"{rule['level']} for another {rule['seconds_left']:.0f} s, {'of ' + about if about else 'of everything'}")

"""geminga config: what a configuration says, before a broker has to live with it; geminga reload: have a running one take it; geminga
drain: have it stop when its consumers have acknowledged what they have."""
import os
import sys
from pathlib import Path

import click

_RELOAD_SECONDS = 120.0      # that a reload may take; an owner may have to be started again for it
_SILENT_SECONDS = 10.0       # from one word of a broker that is being drained to the next, or to its end
_FILE = click.option("--config", metavar="FILE", help="TOML, or Pulsar's broker.conf or standalone.conf")
_DATA_DIR = click.option("--data-dir", metavar="DIR", help="where everything is kept")


@click.group()
def config() -> None:
    """Look at a configuration: FILE, the environment, the defaults."""


@config.command(epilog="Exit status: 0 a broker can be started, or reloaded, with it; 2 it cannot, and a line says why.")
@_FILE
@_DATA_DIR
def check(config: str | None, data_dir: str | None) -> int:
    """Tell whether a broker can use it, its keys and certificates included, and what differs from the defaults."""
    return _look(config, data_dir, is_all=False)


@config.command()
@_FILE
@_DATA_DIR
def show(config: str | None, data_dir: str | None) -> int:
    """Print every key, what holds, and where that comes from; stars for secrets."""
    return _look(config, data_dir, is_all=True)


def _look(file: str | None, data_dir: str | None, *, is_all: bool) -> int:
    from geminga.supervisor import config as configuration
    from geminga.supervisor.reload import shown, value
    from geminga.workers.identity.authentication import Authenticator
    from geminga.workers.identity.certificates import Tls
    from geminga.workers.identity.options import Unusable
    given = {"data_dir": data_dir}
    try:
        found, notes = configuration.load(file, os.environ, given)
        origins = configuration.origins(file, os.environ, given)
        if found.tls.certificate:
            Tls(found.tls)
        Authenticator(found.identity)
    except (configuration.ConfigError, Unusable) as error:
        print(f"geminga: {error}", file=sys.stderr)
        return 2
    for note in notes:
        print(f"geminga: {note}", file=sys.stderr)
    for key, (_, default) in configuration.KEYS.items():
        holds = value(found, key)
        if is_all or key in origins and holds != default:
            print(f"{key} = {shown(_as_text(holds))}    # {origins.get(key, 'default' if holds == default else 'worked out')}")
    return 0


def _as_text(found: object) -> object:
    return str(found) if isinstance(found, Path) else found


@click.command(epilog="Exit status: 0 what is written holds; 1 no broker serves the folder; 2 it cannot be used: what held before goes on.")
@click.option("--data-dir", metavar="DIR", default="data", show_default=True, help="of the broker")
def reload(data_dir: str) -> int:
    """Have the broker of a data folder take its configuration anew, as SIGHUP does, and wait until it holds in every process."""
    from geminga.supervisor import commands
    try:
        for answer in commands.ask(Path(data_dir), _RELOAD_SECONDS, reload=True):
            for change in answer["changes"]:
                print(change)
            if answer["error"]:
                print(f"geminga: {answer['error']}; the configuration before it stays in force", file=sys.stderr)
                return 2
            return 0
    except commands.NotServed as error:
        print(f"geminga: {error}", file=sys.stderr)
        return 1
    print(f"geminga: {data_dir}: the broker ended", file=sys.stderr)
    return 1


@click.command(epilog="Exit status: 0 it has stopped; 1 no broker serves the folder.")
@click.option("--data-dir", metavar="DIR", default="data", show_default=True, help="of the broker")
@click.option("--seconds", type=click.FloatRange(0, 24 * 3600), default=10, show_default=True, help="that consumers have for it at most")
def drain(data_dir: str, seconds: float) -> int:
    """Have the broker of a data folder stop once consumers have acknowledged what they have.

    From now on nobody may publish, subscribe or get anything; what was published is answered.
    """
    from geminga.supervisor import commands
    left = None
    try:
        for answer in commands.ask(Path(data_dir), _SILENT_SECONDS, drain=seconds):
            if answer["outstanding"] != left:
                left = answer["outstanding"]
                print(f"{left} messages are to be acknowledged yet", flush=True)
    except commands.NotServed as error:
        print(f"geminga: {error}", file=sys.stderr)
        return 1
    print(f"stopped; {left} messages will be given out again" if left else "stopped; nothing is outstanding")
    return 0

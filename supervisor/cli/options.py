"""Options that several commands have: a broker's configuration and data folder, and rates."""
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from geminga.storage.runtime import units
from geminga.supervisor.cli.output import Failed
from geminga.supervisor.host import installed

if TYPE_CHECKING:
    from geminga.supervisor.configuration.config import Config

_WRONG_USAGE = 2        # exit status
_FASTEST = 1 << 62      # messages a second
CONFIG = click.option("--config", metavar="FILE",
                      help="The broker's configuration: TOML, or Pulsar's broker.conf or standalone.conf.")
DATA_DIR = click.option("--data-dir", metavar="DIR", help="The broker's data folder.",
                        show_default="./data, or the installed broker's")


def configured(file: str | None, data_dir: str | None, **given: Any) -> "Config":
    """Return the configuration that a command is about.  Raises ConfigError, WrongUser."""
    from geminga.supervisor.configuration import config
    return config.load(installed.configuration(file, data_dir), os.environ, {"data_dir": data_dir, **given})[0]


def become_owner_of_folder(data_dir: Path) -> None:
    """Take the rights of the owner of a broker's data folder.  Raises Failed, WrongUser."""
    installed.become_owner(data_dir)
    if not (data_dir / "catalogue.sqlite").is_file():
        raise Failed(_WRONG_USAGE, f"{data_dir} is no data folder of a broker")


def rate(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float:
    """Return a rate such as 100, 100/s or 5/m in a second, 0 if there is none.  Raises BadParameter."""
    if text is None:
        return 0
    number, _, per = text.partition("/")
    try:
        value = float(number)
        seconds = units.seconds(per if per[:1].isdigit() else f"1{per}") if per else 1
        if not 0 < value < _FASTEST or seconds <= 0:
            raise ValueError
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a rate, such as 100, 100/s or 5/m") from None
    return value / seconds

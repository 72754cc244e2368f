"""Options that several commands have: a broker's configuration and data folder, and rates."""
import click

from geminga.supervisor.configuration import units

_FASTEST = 1 << 62      # messages a second
CONFIG = click.option("--config", metavar="FILE",
                      help="The broker's configuration: TOML, or Pulsar's broker.conf or standalone.conf.")
DATA_DIR = click.option("--data-dir", metavar="DIR", help="The broker's data folder.",
                        show_default="./data, or the installed broker's")


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

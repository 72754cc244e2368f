"""`geminga tables`: the tables that nights have made of topics."""
import os
import sys
from datetime import datetime
from typing import Any

import click

from geminga.supervisor.cli import options as cli_options
from geminga.supervisor.cli import output
from geminga.supervisor.cli.output import Column
from geminga.supervisor.host import installed
from geminga.supervisor.wording.human import size

DONE, WRONG_USAGE, REFUSED = 0, 2, 3      # exit statuses


def _time(milliseconds: Any) -> str:
    return f"{datetime.fromtimestamp(milliseconds / 1000):%Y-%m-%d %H:%M}" if milliseconds else "-"


def _count(number: Any) -> str:
    return "-" if number is None else f"{number:,}"


_COLUMNS = (
    Column("topic"), Column("content"), Column("rows", shown=_count, is_number=True),
    Column("rejected", shown=_count, is_number=True), Column("bytes", shown=size, is_number=True),
    Column("files", is_number=True), Column("behind", shown=_count, is_number=True),
    Column("committed_ms", "committed", _time), Column("url"))


@click.command(epilog="Exit status: 0 done; 2 wrong usage; 3 the data folder cannot be read.")
@cli_options.CONFIG
@cli_options.DATA_DIR
@output.FORM
def tables(config: str | None, data_dir: str | None, form: str) -> int:
    """List topics that are tables.

    Nights make tables of topics with the policy `export`.  BEHIND is how many messages of the topic are not in its
    table yet; a compacted table has the last compacted view instead.
    """
    from geminga.storage.catalogue.catalogue import CatalogueError
    from geminga.supervisor.configuration import config as configuration
    try:
        loaded, _ = configuration.load(installed.configuration(config, data_dir), os.environ, {"data_dir": data_dir})
    except configuration.ConfigError as error:
        print(f"geminga: {error}", file=sys.stderr)
        return WRONG_USAGE
    installed.become_owner(loaded.data_dir)
    from geminga.supervisor.tasks import tables as known
    try:
        rows = known.listed(loaded)
    except CatalogueError as error:
        print(f"geminga: {error}", file=sys.stderr)
        return REFUSED
    shown = output.Output(form)
    if not rows and shown.is_for_people:
        print("There are no tables: no night has exported a topic yet")
        return DONE
    shown.rows(rows, _COLUMNS)
    return DONE

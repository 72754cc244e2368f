"""`geminga tables`: the tables that nights have made of topics."""
from datetime import datetime
from typing import Any

import click

from geminga.supervisor.cli import options as cli_options
from geminga.supervisor.cli import output
from geminga.supervisor.cli.output import Column, Failed
from geminga.supervisor.host import installed
from geminga.supervisor.wording.human import size

_UNREADABLE = 3      # exit status


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
def tables(config: str | None, data_dir: str | None, form: str) -> None:
    """List topics that are tables.

    Nights make tables of topics with the policy `export`.  BEHIND is how many messages of the topic are not in its
    table yet; a compacted table has the last compacted view instead.
    """
    from geminga.storage.catalogue.catalogue import CatalogueError
    loaded = cli_options.configured(config, data_dir)
    installed.become_owner(loaded.data_dir)
    from geminga.supervisor.tasks import tables as exports
    try:
        rows = exports.listed(loaded)
    except CatalogueError as error:
        raise Failed(_UNREADABLE, error) from None
    shown = output.Output(form)
    if not rows and shown.is_for_people:
        print("There are no tables: no night has exported a topic yet")
    else:
        shown.rows(rows, _COLUMNS)

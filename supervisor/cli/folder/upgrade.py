"""`geminga upgrade check`: how the first start of this program would change a data folder."""
from dataclasses import asdict

import click

from geminga.supervisor.cli import grammar, output
from geminga.supervisor.host import installed

_CANNOT = 5      # exit status, as of `geminga verify` for files that it cannot read


@click.group(cls=grammar.Group)
def upgrade() -> None:
    """Tell how an upgrade would change a data folder."""


@upgrade.command(epilog="Exit status: 0 this program can serve the folder, and the last one could serve it again; "
                        "3 it can, and changes the format: make a backup first; 5 it cannot; 2 wrong usage.")
@click.argument("data_dir", metavar="[DATA_DIR]", required=False)
@output.FORM
@output.json_flag("json")
def check(data_dir: str | None, form: str) -> int:
    """Print the format of a data folder and what the first start of this program would change.

    It also says whether the program that served the folder last could serve it again.  Nothing is changed, and a
    broker may be serving the folder.  Without DATA_DIR it is ./data, or the installed broker's.
    """
    import sqlite3

    from geminga.storage import format
    from geminga.storage.catalogue import layout
    from geminga.storage.offline import upgrade as upgrades
    folder = installed.folder(data_dir)
    installed.become_owner(folder, writes=False)
    try:
        state = upgrades.look(folder)
    except (OSError, sqlite3.DatabaseError) as error:
        raise output.Failed(_CANNOT, f"{folder}: {output.Failed(_CANNOT, error)}") from None
    status = _CANNOT if state.refused else 0 if state.has_way_back else 3
    writes = {"folder": format.FOLDER_VERSION, "catalogue": layout.VERSION, "files": format.VERSION}
    if form != "table":
        output.Output(form).value(asdict(state) | {"writes": writes}, str)
        return status
    if state.refused:
        raise output.Failed(status, state.refused)
    files = ", ".join(f"{count} of version {version}" for version, count in sorted(state.files.items())) or "none"
    print(f"{folder}: format {state.folder or 'without a number'}, catalogue {state.catalogue}; files: {files}")
    print("this program writes: format {folder}, catalogue {catalogue}, files {files}".format(**writes))
    for what in state.rewrites:
        print(f"its first start: {what}")
    print("the program that served it last can serve it after that too" if state.has_way_back else
          "there is no way back but by a backup: older programs cannot use the folder after that")
    return status

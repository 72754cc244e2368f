"""`geminga upgrade check`: what becomes of a data folder when this program serves it."""
import json
import sqlite3
import sys
from dataclasses import asdict
from pathlib import Path

import click

_CANNOT = 5      # as `geminga verify` says it of what it cannot look at


@click.group()
def upgrade() -> None:
    """Know before an upgrade what it does to a data folder."""


@upgrade.command(epilog="Exit status: 0 this program can serve it, and so can whoever served it last; 3 it can, and changes the format: "
                 "make a backup first; 5 it cannot; 2 wrong arguments.")
@click.argument("data_dir", metavar="DATA_DIR")
@click.option("--json", "is_json", is_flag=True, help="print one object")
def check(data_dir: str, is_json: bool) -> int:
    """Tell which format a data folder has, which this program writes, what its first start would change, and whether there is a way back.

    Nothing is changed, and a broker may go on serving the folder.
    """
    from geminga.storage import format
    from geminga.storage.catalogue import layout
    from geminga.storage.errors import text_of
    from geminga.storage.offline import upgrade as upgrades
    try:
        found = upgrades.look(Path(data_dir))
    except (OSError, sqlite3.DatabaseError) as error:
        print(f"geminga: {data_dir}: {text_of(error) if isinstance(error, OSError) else error}", file=sys.stderr)
        return _CANNOT
    status = _CANNOT if found.refused else 0 if found.has_way_back else 3
    writes = {"folder": format.FOLDER_VERSION, "catalogue": layout.VERSION, "files": format.VERSION}
    if is_json:
        print(json.dumps(asdict(found) | {"writes": writes}))
        return status
    if found.refused:
        print(f"geminga: {found.refused}", file=sys.stderr)
        return status
    files = ", ".join(f"{count} of version {version}" for version, count in sorted(found.files.items())) or "none"
    print(f"{data_dir}: format {found.folder or 'without a number'}, catalogue {found.catalogue}; files: {files}")
    print("this program writes: format {folder}, catalogue {catalogue}, files {files}".format(**writes))
    for what in found.rewrites:
        print(f"its first start: {what}")
    print("whoever served it last can serve it after that too" if found.has_way_back else
          "there is no way back but by a backup: older programs cannot use the folder after that")
    return status

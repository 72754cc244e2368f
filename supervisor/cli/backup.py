"""`geminga backup` and `geminga restore`."""
import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from geminga.supervisor.cli import installed
from geminga.supervisor.cli.nightly import die_with
from geminga.supervisor.pulsar_client import credentials

DONE, FAILED, WRONG_USAGE = range(3)      # exit statuses
_SECONDS = 24 * 3600                      # that a broker may take for one


@click.command(epilog="Exit status: 0 it is made; 1 it is not, and nothing is left of it; 2 wrong usage; 3 no broker at --admin-url.")
@click.argument("folder", metavar="FOLDER")
@click.option("--config", metavar="FILE", help="the broker's: TOML, or Pulsar's broker.conf")
@click.option("--data-dir", metavar="DIR", help="the broker's (default: ./data, or the installed broker's)")
@click.option("--admin-url", metavar="URL", help="have the broker there make it, in a folder of its host; for super users")
@click.option("--keep", type=click.IntRange(0), default=0, metavar="N", help="then remove the oldest ones in FOLDER, all but N")
@click.option("--json", "is_json", is_flag=True, help="print JSON")
@click.option("--parent", type=int, hidden=True)      # as long as this process of the broker lives
@credentials.options
def backup(folder: str, config: str | None, data_dir: str | None, admin_url: str | None, keep: int, is_json: bool, parent: int | None,
           **who: Any) -> int:
    """Copy all that a broker keeps, as it is at one moment, into a new folder of FOLDER.

    The broker goes on serving meanwhile, and stands still for milliseconds; one that is not running is backed up as well.  Where FOLDER is
    on the same file system as the data, the two share what does not change.
    """
    if parent is not None:
        die_with(parent)
    if admin_url is not None:
        from geminga.supervisor.pulsar_client.rest import Broker
        asked = {"folder": os.path.abspath(folder), "keep": keep}
        found = Broker(admin_url, _SECONDS, credentials.of(**who)).ask("POST", "/ops/v1/backup", body=asked).value()
    else:
        from dataclasses import asdict

        from geminga.supervisor.configuration import config as configuration
        from geminga.supervisor.tasks import backups, job_socket, nights
        try:
            loaded, _ = configuration.load(installed.configuration(config, data_dir), os.environ, {"data_dir": data_dir})
        except configuration.ConfigError as error:
            return _wrong(WRONG_USAGE, error)
        if not (loaded.data_dir / "catalogue.sqlite").is_file():
            return _wrong(WRONG_USAGE, f"{loaded.data_dir} is no data folder of a broker")
        nights.be_polite(loaded.nightly.niceness)
        try:
            found = asdict(backups.make(loaded.data_dir, Path(folder), keep))
        except (job_socket.CannotRun, OSError) as error:
            return _wrong(FAILED, error)
    print(json.dumps(found) if is_json else
          "{folder}: {partitions} partitions, {bytes:,} bytes, {shared_bytes:,} of them shared; {seconds:.1f} s, "
          "owners stood still for {longest_pause_ms:.1f} ms".format(**found))
    return DONE


@click.command(epilog="Exit status: 1 it is not restored, and DATA_DIR as empty as it was; 2 wrong usage; else that of geminga verify "
                      "on DATA_DIR: 0 nothing is damaged.")
@click.argument("source", metavar="BACKUP")
@click.argument("data_dir", metavar="DATA_DIR")
def restore(source: str, data_dir: str) -> int:
    """Put a backup in place: all of it, into an empty or new folder, for a broker to be started on.

    Every checksum is looked at, then the folder is as by geminga verify.
    """
    from geminga.storage.offline import restore as storage
    from geminga.supervisor.cli.verify import report_damage
    try:
        manifest = storage.restore(Path(source), Path(data_dir))
    except (storage.CannotRestore, OSError) as error:
        return _wrong(FAILED, error)
    print(f"{data_dir}: {len(manifest.items)} files, {sum(item.size for item in manifest.items):,} bytes", flush=True)
    return report_damage(Path(data_dir), is_json=False, repairs=False)


def _wrong(status: int, why: Exception | str) -> int:
    from geminga.storage.errors import text_of
    print(f"geminga: {text_of(why) if isinstance(why, OSError) else why}", file=sys.stderr)
    return status

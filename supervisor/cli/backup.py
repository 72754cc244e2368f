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
_SECONDS = 24 * 3600                      # limit for a backup that the broker makes


@click.command(epilog="Exit status: 0 the backup is made; 1 it is not, and nothing is left of it; 2 wrong usage; "
                      "3 no broker at --admin-url.")
@click.argument("folder", metavar="FOLDER")
@click.option("--config", metavar="FILE", help="the broker's: TOML, or Pulsar's broker.conf")
@click.option("--data-dir", metavar="DIR", help="the broker's (default: ./data, or the installed broker's)")
@click.option("--admin-url", metavar="URL",
              help="have the broker at URL make it, in a folder of that host; for super users")
@click.option("--keep", type=click.IntRange(0), default=0, metavar="N",
              help="then remove the oldest backups in FOLDER, all but N")
@click.option("--json", "is_json", is_flag=True, help="print JSON")
@click.option("--parent", type=int, hidden=True)      # from the broker: end together with this process
@credentials.options
def backup(folder: str, config: str | None, data_dir: str | None, admin_url: str | None, keep: int, is_json: bool,
           parent: int | None, **who: Any) -> int:
    """Copy a broker's whole data folder, as it is at one moment, into a new folder of FOLDER.

    The broker may be stopped, or go on serving: owners then stand still for milliseconds.  If FOLDER is on the file
    system of the data, the backup shares unchanged files with the data.
    """
    if parent is not None:
        die_with(parent)
    if admin_url is not None:
        from geminga.supervisor.pulsar_client.rest import Broker
        asked = {"folder": os.path.abspath(folder), "keep": keep}
        report = Broker(admin_url, _SECONDS, credentials.of(**who)).ask("POST", "/ops/v1/backup", body=asked).value()
    else:
        from dataclasses import asdict

        from geminga.supervisor.configuration import config as configuration
        from geminga.supervisor.tasks import backups, job_socket, nights
        try:
            file = installed.configuration(config, data_dir)
            loaded, _ = configuration.load(file, os.environ, {"data_dir": data_dir})
        except configuration.ConfigError as error:
            return _wrong(WRONG_USAGE, error)
        if not (loaded.data_dir / "catalogue.sqlite").is_file():
            return _wrong(WRONG_USAGE, f"{loaded.data_dir} is no data folder of a broker")
        nights.be_polite(loaded.nightly.niceness)
        try:
            report = asdict(backups.make(loaded.data_dir, Path(folder), keep))
        except (job_socket.CannotRun, OSError) as error:
            return _wrong(FAILED, error)
    print(json.dumps(report) if is_json else
          "{folder}: {partitions} partitions, {bytes:,} bytes, {shared_bytes:,} of them shared; {seconds:.1f} s, "
          "owners stood still for {longest_pause_ms:.1f} ms".format(**report))
    return DONE


@click.command(epilog="Exit status: 1 not restored, and DATA_DIR is as empty as before; 2 wrong usage; else that of "
                      "geminga verify on DATA_DIR: 0 nothing is damaged.")
@click.argument("source", metavar="BACKUP")
@click.argument("data_dir", metavar="DATA_DIR")
def restore(source: str, data_dir: str) -> int:
    """Copy a whole backup into an empty or new folder, on which a broker can be started.

    Every checksum is compared.  Then the folder is verified as geminga verify does it.
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

"""`geminga backup` and `geminga restore`."""
import os
import sys
from pathlib import Path
from typing import Any

import click

from geminga.supervisor.cli import options, output
from geminga.supervisor.cli.folder.nightly import die_with
from geminga.supervisor.cli.progress import done_of_total
from geminga.supervisor.host import installed
from geminga.supervisor.pulsar_client import credentials, target
from geminga.supervisor.wording.human import size

DONE, FAILED, WRONG_USAGE = range(3)      # exit statuses
_SECONDS = 24 * 3600                      # limit for a backup that the broker makes


@click.command(epilog="Exit status: 0 the backup is made; 1 it is not, and nothing is left of it; 2 wrong usage; "
                      "3 no broker at --admin-url.")
@click.argument("folder", metavar="FOLDER")
@options.CONFIG
@options.DATA_DIR
@click.option("--admin-url", metavar="URL",
              help="Have the broker at URL make it, in a folder of that host; for super users.")
@click.option("--keep", type=click.IntRange(0), default=0, metavar="N",
              help="Then remove the oldest backups in FOLDER, all but N.")
@output.FORM
@output.json_flag("json")
@click.option("--parent", type=int, hidden=True)      # from the broker: end together with this process
@target.with_credentials
def backup(folder: str, config: str | None, data_dir: str | None, admin_url: str | None, keep: int, form: str,
           parent: int | None, **who: Any) -> int:
    """Copy a broker's data folder as it is at one moment.

    The copy is a new folder in FOLDER.  The broker may be stopped, or go on serving: owners then stand still for
    milliseconds.  If FOLDER is on the file system of the data, the backup shares unchanged files with the data.
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
        try:
            installed.make_for_owner(Path(folder), loaded.data_dir)
        except OSError as error:
            return _wrong(FAILED, error)
        installed.become_owner(loaded.data_dir)
        if not (loaded.data_dir / "catalogue.sqlite").is_file():
            return _wrong(WRONG_USAGE, f"{loaded.data_dir} is no data folder of a broker")
        nights.be_polite(loaded.nightly.niceness)
        try:
            with done_of_total("backup", is_bytes=True) as told:
                report = asdict(backups.make(loaded.data_dir, Path(folder), keep, told))
        except (job_socket.CannotRun, OSError) as error:
            return _wrong(FAILED, error)
    output.Output(form).value(
        report, lambda made: f"{made['folder']}: {made['partitions']} partitions, {size(made['bytes'])}, "
                             f"{size(made['shared_bytes'])} of it shared; {made['seconds']:.1f} s, "
                             f"owners stood still for {made['longest_pause_ms']:.1f} ms")
    return DONE


@click.command(epilog="Exit status: 0 restored, and nothing is damaged; 1 not restored, and DATA_DIR is as empty as "
                      "before; 2 wrong usage; 3, 4, 5 restored, and damaged as geminga verify says.")
@click.argument("source", metavar="BACKUP")
@click.argument("data_dir", metavar="DATA_DIR")
@output.FORM
def restore(source: str, data_dir: str, form: str) -> int:
    """Copy a backup into a new or empty data folder.

    A broker can be started on that folder.  Every checksum is compared.  Then the folder is verified as geminga verify
    does it.  Forms for programs have one object, with the rows of geminga verify in it.
    """
    from geminga.storage.offline import restore as storage
    from geminga.supervisor.cli.folder.verify import damage, report_damage
    folder, shown = Path(data_dir), output.Output(form)
    installed.become_owner(folder)
    try:
        with done_of_total("restore", is_bytes=True) as told:
            manifest = storage.restore(Path(source), folder, told)
    except (storage.CannotRestore, OSError) as error:
        return _wrong(FAILED, error)
    files, total = len(manifest.items), sum(item.size for item in manifest.items)
    if shown.is_for_people:
        print(f"{data_dir}: {files} files, {size(total)}", flush=True)
        return report_damage(folder, shown, repairs=False)
    *found, summary = damage(folder, repairs=False)
    shown.value({"folder": data_dir, "files": files, "bytes": total, "findings": [one.row for one in found],
                 "verified": summary.row}, str)
    return summary.status


def _wrong(status: int, why: Exception | str) -> int:
    from geminga.storage.errors import text_of
    print(f"geminga: {text_of(why) if isinstance(why, OSError) else why}", file=sys.stderr)
    return status

"""`geminga backup` and `geminga restore`."""
import os
from pathlib import Path
from typing import Any

import click

from geminga.supervisor.cli import options, output
from geminga.supervisor.cli.folder.nightly import die_with
from geminga.supervisor.cli.progress import done_of_total
from geminga.supervisor.configuration import target
from geminga.supervisor.host import installed
from geminga.supervisor.wording.human import size
from geminga.workers.pulsar_client import credentials

DONE, FAILED = range(2)                   # exit statuses
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
        from geminga.workers.pulsar_client.rest import Broker
        asked = {"folder": os.path.abspath(folder), "keep": keep}
        report = Broker(admin_url, _SECONDS, credentials.of(**who)).ask("POST", "/ops/v1/backup", body=asked).value()
    else:
        from dataclasses import asdict

        from geminga.supervisor.tasks import backups, job_socket, nights
        loaded = options.configured(config, data_dir)
        try:
            installed.make_for_owner(Path(folder), loaded.data_dir)
            options.become_owner_of_folder(loaded.data_dir)
            nights.be_polite(loaded.nightly.niceness)
            with done_of_total("backup", is_bytes=True) as tell:
                report = asdict(backups.make(loaded.data_dir, Path(folder), keep, tell))
        except (job_socket.CannotRun, OSError) as error:
            raise output.Failed(FAILED, error) from None
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
        with done_of_total("restore", is_bytes=True) as tell:
            manifest = storage.restore(Path(source), folder, tell)
    except (storage.CannotRestore, OSError) as error:
        raise output.Failed(FAILED, error) from None
    files, total = len(manifest.items), sum(item.size for item in manifest.items)
    if shown.is_for_people:
        print(f"{data_dir}: {files} files, {size(total)}", flush=True)
        return report_damage(folder, shown, repairs=False)
    *findings, summary = damage(folder, repairs=False)
    shown.value({"folder": data_dir, "files": files, "bytes": total, "findings": [finding.row for finding in findings],
                 "verified": summary.row}, str)
    return summary.status

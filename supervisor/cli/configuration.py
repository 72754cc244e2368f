"""Commands that check a broker's configuration, reload it, and drain the broker.

    geminga config    checks or prints a configuration before a broker uses it
    geminga reload    has a running broker take over its changed configuration
    geminga drain     has a running broker stop after its consumers have acknowledged their messages
    geminga promote   has a standby stop its broker, and serve
"""
import os
import pwd
import re
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import click

from geminga.storage.runtime.units import millis
from geminga.supervisor.cli import grammar, options, output
from geminga.supervisor.host import installed
from geminga.workers.identity.options import Secret

_NOT_SERVED, _UNUSABLE = 1, 2      # exit statuses
_RELOAD_SECONDS = 120.0      # limit for a reload, which may restart processes
_AGAIN_SECONDS = 0.1
_PROMOTE_SECONDS = 120.0     # limit for a promotion, which waits for the other broker to stop
_SILENT_SECONDS = 10.0       # limit between two answers during a drain, or until the broker's end


@click.group(cls=grammar.Group)
def config() -> None:
    """Check or show a configuration.

    It is made of the file that --config names, the environment and the defaults.
    """


@config.command(epilog="Exit status: 0 a broker can be started, or reloaded, with it; 2 not, and a line says why.")
@options.CONFIG
@options.DATA_DIR
@click.option("--user", metavar="NAME", show_default="geminga, if the package is installed",
              help="The user that the broker runs as, for root.")
@output.FORM
def check(config: str | None, data_dir: str | None, user: str | None, form: str) -> int:
    """Tell whether a broker can use a configuration, and print the keys that differ from their defaults.

    Keys, certificates and the data folder are checked too.  Files are read as the broker's user, who may read less
    than root.
    """
    if user is None and config is None and data_dir is None and installed.must_be_root():
        raise output.Failed(_UNUSABLE, f"user {pwd.getpwuid(os.geteuid()).pw_name} cannot look as the broker's user; "
                                       "root can: sudo geminga config check")
    if (name := user or installed.user()) is None:
        return _look(config, data_dir, output.Output(form), is_all=False)
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise click.BadParameter(f"there is no user {name}", param_hint="--user") from None
    return _look_as(entry, config, data_dir, output.Output(form))


def _look_as(user: pwd.struct_passwd, config: str | None, data_dir: str | None, form: output.Output) -> int:
    """Check the configuration in a child process with the rights of a user, and return its exit status.

    The status is 2 if this process may not take that user's rights.
    """
    # Imported before the rights go: the user may not be allowed to read the modules.
    from geminga.supervisor.configuration import config as configuration  # noqa: F401
    from geminga.workers.identity import authentication, basic, certificates, tokens  # noqa: F401
    sys.stdout.flush()
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = 1
    try:
        if os.geteuid() != user.pw_uid:
            installed.take_rights(user)
        status = _look(config, data_dir, form, is_all=False, user=user.pw_name)
    except output.Failed as error:
        output.remark(error)
        status = error.exit_status
    except PermissionError as error:
        output.remark(f"only root can look as user {user.pw_name}: {error.strerror}")
        status = _UNUSABLE
    except Exception:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


@config.command(epilog="Exit status: 0 done; 2 wrong usage, or a configuration that cannot be used.")
@options.CONFIG
@options.DATA_DIR
@output.FORM
def show(config: str | None, data_dir: str | None, form: str) -> int:
    """Show every key with its value and the value's source; stars for secrets."""
    return _look(config, data_dir, output.Output(form), is_all=True)


def _look(file: str | None, data_dir: str | None, form: output.Output, *, is_all: bool, user: str = "") -> int:
    """Print the keys of a configuration, all or those that differ from their defaults.  Return the exit status.

    user: the user with whose rights this process looks, if that is not the caller; messages name the user.
    """
    whose = f"as user {user}: " if user else ""
    from geminga.supervisor.configuration import config as configuration
    from geminga.supervisor.configuration import usable_paths
    from geminga.workers.identity.options import Unusable
    file = installed.configuration(file, data_dir)
    try:
        loaded, notes = configuration.load(file, os.environ, {"data_dir": data_dir})
        if loaded.tls.certificate:
            from geminga.workers.identity.certificates import Tls
            Tls(loaded.tls)
        if loaded.identity.authentication.methods:
            from geminga.workers.identity.authentication import Authenticator
            Authenticator(loaded.identity)
        if not is_all:
            usable_paths.look(loaded.data_dir)
            for folder in map(Path, loaded.http.backup_folders):
                _try_backup_folder(folder)
    except (configuration.ConfigError, Unusable) as error:
        raise output.Failed(_UNUSABLE, f"{whose}{error}") from None
    except OSError as error:
        raise output.Failed(_UNUSABLE, f"{whose}{usable_paths.unusable(loaded.data_dir, error)}") from None
    for note in notes:
        output.remark(note)
    rows, lines = [], []
    for key, (_, default) in configuration.KEYS.items():
        setting = configuration.value(loaded, key)
        if is_all or (key in loaded.origins and setting != default):
            origin = loaded.origins.get(key, "default" if setting == default else "worked out")
            plain = _plain(setting)
            rows.append({"key": key, "value": plain, "origin": origin})
            lines.append(f"{key} = {configuration.shown(plain)}    # {origin}")
    if is_all:
        form.stream(zip(rows, lines, strict=True), lambda pair: pair[0], lambda pair: pair[1])
    else:
        lines.append(f"{file or 'the configuration without a file'}: ok{f', as user {user}' if user else ''}")
        form.value({"file": file, "user": user or None, "keys": rows}, lambda _: "\n".join(lines))
    return 0


def _try_backup_folder(folder: Path) -> None:
    """Check that backups could be written to a folder of `http.backup_folders`.  Raises ConfigError."""
    from geminga.supervisor.configuration import config as configuration
    from geminga.supervisor.configuration import usable_paths
    try:
        usable_paths.look(folder)
    except OSError as error:
        raise configuration.ConfigError(f"http.backup_folders: {folder}: {error.strerror}") from None


def _plain(setting: Any) -> Any:
    """Return a configuration value as JSON has it; stars for a secret."""
    if isinstance(setting, tuple):
        return [_plain(one) for one in setting]
    if isinstance(setting, Secret) and setting:
        return "***"
    return str(setting) if isinstance(setting, Path | str) else setting


@click.command(epilog="Exit status: 0 the configuration is in force; 1 no broker serves the folder; "
                      "2 it cannot be used, and the one before stays in force.")
@options.DATA_DIR
@output.FORM
def reload(data_dir: str | None, form: str) -> None:
    """Have a broker take over its changed configuration.

    SIGHUP does the same.  The command ends when the configuration is in force in every process.
    """
    from geminga.supervisor.processes import control_socket
    folder = _data_folder(data_dir)
    for answer in control_socket.ask(folder, _RELOAD_SECONDS, reload=True):
        output.Output(form).value({"changes": answer["changes"]}, lambda answer: "\n".join(answer["changes"]))
        if answer["error"]:
            raise output.Failed(_UNUSABLE, f"{answer['error']}; the configuration before it stays in force")
        return
    raise output.Failed(_NOT_SERVED, f"{folder}: the broker ended")


def _data_folder(data_dir: str | None) -> Path:
    """Return the data folder: the one given on the command line, else the configured one.  Raises ConfigError."""
    folder = Path(data_dir) if data_dir is not None else options.configured(None, None).data_dir
    installed.become_owner(folder, writes=False)
    return folder


def _seconds(text: str) -> float:
    """Return a time such as 0.5, 30s or 5m in seconds, from 0 to a day.  Raises ValueError."""
    seconds = float(text) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", text) else millis(text) / 1_000
    if not 0 <= seconds <= 24 * 3600:
        raise ValueError(f"{text} is not from 0 to 1d")
    return seconds


@click.command(epilog="Exit status: 0 the broker has stopped; 1 no broker serves the folder.")
@options.DATA_DIR
@click.option("--seconds", metavar="TIME", default="10", show_default=True, type=output.Converted("time", _seconds),
              help="How long consumers may take at most: seconds, or with a unit as 30s or 5m; up to a day.")
@output.FORM
def drain(data_dir: str | None, seconds: float, form: str) -> None:
    """Have a broker stop once its consumers are done.

    They are done when they have acknowledged the messages that they hold.  From now on the broker takes no messages,
    opens no producers and consumers, and delivers nothing.  Messages sent before still get their receipts.
    """
    from geminga.supervisor.processes import control_socket
    outstanding, shown = None, output.Output(form)
    for answer in control_socket.ask(_data_folder(data_dir), _SILENT_SECONDS, drain=seconds):
        if answer["outstanding"] != outstanding:
            outstanding = answer["outstanding"]
            if shown.is_for_people:
                print(f"{outstanding} messages are to be acknowledged yet", flush=True)
    shown.value({"outstanding": outstanding or 0}, lambda _: f"stopped; {outstanding} messages will be redelivered"
                if outstanding else "stopped; nothing is outstanding")


@click.command(epilog="Exit status: 0 it serves; 1 it does not, and a line says why.")
@options.DATA_DIR
@output.FORM
def promote(data_dir: str | None, form: str) -> None:
    """Have a standby stop its broker, and serve.

    If the broker can be reached, it stops for good, and the standby has everything that it had.  If not, what it
    answered within the time that the standby was behind is lost, and it must not serve any more.
    """
    from geminga.supervisor.processes import control_socket
    folder = _data_folder(data_dir)
    answers = list(control_socket.ask(folder, _PROMOTE_SECONDS, promote=True))
    answer = answers[-1] if answers else {"error": f"{folder}: no standby runs there"}
    if "error" in answer:
        raise output.Failed(_NOT_SERVED, answer["error"])
    output.Output(form).value(
        answer, lambda _: "promoted; the other broker has stopped, and this one has everything" if answer["stopped"]
        else f"promoted, {answer['behind_ms']} ms behind; the other broker was not reached ({answer['why']}): it "
             "must not serve before it has asked this one")
    _wait_until_served(folder)


def _wait_until_served(folder: Path) -> None:
    """Wait until the broker of a folder serves.  Raises Failed."""
    from geminga.storage.runtime.unix_sockets import HTTP, UNIX
    from geminga.workers.pulsar_client.rest import Broker, NotReachable, Refused
    broker, until, why = Broker(f"{UNIX}{folder / HTTP}", _SILENT_SECONDS), time.monotonic() + _PROMOTE_SECONDS, ""
    while time.monotonic() < until:
        try:
            broker.ask("GET", "/ready")
            return
        except (NotReachable, Refused) as error:
            why = str(error)
        time.sleep(_AGAIN_SECONDS)
    raise output.Failed(_NOT_SERVED, f"it does not serve yet: {why}")

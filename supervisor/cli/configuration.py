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

from geminga.supervisor.cli import grammar, options, output
from geminga.supervisor.host import installed
from geminga.workers.identity.options import Secret

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
        print(f"geminga: user {pwd.getpwuid(os.geteuid()).pw_name} cannot look as the broker's user; root can: "
              "sudo geminga config check", file=sys.stderr)
        return 2
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
    except PermissionError as error:
        print(f"geminga: only root can look as user {user.pw_name}: {error.strerror}", file=sys.stderr)
        status = 2
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
    from geminga.supervisor.configuration import places
    from geminga.workers.identity.options import Unusable
    file, given = installed.configuration(file, data_dir), {"data_dir": data_dir}
    try:
        loaded, notes = configuration.load(file, os.environ, given)
        origins = configuration.origins(file, os.environ, given)
        if loaded.tls.certificate:
            from geminga.workers.identity.certificates import Tls
            Tls(loaded.tls)
        if loaded.identity.authentication.methods:
            from geminga.workers.identity.authentication import Authenticator
            Authenticator(loaded.identity)
        if not is_all:
            places.look(loaded.data_dir)
            for folder in map(Path, loaded.http.backup_folders):
                _try_backup_folder(folder)
    except (configuration.ConfigError, Unusable) as error:
        print(f"geminga: {whose}{error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"geminga: {whose}{places.unusable(loaded.data_dir, error)}", file=sys.stderr)
        return 2
    for note in notes:
        print(f"geminga: {note}", file=sys.stderr)
    rows, lines = [], []
    for key, (_, default) in configuration.KEYS.items():
        holds = configuration.value(loaded, key)
        if is_all or (key in origins and holds != default):
            origin = origins.get(key, "default" if holds == default else "worked out")
            plain = _plain(holds)
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
    from geminga.supervisor.configuration import places
    try:
        places.look(folder)
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
def reload(data_dir: str | None, form: str) -> int:
    """Have a broker take over its changed configuration.

    SIGHUP does the same.  The command ends when the configuration is in force in every process.
    """
    from geminga.supervisor.processes import control_socket
    place = _place(data_dir)
    try:
        for answer in control_socket.ask(place, _RELOAD_SECONDS, reload=True):
            output.Output(form).value({"changes": answer["changes"]}, lambda told: "\n".join(told["changes"]))
            if answer["error"]:
                print(f"geminga: {answer['error']}; the configuration before it stays in force", file=sys.stderr)
                return 2
            return 0
    except control_socket.NotServed as error:
        print(f"geminga: {error}", file=sys.stderr)
        return 1
    print(f"geminga: {place}: the broker ended", file=sys.stderr)
    return 1


def _place(data_dir: str | None) -> Path:
    """Return the data folder: the one given on the command line, else the configured one.  Raises ConfigError."""
    if data_dir is not None:
        place = Path(data_dir)
    else:
        from geminga.supervisor.configuration import config as configuration
        place = configuration.load(installed.configuration(None, data_dir), os.environ, {})[0].data_dir
    installed.become_owner(place, writes=False)
    return place


def _seconds(_context: click.Context, _parameter: click.Parameter, value: str) -> float:
    """Return a time such as 0.5, 30s or 5m in seconds, from 0 to a day.  Raises BadParameter."""
    from geminga.supervisor.configuration.units import millis
    try:
        seconds = float(value) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", value) else millis(value) / 1_000
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if not 0 <= seconds <= 24 * 3600:
        raise click.BadParameter(f"{value} is not from 0 to 1d")
    return seconds


@click.command(epilog="Exit status: 0 the broker has stopped; 1 no broker serves the folder.")
@options.DATA_DIR
@click.option("--seconds", metavar="TIME", default="10", show_default=True, callback=_seconds,
              help="How long consumers may take at most: seconds, or with a unit as 30s or 5m; up to a day.")
@output.FORM
def drain(data_dir: str | None, seconds: float, form: str) -> int:
    """Have a broker stop once its consumers are done.

    They are done when they have acknowledged the messages that they hold.  From now on the broker takes no messages,
    opens no producers and consumers, and delivers nothing.  Messages sent before still get their receipts.
    """
    from geminga.supervisor.processes import control_socket
    left, shown = None, output.Output(form)
    try:
        for answer in control_socket.ask(_place(data_dir), _SILENT_SECONDS, drain=seconds):
            if answer["outstanding"] != left:
                left = answer["outstanding"]
                if shown.is_for_people:
                    print(f"{left} messages are to be acknowledged yet", flush=True)
    except control_socket.NotServed as error:
        print(f"geminga: {error}", file=sys.stderr)
        return 1
    shown.value({"outstanding": left or 0}, lambda _: f"stopped; {left} messages will be redelivered" if left
                else "stopped; nothing is outstanding")
    return 0


@click.command(epilog="Exit status: 0 it serves; 1 it does not, and a line says why.")
@options.DATA_DIR
@output.FORM
def promote(data_dir: str | None, form: str) -> int:
    """Have a standby stop its broker, and serve.

    If the broker can be reached, it stops for good, and the standby has everything that it had.  If not, what it
    answered within the time that the standby was behind is lost, and it must not serve any more.
    """
    from geminga.supervisor.processes import control_socket
    place, shown = _place(data_dir), output.Output(form)
    answers: list[dict[str, Any]] = []
    try:
        answers = list(control_socket.ask(place, _PROMOTE_SECONDS, promote=True))
    except control_socket.NotServed as error:
        answers = [{"error": str(error)}]
    answer = answers[-1] if answers else {"error": f"{place}: no standby runs there"}
    if "error" in answer:
        print(f"geminga: {answer['error']}", file=sys.stderr)
        return 1
    shown.value(answer, lambda _: "promoted; the other broker has stopped, and this one has everything"
                if answer["stopped"] else
                f"promoted, {answer['behind_ms']} ms behind; the other broker was not reached ({answer['why']}): it "
                "must not serve before it has asked this one")
    return 0 if _serves(place) else 1


def _serves(place: Path) -> bool:
    """Wait until the broker of a folder serves, and print a line if it does not come to that."""
    from geminga.storage.runtime.unix_sockets import HTTP, UNIX
    from geminga.supervisor.pulsar_client.rest import Broker, NotReachable, Refused
    broker, until, why = Broker(f"{UNIX}{place / HTTP}", _SILENT_SECONDS), time.monotonic() + _PROMOTE_SECONDS, ""
    while time.monotonic() < until:
        try:
            broker.ask("GET", "/ready")
            return True
        except (NotReachable, Refused) as error:
            why = str(error)
        time.sleep(_AGAIN_SECONDS)
    print(f"geminga: it does not serve yet: {why}", file=sys.stderr)
    return False

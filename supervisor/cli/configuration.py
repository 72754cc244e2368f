"""Commands that check a broker's configuration, reload it, and drain the broker.

    geminga config    checks or prints a configuration before a broker uses it
    geminga reload    has a running broker take over its changed configuration
    geminga drain     has a running broker stop after its consumers have acknowledged their messages
"""
import os
import pwd
import sys
import traceback
from pathlib import Path

import click

from geminga.supervisor.cli import installed

_RELOAD_SECONDS = 120.0      # limit for a reload, which may restart processes
_SILENT_SECONDS = 10.0       # limit between two answers during a drain, or until the broker's end
_FILE = click.option("--config", metavar="FILE", help="TOML, or Pulsar's broker.conf or standalone.conf")
_DATA_DIR = click.option("--data-dir", metavar="DIR", help="the data folder")
_OF = click.option("--data-dir", metavar="DIR",
                   help="the broker's data folder (default: ./data, or the installed broker's)")


@click.group()
def config() -> None:
    """Check or print a configuration, made of FILE, the environment and the defaults."""


@config.command(epilog="Exit status: 0 a broker can be started, or reloaded, with it; 2 not, and a line says why.")
@_FILE
@_DATA_DIR
@click.option("--user", metavar="NAME",
              help="the user that the broker runs as, for root (default: geminga, if the package is installed)")
def check(config: str | None, data_dir: str | None, user: str | None) -> int:
    """Tell whether a broker can use a configuration, and print the keys that differ from their defaults.

    Keys, certificates and the data folder are checked too.  Files are read as the broker's user, who may read less
    than root.
    """
    if (name := user or installed.user()) is None:
        return _look(config, data_dir, is_all=False)
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise click.BadParameter(f"there is no user {name}", param_hint="--user") from None
    return _look_as(entry, config, data_dir)


def _look_as(user: pwd.struct_passwd, config: str | None, data_dir: str | None) -> int:
    """Check the configuration in a child process with the rights of a user, and return its exit status.

    The status is 2 if this process may not take that user's rights.
    """
    # Imported before the rights go: the user may not be allowed to read the modules.
    from geminga.supervisor.processes import serve  # noqa: F401
    sys.stdout.flush()
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = 1
    try:
        if os.geteuid() != user.pw_uid:
            os.initgroups(user.pw_name, user.pw_gid)
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
        status = _look(config, data_dir, is_all=False, whose=f"as user {user.pw_name}: ")
    except PermissionError as error:
        print(f"geminga: only root can look as user {user.pw_name}: {error.strerror}", file=sys.stderr)
        status = 2
    except Exception:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


@config.command()
@_FILE
@_DATA_DIR
def show(config: str | None, data_dir: str | None) -> int:
    """Print every key with its value and the value's source; stars for secrets."""
    return _look(config, data_dir, is_all=True)


def _look(file: str | None, data_dir: str | None, *, is_all: bool, whose: str = "") -> int:
    """Print the keys of a configuration, all or those that differ from their defaults.  Return the exit status.

    whose: beginning of messages, such as "as user geminga: ".
    """
    from geminga.storage.disk import data_folder
    from geminga.storage.errors import text_of
    from geminga.supervisor.configuration import config as configuration
    from geminga.supervisor.processes.reload import shown, value
    from geminga.workers.identity.authentication import Authenticator
    from geminga.workers.identity.certificates import Tls
    from geminga.workers.identity.options import Unusable
    file, given = installed.configuration(file, data_dir), {"data_dir": data_dir}
    try:
        loaded, notes = configuration.load(file, os.environ, given)
        origins = configuration.origins(file, os.environ, given)
        if loaded.tls.certificate:
            Tls(loaded.tls)
        Authenticator(loaded.identity)
        if not is_all:
            data_folder.look(loaded.data_dir)
    except (configuration.ConfigError, Unusable) as error:
        print(f"geminga: {whose}{error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"geminga: {whose}data_dir: {text_of(error)}", file=sys.stderr)
        return 2
    for note in notes:
        print(f"geminga: {note}", file=sys.stderr)
    for key, (_, default) in configuration.KEYS.items():
        holds = value(loaded, key)
        if is_all or (key in origins and holds != default):
            origin = origins.get(key, "default" if holds == default else "worked out")
            print(f"{key} = {shown(_as_text(holds))}    # {origin}")
    return 0


def _as_text(setting: object) -> object:
    return str(setting) if isinstance(setting, Path) else setting


@click.command(epilog="Exit status: 0 the configuration is in force; 1 no broker serves the folder; "
                      "2 it cannot be used, and the one before stays in force.")
@_OF
def reload(data_dir: str | None) -> int:
    """Have the broker of a data folder reload its configuration, as SIGHUP does.

    The command ends when the configuration is in force in every process.
    """
    from geminga.supervisor.processes import control_socket
    place = _place(data_dir)
    try:
        for answer in control_socket.ask(place, _RELOAD_SECONDS, reload=True):
            for change in answer["changes"]:
                print(change)
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
        return Path(data_dir)
    from geminga.supervisor.configuration import config as configuration
    return configuration.load(installed.configuration(None, data_dir), os.environ, {})[0].data_dir


@click.command(epilog="Exit status: 0 the broker has stopped; 1 no broker serves the folder.")
@_OF
@click.option("--seconds", type=click.FloatRange(0, 24 * 3600), default=10, show_default=True,
              help="how long consumers may take at most")
def drain(data_dir: str | None, seconds: float) -> int:
    """Have the broker of a data folder stop after its consumers have acknowledged the messages that they hold.

    From now on the broker takes no messages, opens no producers and consumers, and delivers nothing.  Messages sent
    before still get their receipts.
    """
    from geminga.supervisor.processes import control_socket
    left = None
    try:
        for answer in control_socket.ask(_place(data_dir), _SILENT_SECONDS, drain=seconds):
            if answer["outstanding"] != left:
                left = answer["outstanding"]
                print(f"{left} messages are to be acknowledged yet", flush=True)
    except control_socket.NotServed as error:
        print(f"geminga: {error}", file=sys.stderr)
        return 1
    print(f"stopped; {left} messages will be redelivered" if left else "stopped; nothing is outstanding")
    return 0

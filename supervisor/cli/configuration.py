"""geminga config: what a configuration says, before a broker has to live with it; geminga reload: have a running one take it; geminga
drain: have it stop when its consumers have acknowledged what they have."""
import os
import pwd
import sys
import traceback
from pathlib import Path

import click

from geminga.supervisor.cli import installed

_RELOAD_SECONDS = 120.0      # that a reload may take; an owner may have to be started again for it
_SILENT_SECONDS = 10.0       # from one word of a broker that is being drained to the next, or to its end
_FILE = click.option("--config", metavar="FILE", help="TOML, or Pulsar's broker.conf or standalone.conf")
_DATA_DIR = click.option("--data-dir", metavar="DIR", help="where everything is kept")
_OF = click.option("--data-dir", metavar="DIR", help="of the broker (default: ./data, or the installed broker's)")


@click.group()
def config() -> None:
    """Look at a configuration: FILE, the environment, the defaults."""


@config.command(epilog="Exit status: 0 a broker can be started, or reloaded, with it; 2 it cannot, and a line says why.")
@_FILE
@_DATA_DIR
@click.option("--user", metavar="NAME", help="that the broker runs as, for root (default: geminga, where the package is installed)")
def check(config: str | None, data_dir: str | None, user: str | None) -> int:
    """Tell whether a broker can use it, its keys, certificates and data folder included, and what differs from the defaults.

    Files are looked at as the broker's user, who may read less than root.
    """
    if (name := user or installed.user()) is None:
        return _look(config, data_dir, is_all=False)
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise click.BadParameter(f"there is no user {name}", param_hint="--user") from None
    return _look_as(found, config, data_dir)


def _look_as(user: pwd.struct_passwd, config: str | None, data_dir: str | None) -> int:
    """In a process of that user's rights.  Where nobody becomes another user, a usage error says so."""
    from geminga.supervisor.processes import serve  # noqa: F401 - all that is needed is read before the rights go
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
    """Print every key, what holds, and where that comes from; stars for secrets."""
    return _look(config, data_dir, is_all=True)


def _look(file: str | None, data_dir: str | None, *, is_all: bool, whose: str = "") -> int:
    """whose: rights; for complaints."""
    from geminga.storage.disk import data_folder
    from geminga.storage.errors import text_of
    from geminga.supervisor.configuration import config as configuration
    from geminga.supervisor.processes.reload import shown, value
    from geminga.workers.identity.authentication import Authenticator
    from geminga.workers.identity.certificates import Tls
    from geminga.workers.identity.options import Unusable
    file, given = installed.configuration(file, data_dir), {"data_dir": data_dir}
    try:
        found, notes = configuration.load(file, os.environ, given)
        origins = configuration.origins(file, os.environ, given)
        if found.tls.certificate:
            Tls(found.tls)
        Authenticator(found.identity)
        if not is_all:
            data_folder.look(found.data_dir)
    except (configuration.ConfigError, Unusable) as error:
        print(f"geminga: {whose}{error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"geminga: {whose}data_dir: {text_of(error)}", file=sys.stderr)
        return 2
    for note in notes:
        print(f"geminga: {note}", file=sys.stderr)
    for key, (_, default) in configuration.KEYS.items():
        holds = value(found, key)
        if is_all or (key in origins and holds != default):
            print(f"{key} = {shown(_as_text(holds))}    # {origins.get(key, 'default' if holds == default else 'worked out')}")
    return 0


def _as_text(found: object) -> object:
    return str(found) if isinstance(found, Path) else found


@click.command(epilog="Exit status: 0 what is written holds; 1 no broker serves the folder; 2 it cannot be used: what held before goes on.")
@_OF
def reload(data_dir: str | None) -> int:
    """Have the broker of a data folder take its configuration anew, as SIGHUP does, and wait until it holds in every process."""
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
    """The data folder that is meant.  Raises ConfigError."""
    if data_dir is not None:
        return Path(data_dir)
    from geminga.supervisor.configuration import config as configuration
    return configuration.load(installed.configuration(None, data_dir), os.environ, {})[0].data_dir


@click.command(epilog="Exit status: 0 it has stopped; 1 no broker serves the folder.")
@_OF
@click.option("--seconds", type=click.FloatRange(0, 24 * 3600), default=10, show_default=True, help="that consumers have for it at most")
def drain(data_dir: str | None, seconds: float) -> int:
    """Have the broker of a data folder stop once consumers have acknowledged what they have.

    From now on nobody may publish, subscribe or get anything; what was published is answered.
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
    print(f"stopped; {left} messages will be given out again" if left else "stopped; nothing is outstanding")
    return 0

"""A reload: the configuration as it is written now takes the place of the one before it, in every process, while all go on.

Everything holds in every process when a reload is done, but for what NEEDS_RESTART has, and its reason.
"""
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from geminga.storage.runtime.control import Control, packed
from geminga.storage.runtime.log import log
from geminga.supervisor.configuration.config import KEYS, SECTIONS, Config, ConfigError
from geminga.supervisor.processes.children import READY, Child, spread
from geminga.supervisor.processes.supervision import Supervision
from geminga.workers.identity.authentication import Authenticator
from geminga.workers.identity.certificates import Tls
from geminga.workers.identity.options import Secret, Unusable

_LISTENERS = "listeners are opened before the processes that accept from them start"
NEEDS_RESTART = {
    "data_dir": "all files that are open lie in it",
    "workers": "listeners and shared memory of each are made at the start",
    "owners": "partitions and journals are distributed among them at the start",
    "network.bind": _LISTENERS, "network.port": _LISTENERS, "http_bind": _LISTENERS, "http_port": _LISTENERS,
    "tls.port": _LISTENERS, "tls.http_port": _LISTENERS,
}
TLS_SWITCH = "listeners with TLS are opened at the start"


class Change(NamedTuple):
    key: str
    old: Any
    new: Any
    needs: str = ""      # why it needs a restart; else it holds from now on

    def __str__(self) -> str:
        text = f"{self.key}: {shown(self.old)} -> {shown(self.new)}"
        return f"{text} needs a restart ({self.needs}); {shown(self.old)} stays" if self.needs else text


def value(config: Config, key: str) -> Any:
    section, _, name = key.rpartition(".")
    return getattr(getattr(config, SECTIONS[section][0]) if section else config, name)


def shown(found: Any) -> str:
    """As TOML has it; stars for a secret."""
    if isinstance(found, bool):
        return str(found).lower()
    if isinstance(found, tuple):
        return f"[{', '.join(map(shown, found))}]"
    if isinstance(found, int):
        return str(found)
    return f'"{"***" if isinstance(found, Secret) and found else found}"'


def merged(old: Config, new: Config) -> tuple[Config, list[Change]]:
    """(the new one, with the old one's values where these cannot change, what is different)"""
    changes = [Change(key, value(old, key), value(new, key), NEEDS_RESTART.get(key, "")) for key in KEYS
               if value(old, key) != value(new, key)]
    if bool(old.tls.certificate) != bool(new.tls.certificate):
        changes = [change._replace(needs=change.needs or TLS_SWITCH) if change.key.startswith("tls.") else change for change in changes]
    for change in changes:
        if change.needs:
            new = _with(new, change.key, change.old)
    return new, changes


def _with(config: Config, key: str, old: Any) -> Config:
    section, _, name = key.rpartition(".")
    if not section:
        return replace(config, **{name: old})
    part = SECTIONS[section][0]
    return replace(config, **{part: replace(getattr(config, part), **{name: old})})


class Reload:
    """Of one supervisor: what was asked for, and the one that is under way."""

    def __init__(self, supervisor: Supervision, load: Callable[[], tuple[Config, list[str]]]):
        self._supervisor, self._load = supervisor, load
        self._is_due = False
        self._callers: list[Control] = []              # who are told how it ended
        self._roles: list[tuple[str, ...]] | None = None      # of children who are to be told yet, group by group; None: none is under way
        self._changes: list[Change] = []
        self.refused = ""                              # what is wrong with the configuration that was to be loaded last

    def requested(self, *_) -> None:
        """By a signal."""
        self._is_due = True

    def asked(self, caller: Control, is_asked: Any) -> None:
        """By an operator.  Raises ValueError."""
        if is_asked is not True:
            raise ValueError(is_asked)
        self._is_due = True
        self._callers.append(caller)

    def answered(self, child: Child, refused: str) -> None:
        """The child has taken new options, or cannot: then it is asked until it has ended, and whoever takes its place begins with them."""
        if not refused:
            child.is_asked = False
        elif refused == "again":
            child.leaves_for = "ends for its successor to have the new configuration"
        else:
            child.killed_for = f"cannot take the new configuration: {refused}; it was killed"
            os.kill(child.pid, signal.SIGKILL)

    def go_on(self) -> None:
        """It begins when it is asked for and everybody is there; it ends when what it has changed is in force everywhere."""
        supervisor = self._supervisor
        if supervisor.is_stopping or not supervisor.is_ready or supervisor.is_draining:
            return
        if self._is_due and self._roles is None:
            self._is_due = False
            self._begin()
        if self._roles is None or any(child.is_asked or child.state != READY for child in supervisor.children):
            return
        if self._roles:
            self._configure(self._roles.pop(0))
        else:
            self._end("")

    def _begin(self) -> None:
        supervisor, self._changes = self._supervisor, []
        supervisor.notify.reloading()
        try:
            loaded, notes = self._load()
            config, changes = merged(supervisor.config, loaded)
            if supervisor.certificates is not None:
                Tls(config.tls)
            Authenticator(config.identity)
            if supervisor.certificates is not None:
                supervisor.certificates.configure(config.tls)
            supervisor.authenticator.configure(config.identity)
        except (ConfigError, Unusable) as error:
            return self._end(str(error))
        for note in notes:
            log.warning(note, code="G331")
        for change in changes:
            log.warning(str(change), code="G333") if change.needs else log.info(str(change))
        # No message may come to an owner that is too large for it.
        self._roles, self._changes = [("owner",), ("worker", "admin")], changes
        if config.worker.max_message_size < supervisor.config.worker.max_message_size:
            self._roles.reverse()
        supervisor.config = config
        supervisor.announce(config)
        if "affinity" in {change.key for change in changes}:
            spread(supervisor.children, config.affinity == "spread")
        log.begin(config.log)

    def _configure(self, roles: tuple[str, ...]) -> None:
        """These are told what holds now."""
        supervisor, config = self._supervisor, self._supervisor.config
        given = {"owner": (config.storage, config.log), "admin": (config, supervisor.addresses),
                 "worker": (config.worker, config.storage, config.identity, supervisor.addresses, config.log)}
        for child in supervisor.children:
            if child.role in roles:
                child.is_asked = True
                child.control.send(options=packed(given[child.role]))

    def _end(self, refused: str) -> None:
        self._roles, self.refused = None, refused
        if refused:
            log.error(f"{refused}; the configuration before it stays in force", code="G332")
        else:
            log.info(f"the configuration was loaded: {sum(not change.needs for change in self._changes)} keys have changed")
        for caller in self._callers:
            caller.send(changes=list(map(str, self._changes)), error=refused)
            self._supervisor.hang_up(caller)
        self._callers = []
        self._supervisor.tell_status()
        self._supervisor.notify.ready()

"""A reload: a changed configuration comes into force in every process of a running broker.

After a reload all processes use the new values, except those of keys in NEEDS_RESTART, which has the reasons.
"""
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from geminga.storage.runtime.control import Control, packed
from geminga.storage.runtime.log import log
from geminga.supervisor.configuration.config import KEYS, SECTIONS, Config, ConfigError, shown, value
from geminga.supervisor.configuration.restarts import NEEDS_RESTART, TLS_SWITCH
from geminga.supervisor.processes.children import READY, Child, spread
from geminga.supervisor.processes.supervision import Supervision
from geminga.workers.identity.authentication import Authenticator
from geminga.workers.identity.certificates import Tls
from geminga.workers.identity.options import Unusable


class Change(NamedTuple):
    """A configuration key whose value differs between the configuration in force and the new one."""

    key: str
    old: Any
    new: Any
    needs: str = ""      # why it needs a restart; "" if it comes into force now

    def __str__(self) -> str:
        text = f"{self.key}: {shown(self.old)} -> {shown(self.new)}"
        return f"{text} needs a restart ({self.needs}); {shown(self.old)} stays" if self.needs else text


def merged(old: Config, new: Config) -> tuple[Config, list[Change]]:
    """Return the configuration that a reload brings into force, and all changes.

    Keys that need a restart keep their old values in that configuration.
    """
    changes = [Change(key, value(old, key), value(new, key), NEEDS_RESTART.get(key, "")) for key in KEYS
               if value(old, key) != value(new, key)]
    if bool(old.tls.certificate) != bool(new.tls.certificate):
        changes = [change._replace(needs=change.needs or TLS_SWITCH) if change.key.startswith("tls.") else change
                   for change in changes]
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
    """Requests for a reload of the configuration, and the reload that is under way.

    Children get the new options group by group: one group has confirmed them before the next group is told.
    """

    def __init__(self, supervisor: Supervision, load: Callable[[], tuple[Config, list[str]]]):
        self._supervisor, self._load = supervisor, load
        self._is_due = False
        self._waiting: list[Control] = []              # connections that ask for the next reload
        self._callers: list[Control] = []              # connections that are told how this reload ended
        # groups of roles that have not got the new options yet; None: no reload is under way
        self._roles: list[tuple[str, ...]] | None = None
        self._changes: list[Change] = []
        self.refused = ""                              # why the last reload was refused

    def __repr__(self) -> str:
        return f"<Reload due={self._is_due} roles={self._roles} callers={len(self._callers)} refused={self.refused!r}>"

    def requested(self, *_: object) -> None:
        """Record a request for a reload by a signal; `go_on` begins the reload."""
        self._is_due = True

    def asked(self, caller: Control, is_asked: Any) -> None:
        """Record an operator's request for a reload; the caller is told the result.

        Raises ValueError for any value but true.
        """
        if is_asked is not True:
            raise ValueError(is_asked)
        self._is_due = True
        self._waiting.append(caller)

    def answered(self, child: Child, refused: str) -> None:
        """Record a child's answer to new options.

        refused: "" if the child applies the options, "again" if it ends for a successor, else an error.  A child that
        cannot apply the options is killed, and counts as asked until its end.  Its successor starts with the new
        options.
        """
        if not refused:
            child.is_asked = False
        elif refused == "again":
            child.leaves_for = "ends, and its successor has the new configuration"
        else:
            child.killed_for = f"cannot take the new configuration: {refused}; it was killed"
            os.kill(child.pid, signal.SIGKILL)

    def go_on(self) -> None:
        """Take the next step of a reload.

        A reload begins when all children are ready, tells one group after the other, and ends when all have confirmed.
        """
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
        # Whoever asks from now on may have changed the configuration again, so another reload has to read it.
        self._callers, self._waiting = self._waiting, []
        supervisor.notify.reloading()
        try:
            loaded, notes = self._load()
            config, changes = merged(supervisor.config, loaded)
            # All is tried before any of it is in force: a reload that is refused changes nothing.
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
        # A larger maximum size of messages reaches owners first, a smaller one workers.  Otherwise an owner would get
        # messages that are too large for it.
        self._roles, self._changes = [("owner",), ("worker", "admin", "web", "replicator")], changes
        if config.worker.max_message_size < supervisor.config.worker.max_message_size:
            self._roles.reverse()
        supervisor.config = config
        supervisor.announce(config)
        if "affinity" in {change.key for change in changes}:
            spread(supervisor.children, config.affinity == "spread")
        log.begin(config.log)

    def _configure(self, roles: tuple[str, ...]) -> None:
        """Send the new options to all children of these roles."""
        supervisor, config = self._supervisor, self._supervisor.config
        options = {"owner": (config.storage, config.log), "admin": (config, supervisor.addresses),
                   "web": (config.identity, config.log), "replicator": config.log,
                 "worker": (config.worker, config.storage, config.identity, supervisor.addresses, config.log)}
        for child in supervisor.children:
            if child.role in roles:
                child.is_asked = True
                child.control.send(options=packed(options[child.role]))

    def _end(self, refused: str) -> None:
        self._roles, self.refused = None, refused
        if refused:
            log.error(f"{refused}; the configuration before it stays in force", code="G332")
        else:
            count = sum(not change.needs for change in self._changes)
            log.info(f"the configuration was loaded: {count} keys have changed")
        for caller in self._callers:
            caller.send(changes=list(map(str, self._changes)), error=refused)
            self._supervisor.hang_up(caller)
        self._callers = []
        self._supervisor.tell_status()
        self._supervisor.notify.ready()

"""What a reload changes: two configurations, key by key.

Everything holds in every process when a reload is done, but for what NEEDS_RESTART has, and its reason.
"""
from dataclasses import replace
from typing import Any, NamedTuple

from geminga.supervisor.config import KEYS, SECTIONS, Config
from geminga.workers.identity.options import Secret

_LISTENERS = "listeners are made before the processes that accept from them"
NEEDS_RESTART = {
    "data_dir": "everything that is open lies there",
    "workers": "each has its place in what was shared out at the start",
    "owners": "partitions are shared out among them, and their journals",
    "affinity": "a process keeps to its core from its beginning on",
    "network.bind": _LISTENERS, "network.port": _LISTENERS, "http_bind": _LISTENERS, "http_port": _LISTENERS,
    "tls.port": _LISTENERS, "tls.http_port": _LISTENERS,
}
TLS_SWITCH = "TLS on or off is a matter of listeners"


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

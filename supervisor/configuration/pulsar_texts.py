"""The configuration in force in Pulsar's words: its names, its units, its texts.

    broker.conf ──properties.py──▶ Config ──texts──▶ {Pulsar's name: text}

A setting that came from broker.conf or a PULSAR_PREFIX_ variable is told as its owner wrote it.  All others are
translated back.
"""
from collections.abc import Callable, Mapping
from typing import Any

from geminga.storage.options import StorageOptions
from geminga.supervisor.configuration.config import Config, value
from geminga.supervisor.configuration.properties import (
    AUTHORIZATION_PROVIDER,
    COMPACTIONS,
    INTERCEPTORS,
    METHODS,
    NEVER_S,
    OPEN_ID,
    SPECIAL,
    TLS_PORTS,
    TRANSLATED,
    Scaled,
    number_text,
)
from geminga.workers.identity.options import Secret

STARS = "*****"
_AUTHENTICATION = "org.apache.pulsar.broker.authentication."
_AUTHORIZATION = "org.apache.pulsar.broker.authorization."
_COMPACTION = "org.apache.pulsar.compaction."
_INTERCEPTORS = "org.apache.pulsar.common.intercept."
_PORTS = {key for key, _ in TRANSLATED.values() if key.rpartition(".")[2] in ("port", "http_port")}
Read = Callable[[str], Any]      # returns the value in force of one of Geminga's keys


def texts(config: Config, storage: StorageOptions, changed: Mapping[str, str]) -> dict[str, str]:
    """Return {Pulsar's name: text} for all settings that are translated.

    storage: options in force.  changed: texts of settings that were changed at run time.
    """
    def read(key: str) -> Any:
        section, _, name = key.rpartition(".")
        return getattr(storage, name) if section == "storage" else value(config, key)

    translated = {name: _translated_back(name, read) for name in TRANSLATED}
    translated |= {name: _SPECIAL_TEXTS[name](read) for name in SPECIAL}
    return translated | dict(config.pulsar_texts) | dict(changed)


def _translated_back(name: str, read: Read) -> str:
    key, convert = TRANSLATED[name]
    if key in TLS_PORTS.values() and not read("tls.certificate"):
        return ""      # no port is open for TLS
    setting = read(key)
    if key in _PORTS and setting < 0:
        return ""
    if isinstance(convert, Scaled):
        return convert.text(setting)
    return _BACK[key](setting) if key in _BACK else _plain(setting)


def _plain(setting: Any) -> str:
    """Return a value as Pulsar's text; stars for secrets."""
    if isinstance(setting, bool):
        return str(setting).lower()
    if isinstance(setting, tuple):
        return STARS if any(isinstance(one, Secret) for one in setting) else ",".join(setting)
    if isinstance(setting, Secret):
        return STARS if setting else ""
    return str(setting)


def _named(classes: Mapping[str, str], package: str) -> Callable[[Any], str]:
    """Return a function that names the Java classes of one or several words."""
    java = {word: package + name for name, word in classes.items()}
    return lambda words: ",".join(java[word] for word in ((words,) if isinstance(words, str) else words))


def _providers(read: Read) -> str:
    """Return the Java classes of the methods in force; tokens have one for the operator's keys, one for issuers'."""
    names = {method: name for name, method in METHODS.items()}
    classes = [names[method] for method in read("authentication.methods")]
    if "AuthenticationProviderToken" in classes and read("authentication.oidc.issuers"):
        has_keys = read("authentication.secret_keys") or read("authentication.public_keys")
        classes = [name for name in classes if has_keys or name != "AuthenticationProviderToken"]
        classes.append(f"oidc.{OPEN_ID}")
    return ",".join(_AUTHENTICATION + name for name in classes)


# Geminga's key: function that returns Pulsar's text of a value, where a converter of properties.py changes it.
_BACK: dict[str, Callable[[Any], str]] = {
    "http.web_processes": lambda processes: _plain(processes > 0),
    "network.broker_entry_metadata": _named(INTERCEPTORS, _INTERCEPTORS),
    "storage.compaction_order": _named(COMPACTIONS, _COMPACTION),
    "storage.max_unacked_percent_when_blocked": lambda percent: number_text(percent / 100),
    "storage.replicated_snapshot_interval_s": lambda seconds: str(seconds * 1_000),
    "storage.roll_over_age_s": lambda seconds: "0" if seconds == NEVER_S else Scaled(60).text(seconds),
    "tls.ciphers": lambda ciphers: ciphers.replace(":", ","),
    "tls.client_certificates": lambda demand: _plain(demand == "required"),
}
_SPECIAL_TEXTS: dict[str, Callable[[Read], str]] = {
    "activeConsumerFailoverConsistentHashing": lambda read: _plain(read("storage.failover_selection") == "hashring"),
    "allowAutoTopicCreationType": (
        lambda read: "partitioned" if read("storage.auto_create_partitions") else "non-partitioned"),
    "authenticationEnabled": lambda read: _plain(bool(read("authentication.methods"))),
    "authenticationProviders": _providers,
    "authorizationProvider": lambda read: _AUTHORIZATION + AUTHORIZATION_PROVIDER,
    "backlogQuotaDefaultLimitGB": lambda read: "-1",      # the quota is told in bytes
    "defaultNumPartitions": lambda read: str(max(1, read("storage.auto_create_partitions"))),
    "journalSyncData": lambda read: _plain(read("storage.sync") == "group"),
    "tlsEnabled": lambda read: _plain(bool(read("tls.certificate"))),
    "webServiceTlsCiphers": lambda read: _translated_back("tlsCiphers", read),
    "webServiceTlsProtocols": lambda read: _translated_back("tlsProtocols", read),
}

"""Records of clusters: their fields, the checks of what is sent, and what is shown of them.

A record has the fields of Pulsar's ClusterData that replication to the cluster needs. A field that would change where
messages go, or how their connection is protected, and that has no effect here is refused.
"""
import json
import socket
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import click

from geminga.storage.catalogue.policy_values import Invalid
from geminga.workers.addresses import Addresses, is_wildcard
from geminga.workers.pulsar_client import credentials

URLS = {"serviceUrl": "http://", "serviceUrlTls": "https://", "brokerServiceUrl": "pulsar://",
        "brokerServiceUrlTls": "pulsar+ssl://"}
_EXAMPLES = {"http://": "example.com:8080", "https://": "example.com:8443", "pulsar://": "example.com:6650",
             "pulsar+ssl://": "example.com:6651"}
# Fields that a record always shows.
SWITCHES = {"brokerClientTlsEnabled": False, "tlsAllowInsecureConnection": False,
            "brokerClientTlsEnabledWithKeyStore": False}
_TEXTS = "authenticationPlugin", "authenticationParameters", "brokerClientTrustCertsFilePath", "listenerName"
FIELDS = (*URLS, *SWITCHES, *_TEXTS)
_SECRET = "authenticationParameters"      # noqa: S105 (the name of a field)
HIDDEN = "***"               # shown in place of a secret; where it is sent, the stored secret stays
_NO_KEY_STORES = "Java's key stores are not read: set brokerClientTrustCertsFilePath to a PEM file"
_REFUSED = {
    "proxyServiceUrl": "a proxy by SNI is not supported: put the proxy's address into brokerServiceUrlTls",
    "brokerClientTlsEnabledWithKeyStore": _NO_KEY_STORES, "brokerClientTlsKeyStore": _NO_KEY_STORES,
    "brokerClientTlsTrustStore": _NO_KEY_STORES,
    "brokerClientCertificateFilePath": "put the certificate into authenticationParameters of AuthenticationTls",
    "brokerClientKeyFilePath": "put the key into authenticationParameters of AuthenticationTls",
}
_SIZE_MAX = 16 << 10         # characters of one field; a token has a few thousand


def read(sent: Any, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a cluster that a request's JSON gives, as it is stored.  Raises Invalid.

    Fields that Pulsar has beside these are left out. before: the record so far, whose secret stays where it is hidden.
    """
    if not isinstance(sent, dict):
        raise Invalid("The body is an object of addresses")
    for name, why in _REFUSED.items():
        if sent.get(name):
            raise Invalid(f"{name}: {why}")
    record = {name: sent[name] for name in FIELDS if sent.get(name) is not None}
    for name in SWITCHES.keys() & record.keys():
        if not isinstance(record[name], bool):
            raise Invalid(f"{name}: expected true or false")
    for name in record.keys() - SWITCHES.keys():
        if name == _SECRET and isinstance(record[name], dict):      # as pulsar-admin's library may send it
            record[name] = json.dumps(record[name])
        if not isinstance(record[name], str) or len(record[name]) > _SIZE_MAX:
            raise Invalid(f"{name}: expected a text of at most {_SIZE_MAX} characters")
    if record.get(_SECRET) == HIDDEN:
        record[_SECRET] = before.get(_SECRET, "")
    for name, scheme in URLS.items():
        for url in _addresses(scheme, record.get(name, "")):
            _check_address(name, scheme, url)
    _check_credentials(record)
    return {name: record[name] for name in FIELDS if record.get(name) not in (None, "")}


def _addresses(scheme: str, urls: str) -> list[str]:
    """Return the addresses of a list with commas, in which the first one may have the scheme for all."""
    first, *others = urls.split(",")
    return [first, *(other if "://" in other else scheme + other for other in others)] if urls else []


def _check_address(name: str, scheme: str, url: str) -> None:
    host, port = "", -1
    if url.startswith(scheme):
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port or 0
        except ValueError:      # a port that is no number, or an open bracket
            host = ""
    if not host or port < 0 or any(letter.isspace() for letter in url):
        raise Invalid(f"Illegal {name}, example: {scheme}pulsar.{_EXAMPLES[scheme]}")


def _check_credentials(record: Mapping[str, Any]) -> None:
    """Check the credentials of a record, and the file for checking its certificate.  Raises Invalid."""
    plugin, params = record.get("authenticationPlugin", ""), record.get(_SECRET, "")
    if params and not plugin:
        raise Invalid(f"{_SECRET} needs authenticationPlugin")
    try:
        if plugin and not params.startswith("file:"):      # a file of the broker's host is read when it is used
            credentials.of(plugin, params)
    except click.UsageError as error:
        text = error.message.replace("--auth-params", _SECRET).replace("--auth-plugin", "authenticationPlugin")
        raise Invalid(text) from None
    except RecursionError:
        raise Invalid(f"{_SECRET}: expected an object of texts") from None
    if (path := record.get("brokerClientTrustCertsFilePath")) and not path.startswith("/"):
        raise Invalid("brokerClientTrustCertsFilePath: expected a path that begins with /")


def check_remote(record: Mapping[str, Any], ours: Addresses) -> None:
    """Check the record of another cluster: messages can go there, and do not come back to this broker.

    ours: this broker's addresses. Raises Invalid.
    """
    wanted = "brokerServiceUrlTls" if record.get("brokerClientTlsEnabled") else "brokerServiceUrl"
    other = "brokerServiceUrl" if record.get("brokerClientTlsEnabled") else "brokerServiceUrlTls"
    if record.get(other) and not record.get(wanted):
        how = "with" if wanted.endswith("Tls") else "without"
        raise Invalid(f"{wanted} is needed: brokerClientTlsEnabled says that messages go {how} TLS")
    own = set(_places(url for url in (*ours[:4], *(url for pair in ours.listeners.values() for url in pair)) if url))
    local = {"localhost", "127.0.0.1", "::1", socket.gethostname().lower()}
    ports = set(ours.ports.values())
    for name, scheme in URLS.items():
        for url in _addresses(scheme, record.get(name, "")):
            for host, port in _places([url]):
                if (host, port) in own or (port in ports and (host in local or is_wildcard(host))):
                    raise Invalid(f"{name}: {url} is this broker itself")


def _places(urls: Iterable[str]) -> Iterable[tuple[str, int]]:
    """Yield (host, port) of URLs."""
    for url in urls:
        parts = urlsplit(url)
        yield (parts.hostname or "").lower(), parts.port or {"http": 80, "https": 443, "pulsar": 6650}.get(
            parts.scheme, 6651)


def shown(record: Mapping[str, Any], *, with_secret: bool) -> dict[str, Any]:
    """Return a record for an answer.  with_secret: whether the asker may see its credentials."""
    return SWITCHES | (dict(record) if with_secret else hidden(record))


def hidden(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record whose credentials are replaced by stars."""
    return dict(record) | ({_SECRET: HIDDEN} if record.get(_SECRET) else {})

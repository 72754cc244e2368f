"""The record of another cluster: where its brokers are, and how to come in."""
import ssl
from typing import Any, NamedTuple

import click

from geminga.workers.pulsar_client import credentials
from geminga.workers.pulsar_client.credentials import Credentials

RECORDS = "/clusters"        # scope of the catalogue's policies with the records of clusters, by their names
_OPTIONS = {"--auth-params": "authenticationParameters", "--auth-plugin": "authenticationPlugin",
            "--tls-trust-cert-path": "brokerClientTrustCertsFilePath"}


class WrongRecord(Exception):
    """An error: a cluster has no record, or one that cannot be used; the text gives the reason."""


class ClusterAddresses(NamedTuple):
    """Addresses of a cluster, and the credentials for it."""

    urls: list[str]              # of its brokers: pulsar:// or pulsar+ssl://
    admin_url: str               # of HTTP, "" if the record has none
    listener: str                # the name of the listener whose addresses lookups give, "" for the usual one
    credentials: Credentials

    @property
    def is_secure(self) -> bool:
        return self.urls[0].startswith("pulsar+ssl:")

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context for its brokers, None without TLS.  Raises WrongRecord."""
        try:
            return self.credentials.context_for(self.urls[0])
        except click.UsageError as error:
            raise WrongRecord(_text(error)) from None


def addresses_of(record: dict[str, Any] | None) -> ClusterAddresses:
    """Return where a cluster is by its record.  Raises WrongRecord."""
    if record is None:
        raise WrongRecord("there is no record of this cluster")
    is_secure = bool(record.get("brokerClientTlsEnabled"))
    urls = _addresses(record, "brokerServiceUrlTls" if is_secure else "brokerServiceUrl")
    admin_urls = _addresses(record, "serviceUrlTls" if is_secure else "serviceUrl")
    if not urls:
        raise WrongRecord(f"the cluster's record has no {'brokerServiceUrlTls' if is_secure else 'brokerServiceUrl'}")
    try:
        shown = credentials.of(record.get("authenticationPlugin"), record.get("authenticationParameters"),
                               record.get("brokerClientTrustCertsFilePath"),
                               bool(record.get("tlsAllowInsecureConnection")))
    except click.UsageError as error:
        raise WrongRecord(_text(error)) from None
    return ClusterAddresses(urls, admin_urls[0] if admin_urls else "", record.get("listenerName") or "", shown)


def _addresses(record: dict[str, Any], field: str) -> list[str]:
    """Return the addresses of a field, which separates them by commas; those behind the first have no scheme."""
    scheme, _, rest = str(record.get(field) or "").partition("://")
    return [f"{scheme}://{one.rpartition('://')[2].strip()}" for one in rest.split(",") if one.strip()]


def _text(error: click.UsageError) -> str:
    text = error.message
    for option, field in _OPTIONS.items():
        text = text.replace(option, field)
    return f"the cluster's record: {text}"

"""TLS: a context for listeners whose certificates change while they are used.

A handshake looks at the files, once a second at most, and uses what they hold now; connections keep what they began
with.  If files cannot be used, an error is logged, and the former certificate stays in force.
"""
import re
import ssl
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from geminga.storage.runtime.log import log
from geminga.workers.identity.options import TlsOptions, Unusable
from geminga.workers.identity.sources import stamp

if TYPE_CHECKING:
    from geminga.storage.runtime.counters import Counters

_HANDSHAKE_SECONDS = 10.0      # that a client may take for a handshake
_GOODBYE_SECONDS = 2.0         # that a client may take to answer close_notify
WARN_DAYS = 30, 7, 1, 0        # before a certificate expires
_LOOK_SECONDS = 1.0            # between looks at the files
_EPISODE_SECONDS = 60.0        # handshakes that fail within so long of each other have one line in the log
_DAY = 24 * 3600
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_DEMANDS = {"none": ssl.CERT_NONE, "wanted": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class Handshake(ssl.SSLObject):
    """A connection's TLS layer, which counts its handshake and sends the alert when the handshake is refused."""

    tls: "Tls"
    outgoing: ssl.MemoryBIO
    has_failed: bool

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
            if self.session_reused and self.session is not None and self.session.time <= self.tls.trusted_since:
                raise ssl.SSLError(ssl.SSL_ERROR_SSL, "a session is resumed from before other authorities were trusted")
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            if not self.has_failed:
                self.tls.failed(error)
            if not self.has_failed and self.outgoing.pending:      # an alert, which the loop sends only if it goes on
                self.has_failed = True
                raise ssl.SSLWantReadError from None
            raise                                                  # the client has read the alert, and closed
        self.tls.shook_hands()


class Front(ssl.SSLContext):
    """The TLS context of a listener, whose connections are Handshakes."""

    sslobject_class = Handshake
    tls: "Tls"

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *arguments: Any, **options: Any) -> Handshake:
        handshake = super().wrap_bio(incoming, outgoing, *arguments, **options)
        assert isinstance(handshake, Handshake)
        handshake.tls, handshake.outgoing, handshake.has_failed = self.tls, outgoing, False
        return handshake


class Loaded(NamedTuple):
    """Contents of the certificate and key files, as read at one time."""

    context: Front
    expires: dict[str, float]        # key of the configuration -> when the first of its certificates expires, Unix time


class Tls:
    """The certificates of a process's TLS listeners.  Raises Unusable.

    The supervisor makes this object before the first fork.  A child therefore has valid certificates even if the files
    were broken since.
    """

    def __init__(self, options: TlsOptions):
        self._options = options
        self._files = self._look()
        self._loaded = load(options)
        self._looked = time.monotonic()
        self._is_failing = False
        self._trusted = self._files[-1]
        self.trusted_since = 0.0      # sessions from before prove nothing: other authorities were trusted, Unix time
        self._failed = float("-inf")       # when the last handshake failed
        self.counters: Counters | None = None      # the process's own
        self._front = self._loaded.context         # a handshake begins with it, and changes to the context in force
        self._front.sni_callback, self._front.tls = self._greeted, self

    def __repr__(self) -> str:
        return f"<Tls {self._options.certificate}{' failing' if self._is_failing else ''}>"

    def configure(self, options: TlsOptions) -> None:
        """Apply new options to later handshakes.  Raises Unusable, and keeps the former options."""
        loaded = load(options)
        if (options.trusted, options.client_certificates) != (self._options.trusted, self._options.client_certificates):
            self.trusted_since = time.time()
        self._options, self._loaded = options, loaded
        self._files, self._looked, self._is_failing = self._look(), time.monotonic(), False
        self._trusted = self._files[-1]
        # A connection takes these from the context that it began with, before it changes to the one in force.
        new, front = loaded.context, self._front
        # The minimum may never be above the maximum, so both are widened before they change.
        front.minimum_version, front.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
        front.minimum_version, front.maximum_version = new.minimum_version, new.maximum_version
        front.verify_flags, front.verify_mode = new.verify_flags, new.verify_mode
        defaults = ":".join(cipher["name"] for cipher in new.get_ciphers() if not cipher["name"].startswith("TLS_"))
        front.set_ciphers(ciphers(options.ciphers) if options.ciphers else defaults)

    def listening(self) -> dict[str, Any]:
        """Return the TLS arguments for a loop's create_server."""
        return {"ssl": self._front, "ssl_handshake_timeout": _HANDSHAKE_SECONDS,
                "ssl_shutdown_timeout": _GOODBYE_SECONDS}

    def expiries(self) -> dict[str, float]:
        """Return {key of the configuration: Unix time at which the first of its certificates expires}."""
        self.refresh()
        return self._loaded.expires

    def _greeted(self, handshake: ssl.SSLObject, name: str | None, front: ssl.SSLContext) -> None:
        """Give a handshake that has begun the newest context.  name: server name that the client asks for."""
        self.refresh()
        if self._loaded.context is not front:
            handshake.context = self._loaded.context

    def refresh(self) -> None:
        """Read the files again if they have changed; at most once a second."""
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        files = self._look()
        if files == self._files:
            return
        self._files = files
        try:
            self._loaded = load(self._options)
        except Unusable as error:
            self.count("tls_reloads_failed")
            if not self._is_failing:
                log.error(f"{error}; the former certificate stays in force", code="G402")
            self._is_failing = True
            return
        self.count("tls_reloads")
        self._is_failing = False
        if files[-1] != self._trusted:
            self._trusted, self.trusted_since = files[-1], time.time()

    def _look(self) -> list[tuple[int, ...] | None]:
        """Return a stamp for each file, which differs when the file has changed."""
        return [stamp(path) for path in (self._options.certificate, self._options.key, self._options.trusted)]

    def count(self, name: str) -> None:
        """Add one to a counter of the process."""
        if self.counters is not None:
            self.counters.add(name)

    def shook_hands(self) -> None:
        """Count a successful handshake."""
        self.count("tls_handshakes")

    def failed(self, error: ssl.SSLError) -> None:
        """Count a failed handshake, and log it unless one was logged within the last minute."""
        self.count("tls_handshakes_failed")
        now = time.monotonic()
        if now - self._failed > _EPISODE_SECONDS:
            log.warning(f"a TLS handshake failed: {_reason(error)}; more of them within a minute are only counted",
                        code="G403")
        self._failed = now


def _reason(error: ssl.SSLError) -> str:
    reason = getattr(error, "reason", None) or str(error)
    text: str = getattr(error, "verify_message", "") or reason.replace("_", " ").lower()
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {text}"
    return text


def load(options: TlsOptions) -> Loaded:
    """Load the files and make TLS contexts of them.  Raises Unusable."""
    from geminga.workers.identity import pem  # slow to import
    chain = pem.certificates("tls.certificate", options.certificate)
    pem.check_key(options.key, chain[0])
    trusted = pem.certificates("tls.trusted", options.trusted) if options.trusted else []
    context = Front(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = min(_VERSIONS[name] for name in options.versions)
    context.maximum_version = max(_VERSIONS[name] for name in options.versions)
    # A client that resumes a session does not show its certificate again, which may have expired meanwhile.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    if options.ciphers:
        context.set_ciphers(ciphers(options.ciphers))
    try:
        context.load_cert_chain(options.certificate, options.key, password="")      # else OpenSSL asks at the terminal
    except (OSError, ssl.SSLError) as error:
        raise Unusable("tls.certificate",
                       f"is not accepted by OpenSSL: {getattr(error, 'reason', None) or error}") from None
    if trusted:
        context.load_verify_locations(cadata=b"".join(map(pem.der, trusted)))
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN      # trusts all of them, not only roots, as in Java
        context.verify_mode = _DEMANDS[options.client_certificates]
    files = {"tls.certificate": chain, "tls.trusted": trusted}
    return Loaded(context, {key: min(certificate.not_valid_after_utc.timestamp() for certificate in certificates)
                            for key, certificates in files.items() if certificates})


def ciphers(text: str) -> str:
    """Return OpenSSL's cipher list for ciphers with OpenSSL's or Java's names.  Raises Unusable."""
    words = []
    for name in filter(None, re.split(r"[:, ]", text)):
        if name.startswith("TLS_") and "_WITH_" not in name:      # of TLSv1.3, whose ciphers may all be used
            continue
        word = _openssl_name(name) if "_WITH_" in name else name
        if word[0] not in "!-+@":
            try:      # alone, as OpenSSL ignores unknown names beside known ones
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(word)
            except ssl.SSLError:
                raise Unusable("tls.ciphers", f"must be ciphers that OpenSSL has, which {name!r} is not") from None
        words.append(word)
    if not words:
        raise Unusable("tls.ciphers", "must have one for TLSv1.2: ciphers of TLSv1.3 cannot be chosen")
    return ":".join(words)


def _openssl_name(name: str) -> str:
    """Translate Java's cipher name: TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 becomes ECDHE-RSA-AES128-GCM-SHA256."""
    exchange, _, cipher = name.removeprefix("TLS_").partition("_WITH_")
    cipher = re.sub(r"^(AES|CAMELLIA|ARIA)_", r"\1", cipher).replace("_CBC", "").replace("CCM_8", "CCM8")
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    return (cipher if exchange == "RSA" else f"{exchange}_{cipher}").replace("_", "-")


def warning(key: str, expires: float, now: float) -> tuple[int, str]:
    """Return (the step of WARN_DAYS that an expiring certificate has reached, a log line); (-1, "") if none is
    reached.

    key: of the configuration.  expires, now: Unix time.
    """
    days = [days for days in WARN_DAYS if expires - now <= days * _DAY]
    if not days:
        return -1, ""
    when = datetime.fromtimestamp(expires, UTC).isoformat(sep=" ", timespec="minutes").removesuffix("+00:00")
    return days[-1], f"a certificate of {key} {'expires' if expires > now else 'has expired'} on {when} UTC"

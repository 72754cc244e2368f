"""Authentication: Credentials -> Identity.

The supervisor makes one Authenticator before it forks, so that all processes have the same keys; each process looks for
itself whether the keys' files have changed.  An Authenticator has no sockets and counts nothing: attempts.py counts,
and handshakes.py leads the handshake of the binary protocol.
"""
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from geminga.proto import pulsar_api_pb2 as api
from geminga.workers.identity.credentials import Credentials, NotAuthenticated, Proof
from geminga.workers.identity.options import IdentityOptions

if TYPE_CHECKING:
    import asyncio

    from geminga.workers.identity.issuers import Issuer

LOCAL = "local"      # method of clients that come by a socket in the data folder, see local.py


@dataclass(frozen=True, slots=True)
class Identity:
    """The role of a client, and the credentials that proved it, if authentication is on."""

    role: str                          # "": authentication is off
    method: str = ""      # "token", "basic", "tls", LOCAL; "": the anonymous role, or authentication is off
    expires_s: float | None = None     # when its credentials expire, in seconds since 1970; None: never
    proxy: str = ""                    # the role of the proxy that asks on behalf of `role`
    groups: tuple[str, ...] = ()       # whose rights `role` has too


NOT_ASKED = Identity(role="")
OURSELVES = Identity("geminga", LOCAL)


@dataclass(frozen=True, slots=True)
class Original:
    """The client that a proxy asks for, and that client's credentials, if the proxy passes them on."""

    principal: str
    credentials: Credentials | None = None


class Method(Protocol):
    """A way to authenticate, such as tokens."""

    def fetching(self, data: bytes) -> "asyncio.Future[None] | None":
        """Return what has to end before these credentials can be checked; None if they can be checked now."""

    def is_slow(self, data: bytes) -> bool:
        """Whether checking these credentials takes so long that a thread has to do it."""

    def identify(self, data: bytes, certificate: bytes | None) -> Proof:
        """Return what valid credentials prove.  Raises NotAuthenticated."""


class Authenticator:
    """Checks credentials by the configured methods."""

    def __init__(self, options: IdentityOptions):
        """Load keys and users.  Raises Unusable: a key or a file of users cannot be read."""
        self._methods: dict[str, Method] = {}
        self.configure(options)

    def configure(self, options: IdentityOptions) -> None:
        """Apply new options.

        Raises Unusable, and keeps the former options: a key or a file of users cannot be read.
        """
        former = self._methods
        self._methods = {name: _method(name, options, former.get(name)) for name in options.authentication.methods}
        self._options = options.authentication
        self._proxies = frozenset(options.authorization.proxy_roles)
        self._is_authorization_on = options.authorization.enabled

    def __repr__(self) -> str:
        return f"<Authenticator {', '.join(self._methods) or 'off'}>"

    @property
    def is_on(self) -> bool:
        """Whether clients have to authenticate."""
        return bool(self._methods)

    @property
    def checks_originals(self) -> bool:
        """Whether proxies have to pass on their clients' credentials, so that these are checked too."""
        return self._options.original_authentication

    @property
    def refresh_interval_s(self) -> int:
        return self._options.refresh_interval_s

    def asks_for(self, method: str) -> bool:
        """Whether the configuration allows this authentication method."""
        return method in self._methods

    def fetching(self, *shown: Credentials) -> "asyncio.Future[None] | None":
        """Return what has to end before these credentials can be checked, such as a fetch of an issuer's keys.

        It is shared by clients, and reports no errors.  None: they can be checked now.  Needs a running loop.
        """
        for credentials in shown:
            method = self._methods.get(credentials.method)
            if method is not None and (future := method.fetching(credentials.data)) is not None:
                return future
        return None

    def issuer(self, url: str) -> "Issuer | None":
        """Return an issuer whose tokens are accepted, None if the configuration names no such issuer."""
        if "token" not in self._methods:
            return None
        from geminga.workers.identity.tokens import Tokens
        method = self._methods["token"]
        return method.issuers.get(url) if isinstance(method, Tokens) else None

    def is_slow(self, credentials: Credentials | None) -> bool:
        """Whether checking these credentials takes so long that a thread has to do it."""
        method = self._methods.get(credentials.method) if credentials else None
        return credentials is not None and method is not None and method.is_slow(credentials.data)

    def identify(self, credentials: Credentials) -> Identity:
        """Return the identity that the credentials prove.  Raises NotAuthenticated."""
        method = self._methods.get(credentials.method)
        if method is not None:
            proof = method.identify(credentials.data, credentials.certificate)
            return Identity(proof.role, credentials.method, proof.expires_s, groups=proof.groups)
        if self._options.anonymous_role:
            return Identity(self._options.anonymous_role)
        why = "no credentials" if credentials.method in ("", "none") else "a method that is not configured"
        raise NotAuthenticated("UNKNOWN_METHOD", why)

    def admit(self, credentials: Credentials, original: Original | None = None, *, names_proxy: bool = False,
              may_repeat: bool = False) -> Identity:
        """Return the identity of a new client, or of the client that a proxy asks for.  Raises NotAuthenticated.

        names_proxy: the client says that it is a proxy.  may_repeat: the client may name itself as the original, as
        clients of REST do.
        """
        identity = self.identify(credentials)
        is_proxy = identity.role in self._proxies
        principal = original.principal.strip() if original else ""
        if self._is_authorization_on:
            if is_proxy:
                is_right = bool(principal) and principal not in self._proxies
            else:
                is_right = not principal or (may_repeat and principal == identity.role)
            if not is_right:
                why = "a proxy must say on whose behalf it asks" if is_proxy else \
                    "only a proxy may ask on behalf of others"
                raise NotAuthenticated("INVALID_PRINCIPAL", why, api.AuthorizationError, "Invalid roles.")
            if names_proxy and not is_proxy:
                raise NotAuthenticated("INVALID_PRINCIPAL", "its role is none of proxy_roles",
                                       api.AuthorizationError,
                                       "Must not set proxyVersion without connecting as a ProxyRole.")
        if not is_proxy or not principal:
            return identity
        if self.checks_originals and original is not None and original.credentials is not None:
            passed_on = self.identify(original.credentials)
            if passed_on.role in self._proxies:
                raise NotAuthenticated("INVALID_PRINCIPAL", "a proxy asks on behalf of another proxy",
                                       api.AuthorizationError, "Invalid roles.")
            return replace(passed_on, proxy=identity.role)
        return replace(identity, role=principal, proxy=identity.role, groups=())      # they are the proxy's own

    def accepts(self, identity: Identity) -> bool:
        """Whether the present options would admit an identity that former options admitted."""
        if not self.is_on or identity.method == LOCAL:
            return True
        if not identity.method:
            return bool(identity.role) and identity.role == self._options.anonymous_role
        return self.asks_for(identity.method) and (not identity.proxy or identity.proxy in self._proxies)

    def renew(self, identity: Identity, credentials: Credentials) -> Identity:
        """Return the identity with fresh credentials, which must prove the same role and groups.

        Raises NotAuthenticated.
        """
        renewed = self.identify(credentials)
        is_of_proxy = bool(identity.proxy) and not self.checks_originals
        if renewed.role != (identity.proxy if is_of_proxy else identity.role):
            raise NotAuthenticated("ROLE_CHANGED", "the new credentials prove another role")
        if not is_of_proxy and renewed.groups != identity.groups:
            # Producers and consumers that are open were admitted with the former groups.
            raise NotAuthenticated("ROLE_CHANGED", "the new credentials prove other groups")
        return replace(identity, expires_s=renewed.expires_s)


class _Certificates:
    """The method "tls": the client's certificate, which the listener has verified in the TLS handshake."""

    def fetching(self, data: bytes) -> None:
        """Return None: a certificate comes with everything."""

    def is_slow(self, data: bytes) -> bool:
        return False

    def identify(self, data: bytes, certificate: bytes | None) -> Proof:
        from cryptography import x509
        if certificate is None:
            raise NotAuthenticated("INVALID_CERTS", "no certificate")
        try:
            names = x509.load_der_x509_certificate(certificate).subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        except ValueError:
            raise NotAuthenticated("INVALID_CERTS", "a certificate that cannot be read") from None
        if not names or not isinstance(names[-1].value, str) or not names[-1].value:
            raise NotAuthenticated("INVALID_CN", "the certificate has no common name")
        return Proof(names[-1].value)


def _method(name: str, options: IdentityOptions, former: Method | None) -> Method:
    """Return the method with this name.  Its libraries take tens of megabytes, so they are loaded if it is configured.
    """
    if name == "token":
        from geminga.workers.identity.tokens import Tokens
        return Tokens(options.authentication, options.oidc, former if isinstance(former, Tokens) else None)
    if name == "basic":
        from geminga.workers.identity.basic import Basic
        return Basic(options.authentication)
    return _Certificates()

"""Who somebody is: what they show -> Identity.

One Authenticator is made by the supervisor before it forks, so that all processes have the same keys; each looks for itself whether their
files have changed.  It has no sockets and counts nothing: attempts.py does, and handshakes.py leads the binary protocol's handshake.
"""
from dataclasses import dataclass, replace

from geminga.proto import pulsar_api_pb2 as api
from geminga.workers.identity.options import IdentityOptions
from geminga.workers.identity.shown import NotAuthenticated, Shown

INTERNAL = "internal"          # the method of our own processes: they come by a socket that nobody else reaches


@dataclass(frozen=True, slots=True)
class Identity:
    """Somebody who has shown who they are, or was not asked."""

    role: str                          # "": nobody is asked
    method: str = ""                   # "token", "basic" or "tls"; "" for the anonymous role, or when nobody is asked; INTERNAL: ourselves
    expires_s: float | None = None     # seconds since 1970 when what was shown is no longer good
    proxy: str = ""                    # the role of the proxy that asks on behalf of `role`


NOT_ASKED = Identity(role="")
OURSELVES = Identity("geminga", INTERNAL)


@dataclass(frozen=True, slots=True)
class Original:
    """On whose behalf a proxy asks, and what that one has shown to it."""

    principal: str
    shown: Shown | None = None


class Authenticator:
    """Knows the methods of the configuration."""

    def __init__(self, options: IdentityOptions):
        """Raises Unusable: a key or a file of users cannot be read."""
        self.configure(options)

    def configure(self, options: IdentityOptions) -> None:
        """These hold from now on.  Raises Unusable, and those before hold on."""
        self._methods = {name: _MAKERS[name](options.authentication) for name in options.authentication.methods}
        self._options = options.authentication
        self._proxies = frozenset(options.authorization.proxy_roles)
        self._is_authorization_on = options.authorization.enabled

    @property
    def is_on(self) -> bool:
        """Whether anybody is asked."""
        return bool(self._methods)

    @property
    def checks_originals(self) -> bool:
        return self._options.original_authentication

    @property
    def refresh_interval_s(self) -> int:
        return self._options.refresh_interval_s

    def asks_for(self, method: str) -> bool:
        return method in self._methods

    def is_slow(self, shown: Shown | None) -> bool:
        """Whether it takes so long to check that it belongs into a thread."""
        method = self._methods.get(shown.method) if shown else None
        return method is not None and method.is_slow(shown.data)

    def identify(self, shown: Shown) -> Identity:
        """Raises NotAuthenticated."""
        method = self._methods.get(shown.method)
        if method is not None:
            role, expires_s = method.identify(shown.data, shown.certificate)
            return Identity(role, shown.method, expires_s)
        if self._options.anonymous_role:
            return Identity(self._options.anonymous_role)
        raise NotAuthenticated("UNKNOWN_METHOD", "nothing was shown" if shown.method in ("", "none") else "a method that is not configured")

    def admit(self, shown: Shown, original: Original | None = None, *, names_proxy: bool = False, may_repeat: bool = False) -> Identity:
        """Who it is, and on whose behalf.  Raises NotAuthenticated.

        names_proxy: it says that it is a proxy; may_repeat: it may name itself as the original, as clients of REST do.
        """
        identity = self.identify(shown)
        is_proxy = identity.role in self._proxies
        principal = original.principal.strip() if original else ""
        if self._is_authorization_on:
            if is_proxy:
                is_right = bool(principal) and principal not in self._proxies
            else:
                is_right = not principal or (may_repeat and principal == identity.role)
            if not is_right:
                why = "a proxy must say on whose behalf it asks" if is_proxy else "only a proxy may ask on behalf of others"
                raise NotAuthenticated("INVALID_PRINCIPAL", why, api.AuthorizationError, "Invalid roles.")
            if names_proxy and not is_proxy:
                raise NotAuthenticated("INVALID_PRINCIPAL", "it says that it is a proxy and is none", api.AuthorizationError,
                                       "Must not set proxyVersion without connecting as a ProxyRole.")
        if not is_proxy or not principal:
            return identity
        if self.checks_originals and original.shown is not None:
            found = self.identify(original.shown)
            if found.role in self._proxies:
                raise NotAuthenticated("INVALID_PRINCIPAL", "a proxy asks on behalf of a proxy", api.AuthorizationError, "Invalid roles.")
            return replace(found, proxy=identity.role)
        return replace(identity, role=principal, proxy=identity.role)

    def accepts(self, identity: Identity) -> bool:
        """Whether somebody who was admitted by options that held before could be now, by the same way."""
        if not self.is_on or identity.method == INTERNAL:
            return True
        if not identity.method:
            return bool(identity.role) and identity.role == self._options.anonymous_role
        return self.asks_for(identity.method) and (not identity.proxy or identity.proxy in self._proxies)

    def renew(self, identity: Identity, shown: Shown) -> Identity:
        """The identity with what was shown anew; it must be the same role.  Raises NotAuthenticated."""
        found = self.identify(shown)
        is_of_proxy = bool(identity.proxy) and not self.checks_originals
        if found.role != (identity.proxy if is_of_proxy else identity.role):
            raise NotAuthenticated("ROLE_CHANGED", "the role is another one than before")
        return replace(identity, expires_s=found.expires_s)


class _Certificates:
    """The method "tls": what the listener has checked already."""

    def is_slow(self, data: bytes) -> bool:
        return False

    def identify(self, data: bytes, certificate: bytes | None) -> tuple[str, float | None]:
        from cryptography import x509
        if certificate is None:
            raise NotAuthenticated("INVALID_CERTS", "no certificate")
        try:
            names = x509.load_der_x509_certificate(certificate).subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        except ValueError:
            raise NotAuthenticated("INVALID_CERTS", "a certificate that cannot be read") from None
        if not names or not isinstance(names[-1].value, str) or not names[-1].value:
            raise NotAuthenticated("INVALID_CN", "the certificate has no common name")
        return names[-1].value, None


# The libraries are loaded where they are used: they take tens of megabytes together.

def _tokens(options):
    from geminga.workers.identity.tokens import Tokens
    return Tokens(options)


def _basic(options):
    from geminga.workers.identity.basic import Basic
    return Basic(options)


_MAKERS = {"token": _tokens, "basic": _basic, "tls": lambda options: _Certificates()}

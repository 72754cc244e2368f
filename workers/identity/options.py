"""What can be configured of TLS, authentication and authorization: frozen dataclasses, handed down by the supervisor."""
from dataclasses import dataclass, field


class Secret(str):
    """A text that is shown to nobody: `repr`, and so errors and logs, have stars for it."""

    def __repr__(self) -> str:
        return "'***'" if self else "''"


_NO_SECRET = Secret("")


class Unusable(Exception):
    """What is wrong, in one line, and with which key of the configuration."""

    def __init__(self, key: str, why: str):
        super().__init__(f"{key} {why}")
        self.key, self.why = key, why


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """How clients connect by TLS; they can when there is a certificate."""

    certificate: str = ""                     # PEM file of the broker's certificate, with those of authorities between it and the root
    key: str = ""                             # PEM file of its private key
    port: int = 6651                          # of the binary protocol; 0 takes a free one, -1: none
    http_port: int = 8443                     # of administration; 0 takes a free one, -1: none
    trusted: str = ""                         # PEM file of the authorities that clients' certificates are of
    client_certificates: str = "wanted"       # none, wanted or required; nothing is asked for without `trusted`
    versions: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    ciphers: str = ""                         # for TLSv1.2, as OpenSSL lists them; empty: its defaults


@dataclass(frozen=True, slots=True)
class AuthenticationOptions:
    """How clients show who they are; nobody is asked when there are no methods."""

    methods: tuple[str, ...] = ()             # of token, basic, tls
    secret_keys: tuple[Secret, ...] = ()      # of tokens: a path, "file:PATH" or "data:;base64,..."; any of them will do
    public_keys: tuple[Secret, ...] = ()      # likewise
    public_key_algorithm: str = "RS256"       # that tokens for the public keys are signed with
    role_claim: str = "sub"                   # of a token: the role
    audience_claim: str = ""                  # of a token: whom it is for; empty: that is not looked at
    audience: str = ""                        # whom it must be for
    users: Secret = _NO_SECRET                # htpasswd file of basic authentication: a path, "file:PATH" or "data:;base64,..."
    anonymous_role: str = ""                  # of who shows nothing, or by a method not among these; empty: they are refused
    clock_skew_s: int = 0                     # that a token may be early or late
    refresh_interval_s: int = 60              # how often tokens of connected clients are looked at again
    metrics: bool = False                     # whether /metrics asks who wants to know, too
    original_authentication: bool = False     # whether proxies must pass on what their clients have shown, and it is checked


@dataclass(frozen=True, slots=True)
class AuthorizationOptions:
    """What clients may do."""

    enabled: bool = False                     # everybody may do everything otherwise
    super_user_roles: tuple[str, ...] = ()    # may do everything
    proxy_roles: tuple[str, ...] = ()         # may ask on behalf of others, and need a name for whom
    wildcards: bool = False                   # whether roles in grants may begin or end with *


@dataclass(frozen=True, slots=True)
class IdentityOptions:
    """All of it."""

    tls: TlsOptions = field(default_factory=TlsOptions)
    authentication: AuthenticationOptions = field(default_factory=AuthenticationOptions)
    authorization: AuthorizationOptions = field(default_factory=AuthorizationOptions)

"""Options of TLS, authentication and authorization: frozen dataclasses, handed down by the supervisor."""
from dataclasses import dataclass, field


class Secret(str):
    """A secret text.  `repr` shows stars, so errors and logs never show the text."""

    def __repr__(self) -> str:
        return "'***'" if self else "''"


_NO_SECRET = Secret("")


class Unusable(Exception):
    """An option cannot be used; the message is one line that names the key of the configuration and the reason."""

    def __init__(self, key: str, why: str):
        super().__init__(f"{key} {why}")
        self.key, self.why = key, why


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Options of [tls]; the broker listens for TLS if a certificate is configured."""

    certificate: str = ""                     # PEM file of the broker's certificate and its intermediates
    key: str = ""                             # PEM file of the certificate's private key
    port: int = 6651                          # of the binary protocol; 0 takes a free one, -1: none
    http_port: int = 8443                     # of administration; 0 takes a free one, -1: none
    trusted: str = ""                         # PEM file of the authorities that issue clients' certificates
    client_certificates: str = "wanted"       # none, wanted or required; none are asked for without `trusted`
    versions: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    ciphers: str = ""                         # for TLSv1.2, as OpenSSL lists them; empty: its defaults


@dataclass(frozen=True, slots=True)
class AuthenticationOptions:
    """Options of [authentication]; authentication is off if no method is configured."""

    methods: tuple[str, ...] = ()             # token, basic, tls
    secret_keys: tuple[Secret, ...] = ()      # of tokens, each a path, "file:PATH" or "data:;base64,..."; any will do
    public_keys: tuple[Secret, ...] = ()      # of tokens, in the same form
    public_key_algorithm: str = "RS256"       # of the signatures that the public keys check
    role_claim: str = "sub"                   # claim of a token that names the role
    audience_claim: str = ""                  # claim of a token that names its audience; empty: it is not checked
    audience: str = ""                        # the audience that a token must name
    users: Secret = _NO_SECRET                # htpasswd file for basic: a path, "file:PATH" or "data:;base64,..."
    anonymous_role: str = ""                  # of clients without credentials, or with another method; empty: refused
    clock_skew_s: int = 0                     # seconds by which a token may be early or late
    refresh_interval_s: int = 60              # between two looks at tokens of connected clients
    metrics: bool = False                     # whether /metrics demands authentication, too
    original_authentication: bool = False     # whether proxies must pass on their clients' credentials, for a check


@dataclass(frozen=True, slots=True)
class OidcOptions:
    """Options of [authentication.oidc]: issuers of OpenID Connect whose tokens are accepted by the method "token"."""

    issuers: tuple[str, ...] = ()             # URLs, each as its tokens name it
    audiences: tuple[str, ...] = ()           # a token must name one of them
    role_claim: str = "sub"                   # claim that names the role, or several names with dots: a path into it
    groups_claim: str = ""                    # claim with a list of groups, whose rights the role has too; "": none
    clock_skew_s: int = 0                     # seconds by which a token may be early or late
    require_https: bool = True                # whether issuers, and where they keep their keys, must be https URLs
    trusted: str = ""                         # PEM file of authorities for the issuers' certificates; "": the system's
    refresh_s: int = 18 * 3600                # age of keys from which on they are fetched again
    expiry_s: int = 24 * 3600                 # age of keys from which on they are not used any more
    unknown_key_interval_s: int = 300         # between two fetches because of keys that are not known
    console_client_id: str = ""               # client at the issuers, by which people sign in to the console; "": none
    console_scope: str = "openid"             # that is asked for then
    connect_timeout_ms: int = 10_000
    read_timeout_ms: int = 10_000


@dataclass(frozen=True, slots=True)
class AuthorizationOptions:
    """Options of [authorization]."""

    enabled: bool = False                     # False: everybody may do everything
    super_user_roles: tuple[str, ...] = ()    # roles that may do everything
    proxy_roles: tuple[str, ...] = ()         # roles that may ask on behalf of others, and must say on whose
    replicator_roles: tuple[str, ...] = ()    # roles that may replicate topics into this broker, where they may produce
    wildcards: bool = False                   # whether roles in grants may begin or end with *


@dataclass(frozen=True, slots=True)
class IdentityOptions:
    """The options of TLS, authentication and authorization together."""

    tls: TlsOptions = field(default_factory=TlsOptions)
    authentication: AuthenticationOptions = field(default_factory=AuthenticationOptions)
    authorization: AuthorizationOptions = field(default_factory=AuthorizationOptions)
    oidc: OidcOptions = field(default_factory=OidcOptions)

"""JSON Web Tokens: signed statements of a client's role.

    tokens of the operator    signed by one of `secret_keys` or `public_keys`
    tokens of an issuer       `iss` is one of [authentication.oidc], and that issuer's keys alone count

PyJWT reads them; this file says which keys and claims count.
"""
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import jwt
from jwt.types import Options
from jwt.utils import base64url_decode, base64url_encode

from geminga.workers.identity.credentials import NotAuthenticated, Proof
from geminga.workers.identity.keys import Key, public_key, secret_key
from geminga.workers.identity.options import AuthenticationOptions, OidcOptions
from geminga.workers.identity.sources import Source

if TYPE_CHECKING:
    import asyncio

    from geminga.workers.identity.issuers import Issuer

_SIZE_MAX = 16 << 10          # of a token; HTTP servers take no larger headers
_NEVER_S = 10**11      # seconds since 1970, in the year 5138: later expiries are cut to it, as they may not fit a float
# The audience is checked below; the subject may be a list, other claims anything.
_CHECKS: Options = {"verify_aud": False, "verify_sub": False, "verify_iss": False, "verify_jti": False}
_ISSUED = ("exp", "iat", "sub")      # claims that OpenID Connect demands, besides issuer and audience


class Rules(NamedTuple):
    """What a token of one kind has to say, besides its signature."""

    clock_skew_s: int
    role_claim: str
    groups_claim: str = ""                # "": a token has none
    audience_claim: str = ""              # "": the audience is not checked
    audiences: tuple[str, ...] = ()       # the token must name one of them
    required: tuple[str, ...] = ()        # claims that must be there


def claims(token: str | bytes, keys: Iterable[Key], clock_skew_s: int = 0,
           required: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the claims of a token that one of the keys has signed.  Raises jwt.InvalidTokenError."""
    failure: jwt.InvalidTokenError = jwt.InvalidSignatureError("there is no key")
    checks: Options = {**_CHECKS, "require": list(required)}
    signature = (token.encode() if isinstance(token, str) else token).rpartition(b".")[2]
    if base64url_encode(base64url_decode(signature)) != signature:
        raise jwt.DecodeError("the signature is not canonical base64")      # else a token could be written in many ways
    for key in keys:
        try:
            return jwt.decode(token, key.material, algorithms=key.algorithms, options=checks, leeway=clock_skew_s)
        except (jwt.InvalidSignatureError, jwt.InvalidAlgorithmError) as error:
            failure = error
    raise failure


class Tokens:
    """The method "token": a JSON Web Token."""

    def __init__(self, options: AuthenticationOptions, oidc: OidcOptions, former: "Tokens | None" = None):
        """Load the keys.  former: tokens under former options.  Raises Unusable: a key cannot be read."""
        self._rules = Rules(options.clock_skew_s, options.role_claim, audience_claim=options.audience_claim,
                            audiences=(options.audience,))
        self._issued = Rules(oidc.clock_skew_s, oidc.role_claim, oidc.groups_claim, "aud", oidc.audiences, _ISSUED)
        self._sources = [Source("authentication.secret_keys", where, secret_key) for where in options.secret_keys]
        self._sources += [Source("authentication.public_keys", where,
                                 lambda data: public_key(data, options.public_key_algorithm))
                          for where in options.public_keys]
        self.issuers: dict[str, Issuer] = {}
        if oidc.issuers:      # an HTTP client takes megabytes
            from geminga.workers.identity.issuers import issuers_of
            self.issuers = issuers_of(oidc, former.issuers if former else {})

    def __repr__(self) -> str:
        return f"<Tokens of {len(self._sources)} keys and {len(self.issuers)} issuers>"

    def fetching(self, data: bytes) -> "asyncio.Future[None] | None":
        """Return what has to end before the keys of the token's issuer are known; None if nothing has to."""
        issuer, name = self._named(data)
        return issuer.fetching(name) if issuer is not None else None

    def is_slow(self, data: bytes) -> bool:
        """Whether checking the signature takes milliseconds, as it does for large elliptic curves."""
        issuer, name = self._named(data)
        return any(key.is_slow for key in self._keys(issuer, name))

    def identify(self, data: bytes, certificate: bytes | None) -> Proof:
        """Return the role, the expiry and the groups of a valid token.  Raises NotAuthenticated.

        Blanks around a token mean nothing: programs send a token file as it is, with the end of its line.
        """
        if not (data := data.strip()):
            raise NotAuthenticated("INVALID_AUTH_DATA", "no token")
        if len(data) > _SIZE_MAX:
            raise NotAuthenticated("INVALID_TOKEN", f"a token of {len(data)} bytes")
        issuer, name = self._named(data)
        rules = self._rules if issuer is None else self._issued
        whose = "here" if issuer is None else f"of issuer {issuer.url}"
        unlisted = ", and its issuer is none of authentication.oidc.issuers" if self.issuers and issuer is None else ""
        try:
            content = claims(data, self._keys(issuer, name), rules.clock_skew_s, rules.required)
        except jwt.ExpiredSignatureError:
            raise NotAuthenticated("EXPIRED_TOKEN", "the token has expired") from None
        except jwt.ImmatureSignatureError:
            raise NotAuthenticated("INVALID_TOKEN", "the token is not valid yet") from None
        except jwt.MissingRequiredClaimError as error:
            raise NotAuthenticated("INVALID_TOKEN", f"the token has no claim {error.claim}") from None
        except jwt.InvalidAlgorithmError:
            why = f"the token is signed by an algorithm that no key {whose} is for{unlisted}"
            raise NotAuthenticated("INVALID_TOKEN", why) from None
        except jwt.InvalidSignatureError:
            raise NotAuthenticated("INVALID_TOKEN", f"no key {whose} has signed the token{unlisted}") from None
        except Exception:      # libraries raise anything over bytes from strangers
            raise NotAuthenticated("INVALID_TOKEN", "the credentials are no token") from None
        _check_audience(content, rules)
        role = _claim(content, rules.role_claim)
        if isinstance(role, list) and role:
            role = role[0]
        if not _is_name(role):
            raise NotAuthenticated("INVALID_TOKEN", f"the token has no role in its claim {rules.role_claim}")
        groups = _groups(content, rules.groups_claim)
        if "exp" not in content:
            return Proof(role, None, groups)
        return Proof(role, float(min(int(content["exp"]), _NEVER_S)) + rules.clock_skew_s, groups)

    def _named(self, data: bytes) -> "tuple[Issuer | None, str | None]":
        """Return the issuer of the configuration that a token names, with the id of its key; None if it names none."""
        if not self.issuers or len(data) > _SIZE_MAX:
            return None, None
        try:
            token = jwt.decode_complete(data.strip(), options={"verify_signature": False})
        except Exception:      # libraries raise anything over bytes from strangers
            return None, None
        issuer, name = token["payload"].get("iss"), token["header"].get("kid")
        if not isinstance(issuer, str) or not isinstance(name, str | None):
            return None, None
        return self.issuers.get(issuer), name

    def _keys(self, issuer: "Issuer | None", name: str | None) -> Iterable[Key]:
        return (source.get() for source in self._sources) if issuer is None else issuer.keys(name)


def _claim(content: dict[str, Any], name: str) -> Any:
    """Return a claim, None if it is not there.  A name with dots, unless a claim has it whole, leads into objects."""
    if name in content:
        return content[name]
    value: Any = content
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _groups(content: dict[str, Any], name: str) -> tuple[str, ...]:
    """Return the texts of a claim with a list, sorted and none twice; a text alone counts as a list of it."""
    listed = _claim(content, name) if name else None
    texts = listed if isinstance(listed, list) else [listed]
    return tuple(sorted({text for text in texts if _is_name(text)}))


def _is_name(value: Any) -> TypeGuard[str]:
    """Whether a value can name a role or group: a text that can be written, as JSON may hold halves of characters."""
    return isinstance(value, str) and value != "" and not any("\ud800" <= character <= "\udfff" for character in value)


def _check_audience(content: dict[str, Any], rules: Rules) -> None:
    """Check that the token is meant for this broker, if the rules demand an audience.  Raises NotAuthenticated."""
    if not rules.audience_claim:
        return
    audience = content.get(rules.audience_claim)
    if not any(one in rules.audiences for one in (audience if isinstance(audience, list) else [audience])):
        raise NotAuthenticated("INVALID_AUDIENCES", "the token is for another audience")

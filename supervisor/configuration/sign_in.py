"""Sign-in of a person at an issuer of OpenID Connect, and the tokens of a context that follow from it.

    begin      asks for a code, which the person enters in a browser on any device (RFC 8628)
    finish     waits for that, and returns the values of a context: an access token, and one to refresh it with
    refreshed  returns a context's values with a token that is still valid

Codes and tokens travel to and from the issuer only, over TLS unless it is on this host.
"""
import base64
import hashlib
import json
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from geminga.supervisor.configuration import contexts
from geminga.supervisor.configuration.contexts import Values

SCOPE = "openid offline_access"      # the second one asks for a token to refresh with
ASKED = "issuer", "client_id", "scope", "audience"      # values of a context that a sign-in needs
KEPT = "refresh_token", "expires_s"                     # values that it leaves, beside the credentials
_DISCOVERY = "/.well-known/openid-configuration"
_DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_TIMEOUT_S = 10.0
_SIZE_MAX = 256 << 10           # bytes of an answer
_EARLY_S = 30                   # by which a token is refreshed before it expires: clocks differ, and commands take time
_INTERVAL_S, _SLOWER_S = 5, 5   # between two questions, where the issuer says nothing; added when it asks for that
_LIFETIME_S = 1_800             # of a code, where the issuer says nothing
_EXPIRY_MAX_S = 1 << 33         # seconds since 1970, in the year 2242: later ones may not fit a calendar


class Refused(Exception):
    """An error: the issuer cannot be used, or refuses.  The text is one line."""

    exit_status = 1


class Code(NamedTuple):
    """A code that a person enters in a browser, while a command waits."""

    address: str           # of the page that takes the code
    whole_address: str     # of a page that has it already; "": there is none
    text: str
    secret: str            # for the issuer, which knows the code by it
    verifier: str          # of PKCE: proves who asked for the code
    interval_s: float
    lifetime_s: float


def begin(who: Values) -> Code:
    """Ask the issuer for a code.  who: values of ASKED.  Raises Refused."""
    address, verifier = _endpoint(who, "device_authorization_endpoint"), secrets.token_urlsafe(48)
    # RFC 8628 has no PKCE, but some issuers demand it of every sign-in of a client.  Others ignore the fields.
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    status, answer = _asked(who, address, _client(who) | {
        "scope": who.get("scope", SCOPE), "code_challenge": challenge, "code_challenge_method": "S256"})
    texts = [answer.get(name) for name in ("verification_uri", "user_code", "device_code")]
    if status != 200 or not all(isinstance(text, str) and text for text in texts):
        raise Refused(f"{who['issuer']} gives no code: {_reason(status, answer)}")
    page, code, secret = map(str, texts)
    whole = answer.get("verification_uri_complete", "")
    return Code(page, whole if isinstance(whole, str) else "", code, secret, verifier,
                _number(answer.get("interval"), _INTERVAL_S), _number(answer.get("expires_in"), _LIFETIME_S))


def finish(who: Values, code: Code, sleep: Callable[[float], None] = time.sleep) -> Values:
    """Wait until the person has entered the code; return the credentials of a context, and values of KEPT.

    Raises Refused.
    """
    address, interval_s = _endpoint(who, "token_endpoint"), code.interval_s
    end = time.monotonic() + code.lifetime_s
    form = _client(who) | {"grant_type": _DEVICE_GRANT, "device_code": code.secret, "code_verifier": code.verifier}
    while time.monotonic() < end:
        status, answer = _asked(who, address, form)
        if status == 200:
            return _tokens(who, answer)
        if answer.get("error") not in ("authorization_pending", "slow_down"):
            raise Refused(f"{who['issuer']} refuses the sign-in: {_reason(status, answer)}")
        interval_s += _SLOWER_S * (answer["error"] == "slow_down")
        sleep(interval_s)
    raise Refused("nobody has entered the code in time")


def refreshed(name: str) -> Values:
    """Return the values of a context; a token that has expired is replaced, in the file too.

    Raises contexts.Unusable.
    """
    values = contexts.load().of(name)
    if not _is_over(values):
        return values
    with contexts.locked():      # another command may be refreshing: most issuers take a refresh token only once
        stored = contexts.load()
        values = stored.of(name)
        if not _is_over(values):
            return values
        try:
            values = values | _renewed(values)
        except Refused as error:
            raise contexts.Unusable(f"context {name} gets no new token: {error}; to sign in again: geminga login {name}"
                                    ) from None
        contexts.save(stored._replace(by_name={**stored.by_name, name: values}))
    return values


def _is_over(values: Values) -> bool:
    return "expires_s" in values and time.time() >= values["expires_s"] - _EARLY_S


def _renewed(values: Values) -> Values:
    if not values.get("refresh_token"):
        raise Refused("its token has expired")
    form = _client(values) | {"grant_type": "refresh_token", "refresh_token": values["refresh_token"]}
    status, answer = _asked(values, _endpoint(values, "token_endpoint"), form)
    if status != 200:
        raise Refused(_reason(status, answer))
    return _tokens(values, answer)


def _tokens(who: Values, answer: Values) -> Values:
    """Return the values that an issuer's answer with tokens gives.  Raises Refused."""
    # Some issuers give access tokens that only they can read, unless an audience is asked for.
    given = [answer.get("access_token"), answer.get("id_token")]
    token = next((token for token in given if isinstance(token, str) and token.count(".") == 2), None)
    if token is None:
        raise Refused(f"{who['issuer']} gives no token that a broker can check: give --audience, or another --scope")
    refresh, expires_s = answer.get("refresh_token"), _expiry(token)
    return {"auth_plugin": "AuthenticationToken", "auth_params": f"token:{token}",
            **({"refresh_token": refresh} if isinstance(refresh, str) else {}),
            **({"expires_s": expires_s} if expires_s is not None else {})}


def _expiry(token: str) -> int | None:
    """Return the expiry that a token names, in seconds since 1970; None if it names none.

    The issuer's answer has `expires_in`, but for its access token, which may not be the one that is used.
    """
    try:
        content = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
        expires_s = int(content["exp"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return expires_s if 0 <= expires_s <= _EXPIRY_MAX_S else None


def _client(who: Values) -> dict[str, str]:
    """Return the fields that name the client, and what it asks tokens for."""
    return {"client_id": who["client_id"], **({"audience": who["audience"]} if who.get("audience") else {})}


def _endpoint(who: Values, name: str) -> str:
    """Return an address from the issuer's discovery document.  Raises Refused."""
    issuer = who["issuer"]
    if not _is_safe(issuer):
        raise Refused(f"{issuer!r} is no https:// address")
    status, answer = _asked(who, issuer.removesuffix("/") + _DISCOVERY, None)
    if status != 200 or answer.get("issuer") != issuer:
        raise Refused(f"{issuer} is no issuer by this name: {_reason(status, answer)}")
    if not isinstance(address := answer.get(name), str) or not _is_safe(address):
        raise Refused(f"{issuer} has no {name} with an https:// address")
    return address


def _is_safe(address: str) -> bool:
    """Whether secrets may go to an address: by TLS, or to this host."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return False
    return bool(parts.hostname) and (parts.scheme == "https" or (
        parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost")))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer: secrets go where the discovery document says."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _asked(who: Values, address: str, form: dict[str, str] | None) -> tuple[int, dict[str, Any]]:
    """Return status and JSON of an exchange; {} for another body.  form: what is posted.  Raises Refused."""
    data = urlencode(form).encode() if form is not None else None
    request = urllib.request.Request(address, data, {"Accept": "application/json"})      # noqa: S310 - see _is_safe
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        try:
            with opener.open(request, timeout=_TIMEOUT_S) as answer:
                status, body = answer.status, answer.read(_SIZE_MAX)
        except urllib.error.HTTPError as refused:
            with refused:
                status, body = refused.code, refused.read(_SIZE_MAX)
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        why = getattr(reason, "strerror", None) or type(reason).__name__
        raise Refused(f"{who['issuer']} does not answer: {why}") from None
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return status, {}
    return status, document if isinstance(document, dict) else {}


def _reason(status: int, answer: dict[str, Any]) -> str:
    """Return the error that an answer names, as far as it is one of OAuth 2, else its status."""
    error = answer.get("error")
    is_code = isinstance(error, str) and len(error) <= 100 and error.replace("_", "").isalnum() and error.isascii()
    return str(error) if is_code else f"its answer has status {status}"


def _number(value: Any, default: float) -> float:
    return value if isinstance(value, int | float) and 0 <= value <= 86_400 else default

"""An issuer of OpenID Connect for tests: discovery, key set, and tokens for client credentials, codes of browsers and
of devices, and tokens to refresh with, over HTTP.

A test turns keys, changes what a path answers, and counts what was asked for.
"""
import base64
import hashlib
import http.server
import json
import ssl
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, urlencode

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

DISCOVERY, KEYS, TOKEN, DEVICE = "/.well-known/openid-configuration", "/keys", "/token", "/device"
AUTHORIZE = "/authorize"
AUDIENCE = "pulsar"
SECRET = "a client's secret"
_MAKE = {"RS": lambda: rsa.generate_private_key(65537, 2048), "PS": lambda: rsa.generate_private_key(65537, 2048),
         "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
         "ES384": lambda: ec.generate_private_key(ec.SECP384R1()),
         "ES512": lambda: ec.generate_private_key(ec.SECP521R1()), "EdDSA": ed25519.Ed25519PrivateKey.generate}
Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


def make_key(algorithm: str):
    """Return a private key for an algorithm."""
    return (_MAKE.get(algorithm) or _MAKE[algorithm[:2]])()


def jwk(key, **fields) -> dict:
    """Return the public part of a key as a JSON Web Key."""
    public = key.public_key()
    kinds = {rsa.RSAPublicKey: RSAAlgorithm, ec.EllipticCurvePublicKey: ECAlgorithm,
             ed25519.Ed25519PublicKey: OKPAlgorithm}
    made = next(kind for public_type, kind in kinds.items() if isinstance(public, public_type))
    return made.to_jwk(public, as_dict=True) | fields


class Issuer:
    """What an issuer knows: keys by their ids, how many requests came for each path, and answers out of the usual."""

    def __init__(self, url: str):
        self.url = url
        self.algorithm, self.name = "ES256", "first"
        self.private = {"first": make_key("ES256")}
        self.published = [jwk(self.private["first"], kid="first")]
        self.asked: Counter[str] = Counter()
        self.instead: dict[str, Answer] = {}
        self.lifetime_s = 3600      # of tokens that clients ask for
        self.person, self.pending = "joe", 0      # who enters a code, and after how many questions; "": nobody may
        self.refreshing: set[str] = set()         # tokens to refresh with, each good for once
        self.codes: dict[str, dict[str, str]] = {}      # of browsers -> what was asked, each good for once

    def turn(self, name: str, algorithm: str = "ES256", *, is_published: bool = True, **fields) -> None:
        """Sign by a new key from now on, and publish it beside the others."""
        self.private[name], self.algorithm, self.name = make_key(algorithm), algorithm, name
        if is_published:
            self.published.append(jwk(self.private[name], kid=name, **fields))

    def token(self, role: str = "joe", *, headers: dict | None = None, **claims) -> bytes:
        """Return a token of the newest key; claims that are None are left out."""
        now = int(time.time())
        content = {"iss": self.url, "sub": role, "aud": AUDIENCE, "iat": now, "nbf": now, "exp": now + 3600} | claims
        content = {name: value for name, value in content.items() if value is not None}
        headers = {"kid": self.name} if headers is None else headers
        return jwt.encode(content, self.private[self.name], self.algorithm, headers=headers).encode()

    def document(self, path: str) -> dict | None:
        if path == DISCOVERY:
            return {"issuer": self.url, "jwks_uri": self.url + KEYS, "token_endpoint": self.url + TOKEN,
                    "device_authorization_endpoint": self.url + DEVICE, "authorization_endpoint": self.url + AUTHORIZE}
        return {"keys": self.published} if path == KEYS else None

    def posted(self, path: str, form: dict[str, str]) -> dict:
        """Return the answer to a form; one with `error` is a refusal."""
        if path == DEVICE:
            self.codes["a secret code"] = form
            return {"device_code": "a secret code", "user_code": "WDJB-MJHT", "verification_uri": f"{self.url}/enter",
                    "verification_uri_complete": f"{self.url}/enter?code=WDJB-MJHT", "expires_in": 600, "interval": 0}
        grant = form.get("grant_type", "").rpartition(":")[2]
        return {"client_credentials": self._for_client, "device_code": self._for_code,
                "authorization_code": self._for_browser,
                "refresh_token": self._for_refresh}.get(grant, lambda form: {"error": "unsupported_grant_type"})(form)

    def _for_client(self, form: dict[str, str]) -> dict:
        """The client's id is the role."""
        return self._tokens(form["client_id"], form) if form.get("client_secret") == SECRET \
            else {"error": "invalid_client"}

    def _for_code(self, form: dict[str, str]) -> dict:
        asked = self.codes.get(form["device_code"])
        if asked is None or asked["code_challenge"] != _challenge(form) or not self.person:
            return {"error": "access_denied"}
        self.pending -= 1
        return {"error": "authorization_pending"} if self.pending >= 0 else self._with_refreshing(form)

    def way_back(self, query: str) -> str:
        """Return the address to which the page for signing in leads, once the person has signed in."""
        asked = {name: texts[0] for name, texts in parse_qs(query).items()}
        code = f"code-{uuid.uuid4().hex}"
        self.codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state'], 'iss': self.url})}"

    def _for_browser(self, form: dict[str, str]) -> dict:
        asked = self.codes.pop(form["code"], None)
        is_right = asked is not None and (asked["response_type"], asked["code_challenge_method"]) == ("code", "S256") \
            and (asked["code_challenge"], asked["redirect_uri"], asked["client_id"]) == (
                _challenge(form), form["redirect_uri"], form["client_id"])
        return self._tokens(self.person, form) if is_right else {"error": "invalid_grant"}

    def _for_refresh(self, form: dict[str, str]) -> dict:
        if form["refresh_token"] not in self.refreshing:
            return {"error": "invalid_grant"}
        self.refreshing.remove(form["refresh_token"])
        return self._with_refreshing(form)

    def _with_refreshing(self, form: dict[str, str]) -> dict:
        refresh = f"refresh {uuid.uuid4().hex}"
        self.refreshing.add(refresh)
        return self._tokens(self.person, form) | {"refresh_token": refresh}

    def _tokens(self, role: str, form: dict[str, str]) -> dict:
        token = self.token(role, exp=int(time.time() + self.lifetime_s), aud=form.get("audience", AUDIENCE))
        return {"access_token": token.decode(), "token_type": "Bearer", "expires_in": self.lifetime_s}


def _challenge(form: dict[str, str]) -> str:
    """Return the challenge of PKCE that belongs to a form's verifier."""
    return base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=").decode()


@contextmanager
def running(certificate: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> Iterator[Issuer]:
    """Run an issuer in threads, over TLS if it gets a certificate."""
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            if path == AUTHORIZE:
                return answer(self, 302, b"{}", Location=issuer.way_back(query))
            self.answered(issuer.document(self.path))

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers.get("Content-Length", 0))).decode())
            self.answered(issuer.posted(self.path, {name: texts[0] for name, texts in form.items()}))

        def answered(self, document: dict | None) -> None:
            issuer.asked[self.path] += 1
            self.close_connection = True
            if self.path in issuer.instead:
                return issuer.instead[self.path](self)
            status = 404 if document is None else 400 if "error" in document else 200
            answer(self, status, json.dumps(document or {}).encode())

        def log_message(self, *_) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_) -> None:
            pass      # a client that hangs up on a wrong answer

    with Server((host, 0), Handler) as server:
        if certificate is not None:
            server.socket = certificate.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        issuer = Issuer(f"{'https' if certificate else 'http'}://{host}:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield issuer
        finally:
            server.shutdown()
            thread.join()


def answer(request: http.server.BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    """Send an answer of JSON."""
    request.send_response(status)
    usual = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
    for name, value in (usual | headers).items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(body)

"""Single sign-on, as clients see it: a broker that an issuer of OpenID Connect tells who they are."""
import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import jwt
import pulsar
import pytest

from geminga.proto import pulsar_api_pb2 as api

from .. import issuer as issuers
from ..conftest import _running_broker
from ..harness import HANG_MS, HANG_SECONDS, Broker, eventually, path_of, request, unique_topic
from ..issuer import AUDIENCE, KEYS, Issuer
from ..proto.client_frames import T
from ..web.rest import Rest
from ..web.sockets import Sockets
from .java import JavaTools, fetch_jars
from .test_go_client import build
from .test_identity import answer, connect, counted, is_served, peer

SECRET = b"a secret key of more than 32 bytes: s1"


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with issuers.running() as running:
        yield running


@pytest.fixture(scope="module")
def hanging() -> Iterator[Issuer]:
    """An issuer whose keys come only when the test says so."""
    with issuers.running() as running:
        running.over = threading.Event()
        usual = running.document(KEYS)

        def late(request) -> None:
            running.over.wait(HANG_SECONDS)
            issuers.answer(request, 200, json.dumps(usual).encode())
        running.instead[KEYS] = late
        yield running
        running.over.set()


@pytest.fixture(scope="module")
def asking(tmp_path_factory, issuer, hanging):
    """A broker with Pulsar's own settings for two issuers and for tokens of its own key."""
    if _running_broker() is not None:
        pytest.skip("needs a broker with its own configuration")
    folder = tmp_path_factory.mktemp("single-sign-on")
    (folder / "key").write_bytes(SECRET)
    (folder / "broker.conf").write_text(f"""
brokerServicePort=0
webServicePort=0
authenticationEnabled=true
authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken,\\
    org.apache.pulsar.broker.authentication.oidc.AuthenticationProviderOpenID
tokenSecretKey=file://{folder}/key
authenticationRefreshCheckSeconds=1
openIDAllowedTokenIssuers={issuer.url},{hanging.url}
openIDAllowedAudiences={AUDIENCE}
openIDRequireIssuersUseHttps=false
openIDKeyIdCacheMissRefreshSeconds=1
authorizationEnabled=true
superUserRoles=admin
""")
    own = Broker(folder / "data", "--config", str(folder / "broker.conf"))
    try:
        with pytest.MonkeyPatch.context() as environment:      # Pulsar has no groups
            environment.setenv("GEMINGA_AUTHENTICATION_OIDC_GROUPS_CLAIM", "realm_access.roles")
            own.start()
        yield own
    finally:
        own.close()


@pytest.fixture(scope="module")
def topic(asking, issuer) -> str:
    """A topic that the role `joe` may use."""
    url = f"{asking.http_url}/admin/v2/namespaces/public/default/permissions/joe"
    status, _ = request("POST", url, b'["produce","consume"]', Authorization=bearer(issuer.token("admin")))
    assert status == 204
    return unique_topic("sso")


def bearer(token: bytes) -> str:
    return f"Bearer {token.decode()}"


def oauth2(issuer: Issuer, client_id: str = "joe", secret: str = issuers.SECRET) -> str:
    """Return the parameters of Pulsar's OAuth 2 plug-ins."""
    key = {"type": "client_credentials", "client_id": client_id, "client_secret": secret, "issuer_url": issuer.url}
    return json.dumps({**key, "audience": AUDIENCE})


@contextlib.contextmanager
def python(broker: Broker, params: str) -> Iterator[pulsar.Client]:
    client = pulsar.Client(broker.service_url, authentication=pulsar.AuthenticationOauth2(params),
                           logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    with contextlib.closing(client):
        yield client


def test_the_python_client_signs_in_by_its_own_plug_in(asking, issuer, topic):
    with python(asking, oauth2(issuer)) as client:
        consumer = client.subscribe(topic, "python")
        client.create_producer(topic).send(b"hello")
        assert consumer.receive(HANG_MS).data() == b"hello"


def plug_in(folder: Path, issuer: Issuer, client_id: str) -> str:
    """Return the parameters of the plug-ins for Java and Go, which read the client's secret from a file."""
    (folder / "key.json").write_text(oauth2(issuer, client_id))
    return json.dumps({"type": "client_credentials", "issuerUrl": issuer.url, "audience": AUDIENCE,
                       "privateKey": f"file://{folder}/key.json", "clientId": client_id})


@pytest.mark.java
def test_tools_of_java_sign_in_by_their_own_plug_in(asking, issuer, topic, tmp_path):
    """Clients of Java over the binary protocol, and pulsar-admin over HTTP."""
    java = JavaTools(fetch_jars(), tmp_path, asking.service_url, asking.http_url)
    who = ["--auth-plugin", "org.apache.pulsar.client.impl.auth.oauth2.AuthenticationOAuth2", "--auth-params"]
    said = java.client(*who, plug_in(tmp_path, issuer, "joe"), "produce", topic, "-m", "hello", "-n", "3")
    assert "3 messages successfully produced" in said
    said = java.client(*who, plug_in(tmp_path, issuer, "joe"), "consume", topic, "-s", "java", "-p", "Earliest",
                       "-n", "3")
    assert said.count("content:hello") == 3
    assert "public" in java.admin(*who, plug_in(tmp_path, issuer, "admin"), "tenants", "list")


@pytest.mark.go
def test_the_go_client_signs_in_by_its_own_plug_in(asking, issuer, topic, tmp_path):
    command = [build(), "-url", asking.service_url, "-topic", unique_topic("sso"), "-oauth2"]
    done = subprocess.run([*command, plug_in(tmp_path, issuer, "joe")], capture_output=True, text=True,
                          timeout=HANG_SECONDS, check=False)
    assert done.returncode == 0 and "ok" in done.stdout, done.stdout + done.stderr
    done = subprocess.run([*command, plug_in(tmp_path, issuer, "jim")], capture_output=True, text=True,
                          timeout=HANG_SECONDS, check=False)
    assert done.returncode == 1 and "AuthorizationError" in done.stdout + done.stderr


def test_a_role_without_a_grant_is_not_let_in(asking, issuer, topic):
    with python(asking, oauth2(issuer, "jim")) as client, pytest.raises(pulsar.AuthorizationError):
        client.create_producer(topic)


def test_the_python_client_goes_on_when_its_token_expires(asking, issuer, topic):
    """The broker asks for a new token, signed by a key that it has never seen, and the connection stays."""
    issuer.lifetime_s = 3
    try:
        with python(asking, oauth2(issuer)) as client:
            producer = client.create_producer(topic)
            first = issuer.asked[issuers.TOKEN]
            issuer.turn(f"turned {time.time()}")
            eventually(lambda: producer.send(b"x") and issuer.asked[issuers.TOKEN] >= first + 2)
            assert producer.is_connected()
    finally:
        issuer.lifetime_s = 3600


def test_a_connection_is_asked_again_and_a_new_key_is_fetched_for_its_answer(asking, issuer):
    def connected():
        client = peer(asking, connect("token", issuer.token(exp=int(time.time()) + 3),
                                      feature_flags={"supports_auth_refresh": True}))
        if client.hear().type == T.CONNECTED:
            return client
        client.socket.close()      # too slow
        return None
    with eventually(connected) as client:
        assert client.hear().type == T.AUTH_CHALLENGE
        issuer.turn(f"turned {time.time()}")
        answer(client, issuer.token().decode())
        assert is_served(client)


def test_an_issuer_that_does_not_answer_keeps_nobody_else_waiting(asking, issuer, hanging):
    """A token of a hanging issuer waits for its keys.  Tokens of other issuers, and of the broker's key, do not."""
    with peer(asking, connect("token", hanging.token())) as waiting:
        eventually(lambda: hanging.asked[KEYS])
        for token in (issuer.token(), jwt.encode({"sub": "joe"}, SECRET, "HS256").encode()) * 4:
            with peer(asking, connect("token", token)) as client:
                assert client.hear().type == T.CONNECTED
        hanging.over.set()
        assert waiting.hear().type == T.CONNECTED


def test_http_takes_the_same_tokens(asking, issuer, topic):
    def listed(token: bytes) -> int:
        return request("GET", f"{asking.http_url}/admin/v2/tenants", Authorization=bearer(token))[0]
    assert listed(issuer.token("admin")) == 200
    assert listed(issuer.token("admin", aud="others")) == 401
    issuer.turn(f"turned {time.time()}")
    eventually(lambda: listed(issuer.token("admin")) == 200)


def test_websockets_take_the_same_tokens(asking, issuer, topic):
    with Sockets(asking.http_url) as sockets:
        path = f"/ws/v2/producer/{path_of(topic)}"
        assert sockets.status(path, token=issuer.token("joe", aud="others").decode()) == 401
        assert sockets.status(path, token=issuer.token("jim").decode()) == 403
        assert sockets.status(path, token=issuer.token("joe").decode()) == 101


def test_groups_have_grants_over_every_protocol(asking, issuer):
    """The same role has what its groups have, and nothing that another token's groups had a moment before."""
    admin = bearer(issuer.token("admin"))
    topic = unique_topic("groups")
    grants = f"{asking.http_url}/admin/v2/{path_of(topic)}"
    assert request("PUT", grants, b"", Authorization=admin)[0] == 204
    assert request("POST", f"{grants}/permissions/writers", b'["produce"]', Authorization=admin)[0] == 204
    for groups, may in (["writers", "others"], True), (["others"], False), (["writers"], True):
        token = issuer.token("jim", realm_access={"roles": groups})
        with peer(asking, connect("token", token)) as client:
            assert client.hear().type == T.CONNECTED
            said = client.ask(T.PRODUCER, topic=topic, producer_id=1, request_id=1)
            assert said.type == (T.PRODUCER_SUCCESS if may else T.ERROR)
        said = Rest(asking.http_url, Authorization=bearer(token)).produce(topic, [{"payload": "x"}])
        assert (said[0] == 200 and said[1]["messagePublishResults"][0]["errorCode"] == 0) == may, said
        with Sockets(asking.http_url) as sockets:
            assert sockets.status(f"/ws/v2/producer/{path_of(topic)}", token=token.decode()) == (101 if may else 403)


def test_the_console_takes_the_same_tokens(asking, issuer):
    def signed_in(token: bytes) -> int:
        return request("POST", f"{asking.http_url}/console/sign-in", json.dumps({"token": token.decode()}).encode())[0]
    assert signed_in(issuer.token("admin", aud="others")) == 401
    assert signed_in(issuer.token("admin")) == 200


def test_a_forged_token_is_refused_and_no_log_has_it(asking, issuer, hanging):
    forged = [hanging.token(iss=issuer.url), issuer.token(aud="others"), issuer.token(exp=1),
              jwt.encode({"iss": issuer.url, "sub": "joe"}, SECRET, "HS256", headers={"kid": "first"}).encode()]
    for token in forged:
        with peer(asking, connect("token", token)) as client:
            said, = client.until_closed()
            assert said.error.error == api.AuthenticationError
    assert counted(asking, "pulsar_authentication_failures_total") >= len(forged)
    log = asking.log()
    assert "the token is for another audience" in log
    assert not [part for token in forged for part in token.decode().split(".") if part in log]

"""Who may connect, as clients see it: a broker that asks for tokens and passwords."""
import base64
import contextlib
import http.client
import itertools
import json
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

import bcrypt
import jwt
import psutil
import pulsar
import pytest
from passlib.hash import apr_md5_crypt

from geminga.proto import pulsar_api_pb2 as api
from geminga.supervisor.main import main

from ..conftest import _running_broker
from ..harness import COMMAND, HANG_MS, HANG_SECONDS, Broker, Stopwatch, eventually, unique_topic
from ..proto.client_frames import T, command
from ..workers.peer import Closed, Peer

SECRET, OTHER_SECRET = b"a secret key of more than 32 bytes: s1", b"another one, which takes its place: s2"
PASSWORD = "correct:horse"
# who fails often has to wait
ADDRESSES = (f"127.{number // 250 % 250 + 1}.{number % 250 + 1}.7" for number in itertools.count())


def token(role: str, key: bytes = SECRET, **claims) -> str:
    return jwt.encode({"sub": role} | claims, key, "HS256")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    if _running_broker() is not None:
        pytest.skip("needs a broker with its own configuration")
    return tmp_path_factory.mktemp("identity")


@pytest.fixture(scope="module")
def asking(folder):
    """A broker that checks every second for expired tokens."""
    (folder / "key").write_bytes(SECRET)
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(8)).decode()
    (folder / "htpasswd").write_text(f"joe:{hashed}\njane:{apr_md5_crypt.hash('it-is-hers')}\n")
    (folder / "geminga.toml").write_text(f"""
[authentication]
methods = ["token", "basic"]
secret_keys = ["file://{folder}/key", "data:;base64,{base64.b64encode(b"x" + SECRET).decode()}"]
users = "{folder}/htpasswd"
refresh_interval_s = 1
""")
    own = Broker(folder / "data", "--config", str(folder / "geminga.toml"))
    try:
        yield own.start()
    finally:
        own.close()


def connect(method: str | None = "token", data: bytes = b"", **fields) -> bytes:
    named = {} if method is None else {"auth_method_name": method}
    return command(T.CONNECT, client_version="test", protocol_version=21, auth_data=data, **named, **fields)


def peer(broker: Broker, first: bytes) -> Peer:
    return Peer(broker.service_url, first, source=next(ADDRESSES))


def ask(broker: Broker, path: str, **headers: str) -> tuple[int, dict, bytes]:
    link = http.client.HTTPConnection(urlsplit(broker.http_url).netloc,
                                      timeout=HANG_SECONDS, source_address=(next(ADDRESSES), 0))
    with contextlib.closing(link):
        link.request("GET", path, headers={name.replace("_", "-"): text for name, text in headers.items()})
        answer = link.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()


def basic(text: bytes) -> str:
    return "Basic " + base64.b64encode(text).decode()


def counted(broker: Broker, name: str) -> float:
    """Return the sum of all series whose names begin with `name`."""
    lines = ask(broker, "/metrics")[2].decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


# -- those who get in

@pytest.mark.parametrize("who", [
    pulsar.AuthenticationToken(token("joe")), pulsar.AuthenticationToken(lambda: token("joe", b"x" + SECRET)),
    pulsar.AuthenticationBasic("joe", PASSWORD), pulsar.AuthenticationBasic("jane", "it-is-hers")],
    ids=["token", "other key", "bcrypt", "apr1"])
def test_a_client_that_shows_who_it_is(asking, who):
    with contextlib.closing(pulsar.Client(asking.service_url, authentication=who)) as client:
        topic = unique_topic("identity")
        consumer = client.subscribe(topic, "sub")
        client.create_producer(topic).send(b"hello")
        assert consumer.receive(HANG_MS).data() == b"hello"


def test_the_library_over_http(asking):
    """With an http:// service address the client looks topics up by authenticated HTTP requests."""
    with contextlib.closing(
        pulsar.Client(asking.http_url, authentication=pulsar.AuthenticationBasic("jane", "it-is-hers"))
    ) as client:
        client.create_producer(unique_topic("identity")).send(b"hello")
    with (
        contextlib.closing(
            pulsar.Client(asking.http_url, authentication=pulsar.AuthenticationBasic("jane", "his"))
        ) as client,
        pytest.raises(pulsar.ConnectError),
    ):
        client.create_producer(unique_topic("identity"))


def test_what_is_said_behind_connect_waits_for_its_answer(asking):
    """Commands sent directly after CONNECT are handled after authentication, also while a password hash is computed."""
    for first in connect("token", token("joe").encode()), connect("basic", b"joe:" + PASSWORD.encode()):
        with peer(asking, first + command(T.LOOKUP, topic=unique_topic(), request_id=7)) as client:
            assert client.hear().type == T.CONNECTED
            assert client.hear().lookupTopicResponse.request_id == 7


@pytest.mark.parametrize("shown", [
    "Bearer " + token("joe"), "bearer " + token("joe"), basic(b"joe:" + PASSWORD.encode()), basic(b"jane:it-is-hers")],
    ids=["token", "lower", "bcrypt", "apr1"])
def test_a_request_that_shows_who_asks(asking, shown):
    assert ask(asking, "/admin/v2/tenants", Authorization=shown)[0] == 200
    # the broker asks itself
    assert ask(asking, "/admin/v2/brokers/health", Authorization=shown)[0::2] == (200, b"ok")


def test_our_own_commands(asking, folder, capsys, monkeypatch):
    topic = unique_topic("identity")
    (folder / "token").write_text(token("joe"))
    who = ["--auth-plugin", "AuthenticationToken", "--auth-params", f"file://{folder}/token"]
    assert main(["publish", "--url", asking.service_url, *who, topic, "hello"]) == 0
    assert main(["publish", "--url", asking.service_url, topic, "hello"]) == 1
    assert main(["admin", "--admin-url", asking.http_url, "tenants", "list"]) == 1
    assert "Authentication required (HTTP 401)" in capsys.readouterr().err
    monkeypatch.setenv("GEMINGA_AUTH_PLUGIN", "AuthenticationBasic")
    monkeypatch.setenv("GEMINGA_AUTH_PARAMS", json.dumps({"userId": "joe", "password": PASSWORD}))
    assert main(["read", "--url", asking.service_url, topic]) == 0
    assert main(["admin", "--admin-url", asking.http_url, "tenants", "list"]) == 0
    assert main(["admin", "--admin-url", asking.http_url, "topics", "create-subscription", topic, "-s", "sub"]) == 0
    assert main(["why", "--admin-url", asking.http_url, topic, "sub"]) == 0
    assert "hello" in capsys.readouterr().out


# -- those who do not

HEADER, CLAIMS, SIGNATURE = token("joe").split(".")
BAD = {
    "nothing": (None, b""), "none": ("none", b""), "another method": ("sasl", b"x"),
    "internal": ("internal", b"geminga"),
    "no token": ("token", b""), "garbage": ("token", b"garbage"), "not UTF-8": ("token", b"\xff\xfe\0"),
    "huge": ("token", b"x" * 100_000),
    "huge and right": ("token", token("joe", more="x" * 100_000).encode()),
    "expired": ("token", token("joe", exp=1).encode()), "not yet valid": ("token", token("joe", nbf=1 << 40).encode()),
    "unsigned": ("token", f"{HEADER}.{CLAIMS}.".encode()),
    "alg=none": ("token", jwt.encode({"sub": "joe"}, None, "none").encode()),
    "wrongly signed": ("token", token("joe", OTHER_SECRET).encode()),
    "no role": ("token", jwt.encode({}, SECRET, "HS256").encode()),
    "no password": ("basic", b"joe"), "wrong password": ("basic", b"joe:wrong"),
    "unknown user": ("basic", b"jim:wrong"),
    "colons": ("basic", b":::"), "NULs": ("basic", b"joe:correct:horse\0"), "a NUL user": ("basic", b"\0joe:x"),
    "basic, not UTF-8": ("basic", b"\xff:\xfe"), "a token as password": ("basic", token("joe").encode()),
}


@pytest.mark.parametrize("what", BAD)
def test_a_client_that_cannot_show_who_it_is(asking, what):
    """A client without valid credentials gets an error and is disconnected; commands behind its CONNECT are ignored."""
    method, data = BAD[what]
    failures = "pulsar_authentication_failures_total"
    before = counted(asking, failures)
    with peer(asking, connect(method, data) + command(T.LOOKUP, topic=unique_topic(), request_id=7)) as client:
        answer, = client.until_closed()
    assert (answer.type, answer.error.request_id) == (T.ERROR, (1 << 64) - 1)
    assert (answer.error.error, answer.error.message) == (api.AuthenticationError, "Failed to authenticate")
    assert counted(asking, failures) == before + 1


@pytest.mark.parametrize("header", [
    None, "", "Bearer", "Bearer ", "Bearer x", "Bearer " + token("joe", OTHER_SECRET), "Bearer " + token("joe", exp=1),
    "Basic", "Basic !!!", basic(b"joe"), basic(b"joe:wrong"), basic(b"joe:\0"), basic(b":::"), basic(b"\xff\xfe:x"),
    "Negotiate abc", token("joe"), "x" * 20_000,
])
def test_a_request_that_does_not_show_who_asks(asking, header):
    """An HTTP request without valid credentials gets the same answer for existing and missing paths."""
    shown = {} if header is None else {"Authorization": header}
    for path in (
        "/admin/v2/tenants",
        "/admin/v2/brokers/health",
        "/no/such/path",
        "/lookup/v2/topic/persistent/public/default/t",
    ):
        status, headers, body = ask(asking, path, **shown)
        assert (status, json.loads(body)) == (401, {"reason": "Authentication required"})
        assert "realm" in headers["WWW-Authenticate"]


def test_probes_are_not_asked(asking):
    for path in "/status.html", "/ready", "/metrics":
        assert ask(asking, path)[0] == 200


def test_a_client_that_leaves_while_its_password_is_looked_at(asking):
    for _ in range(5):
        with peer(asking, connect("basic", b"joe:wrong")):
            pass
    with peer(asking, connect("basic", b"joe:" + PASSWORD.encode())) as client:
        assert client.hear().type == T.CONNECTED


def test_who_goes_on_failing_waits_and_others_do_not(asking):
    source = next(ADDRESSES)
    for _ in range(4):
        with Peer(asking.service_url, connect("token", b"bad"), source=source) as client:
            assert client.until_closed()[0].error.error == api.AuthenticationError
    # One address is served by several workers, each of which counts for itself.
    with Peer(asking.service_url, connect("token", token("joe").encode()), source=source) as client:
        assert client.hear().type == T.CONNECTED
    assert eventually(lambda: source in asking.log())


# -- tokens that expire, and keys that change

def expiring(broker: Broker, **flags) -> Peer:
    """Connect with a token that expires in a moment."""
    def connected() -> Peer | None:
        client = peer(broker, connect("token", token("joe", exp=int(time.time()) + 2).encode(), feature_flags=flags))
        if client.hear().type == T.CONNECTED:
            return client
        client.socket.close()      # a moment was too short for this machine
        return None
    return eventually(connected)


def answer(client: Peer, data: str) -> None:
    client.say(command(T.AUTH_RESPONSE, response={"auth_method_name": "token", "auth_data": data.encode()},
                       protocol_version=21))


def is_served(client: Peer) -> bool:
    return client.ask(T.LOOKUP, topic=unique_topic(), request_id=1).type == T.LOOKUP_RESPONSE


def test_a_token_that_expires_is_asked_for_again(asking):
    with expiring(asking, supports_auth_refresh=True) as client:
        asked = client.hear()
        assert asked.type == T.AUTH_CHALLENGE and asked.authChallenge.protocol_version == 21
        assert asked.authChallenge.challenge.auth_method_name == "token"
        answer(client, token("joe"))
        assert is_served(client)


@pytest.mark.parametrize("said, heard", [
    (token("jane"), []), (token("joe", exp=1), [api.AuthenticationError]), ("bad", [api.AuthenticationError]),
    (None, [])],
    ids=["another role", "expired", "bad", "silence"])
def test_a_wrong_answer_ends_the_connection(asking, said, heard):
    with expiring(asking, supports_auth_refresh=True) as client:
        assert client.hear().type == T.AUTH_CHALLENGE
        if said is not None:
            answer(client, said)
        assert [one.error.error for one in client.until_closed()] == heard


def test_who_cannot_be_asked_is_gone_when_its_token_is(asking):
    with expiring(asking) as client:
        assert client.until_closed() == []


def test_the_library_goes_on_with_a_new_token(asking):
    """When a token expires, the client sends a new one and keeps its connection."""
    given = []

    def supply() -> str:
        given.append(token("joe", exp=int(time.time()) + 2))
        return given[-1]

    with contextlib.closing(
        pulsar.Client(asking.service_url, authentication=pulsar.AuthenticationToken(supply))
    ) as client:
        producer = client.create_producer(unique_topic("identity"))
        first = len(given)
        eventually(lambda: producer.send(b"x") and len(given) >= first + 2)
        assert producer.is_connected()


def test_another_key_takes_its_place_while_clients_are_connected(asking, folder):
    """After a change of keys connected clients stay, and new clients need a token of the new key."""
    def gets_in(key: bytes) -> bool:
        with peer(asking, connect("token", token("joe", key).encode())) as client:
            return client.hear().type == T.CONNECTED

    with peer(asking, connect("token", token("joe").encode())) as connected:
        assert connected.hear().type == T.CONNECTED
        for old, new in (SECRET, OTHER_SECRET), (OTHER_SECRET, SECRET):
            assert gets_in(old) and not gets_in(new)
            (folder / "new").write_bytes(new)
            (folder / "new").rename(folder / "key")
            eventually(lambda new=new: all(gets_in(new) for _ in range(8)))      # each worker looks for itself
            eventually(lambda old=old: not any(gets_in(old) for _ in range(8)))
        assert is_served(connected)


# -- secrets

def test_no_secret_is_shown_anywhere(asking, folder):
    """No log, process list, statistics, metrics or configuration over HTTP shows a secret; runs after the other
    tests.
    """
    with contextlib.suppress(Closed), peer(asking, connect("basic", b"joe:" + PASSWORD.encode())) as client:
        client.hear()
    shown = {"Authorization": "Bearer " + token("joe")}
    runtime = json.loads(ask(asking, "/admin/v2/brokers/configuration/runtime", **shown)[2])
    assert runtime["tokenSecretKey"] == runtime["basicAuthConf"] == "*****"
    assert runtime["authenticationRefreshCheckSeconds"] == "1"
    found = [asking.log(), json.dumps(runtime), ask(asking, "/metrics")[2].decode()]
    for path in (
        "brokers/configuration/values",
        "broker-stats/topics",
        "broker-stats/metrics",
        "brokers/internal-configuration",
    ):
        found.append(ask(asking, "/admin/v2/" + path, **shown)[2].decode())
    for process in [psutil.Process(asking.pid), *psutil.Process(asking.pid).children(recursive=True)]:
        found += [" ".join(process.cmdline()), repr(process.environ())]
    secrets = [PASSWORD, SECRET.decode(), base64.b64encode(b"x" + SECRET).decode(), SIGNATURE, HEADER, "it-is-hers",
               "apr1$", "$2b$"]
    assert [(secret, text[:80]) for secret in secrets for text in found if secret in text] == []


@pytest.mark.parametrize("wrong, said", [
    ('secret_keys = ["file://{folder}/absent"]',
     "authentication.secret_keys cannot be read: {folder}/absent: No such file or directory"),
    ('secret_keys = ["data:;base64,c2hvcnQ="]',
     "authentication.secret_keys is too short: a secret key has at least 32 bytes, not 5"),
])
def test_a_broker_does_not_start_with_keys_that_it_cannot_use(tmp_path, wrong, said):
    wrong, said = (text.replace("{folder}", str(tmp_path)) for text in (wrong, said))
    (tmp_path / "geminga.toml").write_text(f'[authentication]\nmethods = ["token"]\n{wrong}\n')
    done = subprocess.run([*COMMAND, "--config", str(tmp_path / "geminga.toml"), "--data-dir", str(tmp_path / "data")],
                          capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 2 and done.stderr.splitlines()[-1].endswith(f" geminga: {said} [G330]")
    assert not (tmp_path / "data").exists()


def test_password_guesses_keep_nobody_else_out(folder, asking):
    """Three hundred connections that guess passwords from one address do not keep a client of another address out."""
    made = [f"user{number}:{bcrypt.hashpw(b'right', bcrypt.gensalt(10)).decode()}" for number in range(3)]
    config = folder / "guessed.toml"
    (folder / "guessed").write_text("\n".join(made) + "\n")
    config.write_text(f'[authentication]\nmethods = ["basic"]\nusers = "{folder}/guessed"\n')
    broker = Broker(folder / "guessed-data", "--config", str(config), "--workers", "1", "--owners", "1")
    try:
        broker.start()
        before = broker.children()
        with contextlib.ExitStack() as guessers:
            for number in range(300):
                guessers.enter_context(Peer(broker.service_url, connect("basic", b"user0:guess-%d" % number),
                                            source="127.0.0.2"))
            for number in range(3):
                watch = Stopwatch()
                with Peer(
                    broker.service_url, connect("basic", b"user%d:right" % number), source="127.0.0.3"
                ) as witness:
                    assert witness.hear().type == T.CONNECTED
                assert watch.seconds() < 3
        assert broker.children() == before
    finally:
        broker.close()


def test_what_comes_behind_a_connect_that_waits_is_looked_at(asking):
    """A frame that claims four gigabytes is refused although the CONNECT before it still waits for its password
    check.

    Such a size once had memory allocated for it before the check had ended.
    """
    with peer(asking, connect("basic", b"joe:" + PASSWORD.encode()) + b"\xff\xff\xff\xff\0\0\0\0") as waiting:
        waiting.socket.settimeout(HANG_SECONDS)
        assert [heard.type for heard in waiting.until_closed()] == [T.CONNECTED]

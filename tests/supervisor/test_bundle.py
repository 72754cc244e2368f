"""`geminga debug bundle`: its files, also for a broker that hangs or is down, and that no secret is among them."""
import base64
import os
import signal
import subprocess
import tarfile

import bcrypt
import pytest

from geminga.supervisor.host.stacks import innermost
from geminga.supervisor.tasks.bundle import busiest, masked

from ..harness import HANG_SECONDS, Broker, Stopwatch
from .test_serve import GEMINGA, run

pytestmark = pytest.mark.slow

KEY, PASSWORD, PARAMS = os.urandom(32), "a-password-of-a-user", "x-client-secret"
TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJib3NzIn0.c2lnbmF0dXJl"
PROMISED_SECONDS = 30


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("bundle")


@pytest.fixture(scope="module")
def secrets(place):
    """A configuration with secrets of every kind, and the text of each."""
    key, users = base64.b64encode(KEY).decode(), place / "users"
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    users.write_text(f"boss:{hashed}\n")
    (place / "other.key").write_bytes(b"another-secret-key-of-tokens-in-a-file")
    (place / "geminga.toml").write_text(f"""
[authentication]
methods = ["token", "basic"]
secret_keys = ["data:;base64,{key}", "{place / 'other.key'}"]
users = "{users}"
""")
    return [key, hashed, PASSWORD, "another-secret-key-of-tokens-in-a-file", TOKEN, PARAMS,
            base64.b64encode(f"boss:{PASSWORD}".encode()).decode()]


@pytest.fixture(scope="module")
def broker(place, secrets):
    made = Broker(place / "data", "--config", str(place / "geminga.toml"))
    yield made.start()
    made.close()


def bundle(broker, place, name, **environ):
    """Make a bundle; return {name: text}."""
    watch, target = Stopwatch(), place / name
    done = subprocess.run(
        [GEMINGA, "debug", "bundle", "--config", place / "geminga.toml", "--data-dir", broker.data_dir, "--admin-url",
         broker.http_url,
         "--auth-plugin", "basic", "--auth-params", f'{{"userId":"boss","password":"{PASSWORD}"}}', target],
        env=os.environ | environ, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr
    assert watch.seconds() < PROMISED_SECONDS
    assert target.stat().st_mode & 0o77 == 0
    with tarfile.open(target) as archive:
        return {member.name.partition("/")[2]: archive.extractfile(member).read().decode() for member in archive}


def test_it_has_what_tells_how_a_broker_is_and_no_secret(broker, place, secrets):
    run("publish", "--url", broker.service_url, "a-topic", "hello", "--auth-plugin", "basic", "--auth-params",
        f'{{"userId":"boss","password":"{PASSWORD}"}}')
    found = bundle(broker, place, "all.tar.gz", GEMINGA_AUTH_TOKEN=TOKEN, GEMINGA_AUTH_PARAMS=PARAMS)
    assert {
        "versions.txt",
        "configuration.txt",
        "host.txt",
        "folder.txt",
        "catalogue.txt",
        "http/metrics.txt",
        "tune.txt",
    } <= found.keys()
    stacks = {name.split("/")[1].rpartition("-")[0]: text for name, text in found.items()
              if name.endswith("stacks.txt")}
    assert {"geminga-o0", "geminga-w0", "geminga-admin"} < stacks.keys() and len(stacks) == len(broker.children()) + 1
    assert "_loop" in stacks["geminga-o0"] and "storage/owner/process.py" in stacks["geminga-o0"]
    assert "_loop (owner/process.py:" in innermost(broker.data_dir, broker.child("owner"))
    assert "geminga_" in found["http/metrics.txt"] and "1 partitions" in found["catalogue.txt"]
    assert any(name.startswith("topics/") and name.endswith("internalStats.json") for name in found)
    assert [(name, secret) for name, text in found.items() for secret in secrets if secret in text] == []


def test_of_a_broker_that_hangs_it_has_what_can_be_had(broker, place):
    # the supervisor is stopped too, as it would replace its children
    pids = [broker.pid, *broker.children().values()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        found = bundle(broker, place, "hangs.tar.gz")
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)
    assert "SIGUSR1" in found["missing.txt"] and "partitions" in found["catalogue.txt"]
    assert any(name.endswith("proc.txt") and "geminga-o0" in name for name in found)


def test_of_a_broker_that_is_down_it_has_what_can_be_had(broker, place):
    broker.close()
    found = bundle(broker, place, "down.tar.gz")
    assert (
        "http/metrics.txt" in found["missing.txt"] and {"versions.txt", "folder.txt", "catalogue.txt"} <= found.keys()
    )


def test_what_looks_like_a_secret_is_none_whoever_wrote_it():
    line = (f"Authorization: Bearer abc.def and Basic dXNlcjpwYXNz, {TOKEN}, boss:$2b$04$abcdefghijklmnopqrstuv, "
            "data:;base64,c2VjcmV0, "
            "-----BEGIN RSA PRIVATE KEY-----\nMIIB\n-----END RSA PRIVATE KEY----- known")
    text = masked(line, ["known"])
    assert not any(one in text for one in ("abc.def", "dXNlcjpwYXNz", TOKEN, "$2b$", "c2VjcmV0", "MIIB", "known"))


def test_the_busiest_topics_come_first():
    metrics = "".join(f'pulsar_rate_{way}{{cluster="x",topic="persistent://a/b/{number}"}} {number}.0\n'
                      for number in range(20)
                      for way in ("in", "out"))
    assert busiest(metrics)[:2] == ["persistent://a/b/19", "persistent://a/b/18"] and len(busiest(metrics)) == 10

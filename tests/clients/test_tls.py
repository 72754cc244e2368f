"""TLS as clients meet it: a broker that speaks it beside the plain protocol, and one that speaks nothing else."""
import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pulsar
import pytest
import trustme
from cryptography import x509

from geminga.proto import pulsar_api_pb2 as api
from geminga.workers.pulsar_client.rest import NOT_REACHABLE

from ..conftest import _running_broker
from ..harness import COMMAND, HANG_MS, HANG_SECONDS, LOAD_PAUSE_SECONDS, Broker, eventually, unique_topic
from ..proto.client_frames import CONNECT, T
from ..workers.peer import Bystander, Peer

GEMINGA = str(Path(sys.executable).with_name("geminga"))


class Authority:
    """A certificate authority that signs certificates and installs the broker's."""

    def __init__(self, folder: Path):
        self.folder, self._signs = folder, trustme.CA()
        self._signs.cert_pem.write_to_path(self.trusted)
        self.renew()
        client = self._signs.issue_cert(common_name="joe")
        client.private_key_pem.write_to_path(f"{folder}/joe-key")
        client.cert_chain_pems[0].write_to_path(f"{folder}/joe")

    @property
    def trusted(self) -> str:
        return f"{self.folder}/trusted"

    def renew(self) -> int:
        """Install a new certificate for the broker, and return its serial number."""
        issued = self._signs.issue_cert("localhost", "127.0.0.1")
        for name, content in (("cert", issued.cert_chain_pems[0]), ("key", issued.private_key_pem)):
            content.write_to_path(f"{self.folder}/new")
            Path(f"{self.folder}/new").replace(f"{self.folder}/{name}")
        return x509.load_pem_x509_certificate(issued.cert_chain_pems[0].bytes()).serial_number

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.trusted)

    def configuration(self, text: str = "") -> str:
        path = self.folder / "geminga.toml"
        path.write_text(f"""{text}
[tls]
certificate = "{self.folder}/cert"
key = "{self.folder}/key"
trusted = "{self.trusted}"
port = 0
http_port = 0
""")
        return str(path)


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    if _running_broker() is not None:
        pytest.skip("needs a broker with its own configuration")
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def served(authority):
    """A broker that asks for client certificates and admits clients without one anonymously."""
    asks = '[authentication]\nmethods = ["tls"]\nanonymous_role = "anonymous"\n[authorization]\nenabled = true\n' \
           'super_user_roles = ["joe", "anonymous"]\n'
    own = Broker(authority.folder / "data", "--config", authority.configuration(asks))
    try:
        yield own.start()
    finally:
        own.close()


class SecurePeer(Peer):
    """A client of raw bytes over TLS."""

    def __init__(self, authority: Authority, url: str, **options):
        self._context = authority.context()
        super().__init__(url, b"", **options)
        self.socket = self._context.wrap_socket(self.socket, server_hostname="localhost")
        self.say(CONNECT)
        assert self.hear().type == T.CONNECTED


def ask(authority: Authority, url: str, path: str) -> str:
    with urllib.request.urlopen(url + path, context=authority.context(), timeout=HANG_SECONDS) as answer:
        return answer.read().decode()


def counted(authority: Authority, broker: Broker, name: str) -> float:
    """Return the sum of a counter over all processes."""
    lines = ask(authority, broker.https_url, "/metrics").splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))


def serial_at(authority: Authority, url: str) -> int:
    where = urlsplit(url)
    with socket.create_connection((where.hostname, where.port), 60) as plain, \
            authority.context().wrap_socket(plain, server_hostname="localhost") as link:
        return x509.load_der_x509_certificate(link.getpeercert(binary_form=True)).serial_number


@pytest.mark.parametrize("shown", ["", "joe"])
def test_a_client_publishes_and_consumes(authority, served, connect, shown):
    """Clients with and without a certificate use plain and partitioned topics, and lookups answer TLS addresses."""
    identity = (
        pulsar.AuthenticationTLS(f"{authority.folder}/{shown}", f"{authority.folder}/{shown}-key") if shown else None
    )
    client = connect(served.tls_url, tls_trust_certs_file_path=authority.trusted, tls_validate_hostname=True,
                     authentication=identity)
    topic = unique_topic("secret")
    consumer, producer = client.subscribe(topic, "sub"), client.create_producer(topic)
    payloads = [bytes([number % 256]) * 1024 * (1 + number % 100) for number in range(200)]
    for payload in payloads:
        producer.send_async(payload, None)
    producer.flush()
    received = [consumer.receive(HANG_MS) for _ in payloads]
    assert [message.data() for message in received] == payloads
    stats = json.loads(ask(authority, served.https_url, f"/admin/v2/{topic.replace('://', '/')}/stats"))
    assert stats["publishers"][0]["producerName"] == producer.producer_name()


def test_a_client_of_http_lookup_is_told_of_tls(authority, served, connect):
    client = connect(served.https_url, tls_trust_certs_file_path=authority.trusted)
    assert client.create_producer(unique_topic("secret")).send(b"one") is not None


def test_a_client_that_trusts_others_does_not_connect(authority, served, connect, tmp_path):
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "others"))
    with pytest.raises(pulsar.ConnectError):
        connect(
            served.tls_url, tls_trust_certs_file_path=str(tmp_path / "others"), operation_timeout_seconds=3
        ).create_producer("t")


def test_a_lookup_has_addresses_of_both_kinds(authority, served):
    """A lookup answers the addresses with and without TLS, over both protocols."""
    topic = unique_topic("where")
    for peer in (Peer(served.service_url), SecurePeer(authority, served.tls_url)):
        with peer:
            found = peer.ask(T.LOOKUP, topic=topic, request_id=1).lookupTopicResponse
            assert (found.brokerServiceUrl, found.brokerServiceUrlTls) == (served.service_url, served.tls_url)
    path = f"/lookup/v2/topic/{topic.replace('://', '/')}"
    assert json.loads(ask(authority, served.https_url, path)) == json.loads(ask(authority, served.http_url, path)) == {
        "brokerUrl": served.service_url, "brokerUrlTls": served.tls_url, "nativeUrl": served.service_url,
        "brokerUrlSsl": "",
        "httpUrl": served.http_url, "httpUrlTls": served.https_url}


def test_expiry_is_a_metric(authority, served):
    assert counted(authority, served, "geminga_certificate_expiry_seconds") > 24 * 3600


def test_who_speaks_otherwise_is_sent_away(authority, served):
    """Plain text to the TLS port, TLS to the plain port, and silence each end or block only their own connection."""
    bystander = Bystander(served.service_url, unique_topic("bystander"))
    failed = counted(authority, served, "geminga_tls_handshakes_failed_total")
    idle = [socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), 60)
            for url in (served.tls_url, served.https_url, served.service_url) for _ in range(100)]
    for url in (served.tls_url, served.https_url):
        with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), 60) as peer:
            peer.sendall(CONNECT)
            with contextlib.suppress(ConnectionResetError):
                while peer.recv(4096):
                    pass
    for url in (served.service_url, served.http_url):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            serial_at(authority, url)
    bystander.round()
    with SecurePeer(authority, served.tls_url):
        pass
    for peer in idle:
        peer.close()
    bystander.peer.socket.close()
    assert counted(authority, served, "geminga_tls_handshakes_failed_total") >= failed + 2
    assert "Traceback" not in served.log()


def test_a_certificate_changes_under_load(authority, served, connect):
    """When the certificate file changes, connections go on and new ones see the new certificate, also over HTTP."""
    ended, rounds, trouble = threading.Event(), [], []
    with contextlib.ExitStack() as stack:
        bystander = Bystander.__new__(Bystander)
        bystander.peer, bystander._rounds = stack.enter_context(SecurePeer(authority, served.tls_url)), 0
        topic = unique_topic("rotation")
        bystander.peer.open_producer(topic)
        bystander.peer.subscribe(topic)

        def go_on() -> None:
            try:
                while not ended.wait(LOAD_PAUSE_SECONDS):
                    bystander.round()
                    rounds.append(bystander._rounds)
            except BaseException as error:
                trouble.append(error)

        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            for _ in range(2):
                serial = authority.renew()
                for url in (served.tls_url, served.https_url):
                    # Each process sees it for itself, so all of many handshakes in a row do when all of them have.
                    eventually(lambda url=url, serial=serial: {serial_at(authority, url) for _ in range(8)} == {serial})
                done = len(rounds)
                eventually(lambda done=done: len(rounds) > done or trouble)
        finally:
            ended.set()
            thread.join()
    assert not trouble


def test_a_start_with_bad_certificates_is_refused(authority, tmp_path):
    """A start with unusable certificates prints one line that names the key, exits with 2 and creates nothing."""
    config = authority.configuration().removesuffix("/geminga.toml") + "/bad.toml"
    Path(config).write_text(f'[tls]\ncertificate = "{authority.folder}/cert"\nkey = "{authority.folder}/joe-key"\n')
    command = [*COMMAND, "--config", config, "--data-dir", tmp_path / "data"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert " geminga: tls.key must be of the first certificate" in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_broker_may_speak_nothing_but_tls(authority, tmp_path):
    """A broker with TLS ports only prints them, passes its own health check, and is reached by the command."""
    own = Broker(tmp_path / "data", "--config", authority.configuration("workers = 1\nowners = 1\n"), "--port", "-1",
                 "--http-port", "-1")
    try:
        own.start()
        assert (own.service_url, own.http_url) == ("", "")
        eventually(lambda: f"produce --url {own.tls_url} " in own.printed())
        assert ask(authority, own.https_url, "/admin/v2/brokers/health") == "ok"
        topic = unique_topic("only")
        found = json.loads(ask(authority, own.https_url, f"/lookup/v2/topic/{topic.replace('://', '/')}"))
        assert (found["brokerUrl"], found["brokerUrlTls"], found["httpUrl"]) == ("", own.tls_url, "")
        assert (
            json.loads(ask(authority, own.https_url, "/admin/v2/clusters/standalone"))["brokerServiceUrlTls"]
            == own.tls_url
        )
        with SecurePeer(authority, own.tls_url) as peer:
            answer = peer.ask(T.LOOKUP, topic=topic, request_id=1).lookupTopicResponse
            assert not answer.HasField("brokerServiceUrl") and answer.response == api.CommandLookupTopicResponse.Connect

        def run(*words: str, **environment: str) -> subprocess.CompletedProcess:
            return subprocess.run([GEMINGA, *words], capture_output=True, text=True, timeout=HANG_SECONDS, check=False,
                                  env=os.environ | environment)

        assert run("publish", "--url", own.tls_url, topic, "no").returncode == NOT_REACHABLE
        assert (
            run("publish", "--url", own.tls_url, "--tls-trust-cert-path", authority.trusted, topic, "yes").returncode
            == 0
        )
        (tmp_path / "client.conf").write_text(f"brokerServiceUrl={own.tls_url}\nwebServiceUrl={own.https_url}\n"
                                              f"tlsTrustCertsFilePath={authority.trusted}\n")
        conf = str(tmp_path / "client.conf")
        assert run("read", topic, PULSAR_CLIENT_CONF=conf).stdout == "yes\n"
        assert topic in run("admin", "topics", "list", "public/default", PULSAR_CLIENT_CONF=conf).stdout
        assert ", ready\n" in run("status", PULSAR_CLIENT_CONF=conf).stdout
        assert run("log", "level", PULSAR_CLIENT_CONF=conf).stdout == "info is configured\n"
        assert "certificate" in run("admin", "--admin-url", own.https_url, "topics", "list", "public/default").stderr
    finally:
        own.close()

"""Who may use WebSocket: tokens in the header and in the address, rights, and what ends when they do."""
import json
import ssl
import time

import jwt
import pytest
import trustme

from ..harness import Broker, eventually, path_of, request, unique_topic
from .sockets import Sockets

KEY = b"a secret key of thirty-two bytes"
CONFIG = """
workers = 2
[authentication]
methods = ["token"]
secret_keys = ["{folder}/key"]
[authorization]
enabled = true
super_user_roles = ["admin"]
[tls]
certificate = "{folder}/chain.pem"
key = "{folder}/key.pem"
http_port = 0
port = 0
"""


def token(role, seconds=600.0):
    return jwt.encode({"sub": role, "exp": time.time() + seconds}, KEY, "HS256")


class Guarded:
    """A broker that asks for tokens, with TLS too."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "key").write_bytes(KEY)
        authority = trustme.CA()
        certificate = authority.issue_cert("localhost", "127.0.0.1")
        certificate.private_key_pem.write_to_path(folder / "key.pem")
        certificate.cert_chain_pems[0].write_to_path(folder / "chain.pem")
        authority.cert_pem.write_to_path(folder / "trusted.pem")
        self.configure("")
        self.broker = Broker(folder / "data", "--config", str(folder / "geminga.toml")).start()
        self.http_url = self.broker.http_url

    def configure(self, more):
        (self.folder / "geminga.toml").write_text(CONFIG.format(folder=self.folder) + more)

    @property
    def tls(self):
        return ssl.create_default_context(cafile=self.folder / "trusted.pem")

    def ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        status, text = request(method, f"{self.http_url}/admin/v2/{path}", data,
                               Authorization=f"Bearer {token('admin')}")
        assert status in (200, 204), text
        return text

    def grant(self, role, *actions):
        self.ask("POST", f"namespaces/public/default/permissions/{role}", list(actions))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    made = Guarded(tmp_path_factory.mktemp("guarded"))
    yield made
    made.broker.close()


@pytest.fixture(scope="module")
def sockets(guarded):
    with Sockets(guarded.http_url) as made:
        yield made


def test_credentials_come_first_then_rights_then_parameters(guarded, sockets):
    guarded.grant("writer", "produce")
    guarded.grant("reader", "consume")
    topic = unique_topic()
    producer, consumer = f"/ws/v2/producer/{path_of(topic)}", f"/ws/v2/consumer/{path_of(topic)}/s"
    reader, several = f"/ws/v2/reader/{path_of(topic)}", "/ws/v3/consumer/s"
    for door in (producer, consumer, reader):
        assert sockets.status(door, compressionType="x", receiverQueueSize="x") == 401
        assert sockets.status(door, token="nonsense") == 401
        assert sockets.status(door, token=token("nobody"), compressionType="x", receiverQueueSize="x") == 403
    assert sockets.status(producer, token=token("reader")) == sockets.status(consumer, token=token("writer")) == 403
    assert sockets.status(reader, token=token("writer")) == 403
    assert sockets.status(several, topics=topic, token=token("writer")) == 403
    assert sockets.status(several, topicsPattern="public/default/x.*", token=token("nobody")) == 403
    assert topic not in guarded.ask("GET", "persistent/public/default")      # it was not made for them
    assert sockets.status(producer, token=token("writer"), compressionType="x") == 400
    assert sockets.status(several, topics=topic, token=token("reader")) == 101
    assert sockets.status(consumer, {"Authorization": f"Bearer {token('reader')}"}) == 101


def test_messages_go_through_tls_with_a_token_in_the_header(guarded):
    with Sockets(guarded.broker.https_url, guarded.tls, Authorization=f"Bearer {token('admin')}") as sockets:
        topic = unique_topic()
        consumer, producer = sockets.consumer(topic, "s"), sockets.producer(topic)
        for size in (0, 1, 70_000, 700_000):
            producer.publish(b"x" * size)
            assert consumer.data(1) == [b"x" * size]
        consumer.text("x")
        assert consumer.code() == 1007


def test_a_revoked_right_closes_what_used_it(guarded, sockets):
    guarded.grant("both", "produce", "consume")
    topic = unique_topic()
    producer = sockets.producer(topic, token=token("both"))
    consumer = sockets.consumer(topic, "s", token=token("both"))
    producer.publish(b"x")
    assert consumer.data(1) == [b"x"]
    guarded.ask("DELETE", "namespaces/public/default/permissions/both")
    assert consumer.code() == 1008
    assert producer.code() == 1008


def test_an_expired_token_ends_the_connection(guarded, sockets):
    consumer = sockets.consumer(unique_topic(), "s", token=token("admin", 2))
    assert consumer.code() == 1008


def test_a_reload_closes_those_that_would_not_be_let_in_any_more(guarded, sockets):
    topic = unique_topic()
    consumer = sockets.consumer(topic, "s", token=token("admin"))
    text = (guarded.folder / "geminga.toml").read_text()
    (guarded.folder / "users").write_text("joe:$2y$05$lJXgoFNdJYMCI9Z.5Ya9puIJ4SXe3NIl0Q5XTSp7pM0VBxJd7Jw8a\n")
    (guarded.folder / "geminga.toml").write_text(
        text.replace('methods = ["token"]', f'methods = ["basic"]\nusers = "{guarded.folder}/users"'))
    guarded.broker._process.send_signal(1)      # SIGHUP
    assert consumer.code() == 1008
    (guarded.folder / "geminga.toml").write_text(text)
    guarded.broker._process.send_signal(1)
    eventually(lambda: sockets.status(f"/ws/v2/consumer/{path_of(topic)}/s", token=token("admin")) == 101)

"""`geminga publish` and `geminga read`: messages are printed as they were published, and errors in one line."""
import contextlib
import json
import re
import socket
import ssl
import struct
import threading
import zlib

import pulsar
import pytest
import trustme

from geminga.proto import pulsar_api_pb2 as api
from geminga.supervisor.main import main

from ..clients.test_python_client import COMPRESSIONS
from ..harness import HANG_SECONDS, partitioned_topic, request, unique_topic
from ..proto.client_frames import T, entry_of, message_metadata, send
from ..workers.peer import Peer
from .test_serve import run

pytestmark = pytest.mark.slow

LARGE = "".join(str(number) for number in range(2_000_000))      # longer than a message may be


@pytest.fixture(scope="module")
def clients(broker):
    made = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield made
    made.close()


def read(broker, topic):
    """Run `geminga read`; return (exit status, lines printed, lines of complaint)."""
    status, printed, complaints = run("read", "--url", broker.service_url, topic)
    return status, printed.splitlines(), complaints


def topics_of(broker):
    return set(json.loads(request("GET", broker.http_url + "/admin/v2/persistent/public/default")[1]))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_batches_and_what_is_compressed_are_read_as_the_messages_that_they_are(broker, clients, compression):
    topic = unique_topic("batches")
    producer = clients.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=1_000,
                                       compression_type=COMPRESSIONS[compression])
    for number in range(7):
        producer.send_async(f"batched {number}".encode(), None, partition_key=f"k{number}", properties={"a": "b"})
    producer.flush()
    producer.close()
    alone = clients.create_producer(topic, batching_enabled=False, compression_type=COMPRESSIONS[compression])
    alone.send(b"alone")
    alone.close()
    assert read(broker, topic) == (0, [*(f"batched {number}" for number in range(7)), "alone"], [])


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_message_in_chunks_is_one(broker, clients, compression):
    topic = unique_topic("chunked")
    producer = clients.create_producer(topic, chunking_enabled=True, compression_type=COMPRESSIONS[compression])
    producer.send(LARGE.encode())
    producer.send(b"after it")
    producer.close()
    assert read(broker, topic) == (0, [LARGE, "after it"], [])


def test_of_a_partitioned_topic_all_partitions_are_read(broker, clients):
    topic = partitioned_topic(broker.http_url, 3)
    producer = clients.create_producer(topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution)
    for number in range(9):
        producer.send(str(number).encode())
    producer.close()
    status, printed, complaints = read(broker, topic)
    assert (status, sorted(printed), complaints) == (0, [str(number) for number in range(9)], [])
    by_partition = [read(broker, f"{topic}-partition-{number}")[1] for number in range(3)]
    assert all(by_partition) and sorted(sum(by_partition, [])) == sorted(printed)
    for lines in by_partition:      # partitions mix, each in its own order
        assert [line for line in printed if line in lines] == lines
    status, printed, complaints = read(broker, f"{topic}-partition-3")
    assert (status, printed, len(complaints)) == (1, [], 1) and f"{topic}-partition-3" in complaints[0]


@pytest.mark.parametrize("name", ["no-such-topic", "public/default/no-such-one", "no-such-topic-partition-2",
                                  "nobody/nothing/t",
                                  "non-persistent://public/default/no-such-one", "a/b", "persistent://x", ""])
def test_reading_makes_no_topic(broker, name):
    before = topics_of(broker)
    status, printed, complaints = read(broker, name)
    is_name = name not in ("a/b", "persistent://x", "")
    assert (status, printed, len(complaints)) == (1 if is_name else 2, [], 1), complaints
    assert name in complaints[0]
    assert topics_of(broker) == before
    assert request("GET", broker.http_url + "/admin/v2/non-persistent/public/default")[1] == "[]"


def test_a_topic_that_holds_nothing_prints_nothing(broker, clients):
    topic = unique_topic("empty")
    clients.subscribe(topic, "s").close()
    assert read(broker, topic) == (0, [], [])


# -- entries that no client library makes

@pytest.fixture
def publish(broker):
    """publish(topic, (metadata's fields, payload), ...): publishes these entries as they are."""
    def publish(topic, *entries):
        with Peer(broker.service_url) as peer:
            peer.open_producer(topic)
            for number, (fields, payload) in enumerate(entries):
                entry = entry_of(message_metadata(sequence_id=number, **fields), payload)
                peer.say(send(entry, sequence_id=number, **({"is_chunk": True} if "uuid" in fields else {})))
                assert peer.hear().type == T.SEND_RECEIPT
    return publish


def chunk(number, of, uuid="u"):
    return {"uuid": uuid, "chunk_id": number, "num_chunks_from_msg": of, "total_chunk_msg_size": 6}


ZIPPED = zlib.compress(b"x" * 1000)
CANNOT = [
    ({"encryption_keys": [api.EncryptionKeys(key="k", value=b"v")]}, b"secret", "encrypted"),
    ({"compression": api.ZLIB, "uncompressed_size": 1 << 31}, ZIPPED, "2147483648 bytes"),
    ({"compression": api.ZLIB, "uncompressed_size": 10}, ZIPPED, "cannot be decompressed"),
    ({"compression": api.ZLIB, "uncompressed_size": 1001}, ZIPPED, "cannot be decompressed"),
    ({"compression": api.LZ4, "uncompressed_size": 10}, b"no such thing", "cannot be decompressed"),
    ({"num_messages_in_batch": 3}, b"\0\0\0\x02\x18\x01a" + b"\0\0\xff\xff" + b"b" * 9,
     "message 1 of its batch is cut"),
    (chunk(0, 2), b"abc", "chunk"), (chunk(1, 2), b"def", "chunk"),
]


@pytest.mark.parametrize(("fields", "payload", "why"), CANNOT)
def test_an_entry_that_cannot_be_shown_is_a_line_that_says_why_and_others_are_shown(broker, publish, fields, payload,
                                                                                    why):
    topic = unique_topic("odd")
    publish(topic, ({}, b"before"), (fields, payload), ({}, b"behind"))
    status, printed, complaints = read(broker, topic)
    assert status == 1 and [line for line in printed if line != "a"] == ["before", "behind"]
    assert len(complaints) == 1 and why in complaints[0] and ":1 is not shown" in complaints[0]


def test_chunks_that_mix_come_twice_or_begin_anew_are_put_together(broker, publish):
    topic = unique_topic("chunks")
    publish(topic, (chunk(0, 2, "one"), b"abc"), (chunk(0, 3, "two"), b"1"), (chunk(0, 2, "one"), b"ABC"),
            (chunk(1, 3, "two"), b"2"),
            (chunk(1, 3, "two"), b"2"), (chunk(1, 2, "one"), b"def"), (chunk(2, 3, "two"), b"3"))
    status, printed, complaints = read(broker, topic)
    assert (status, printed) == (1, ["ABCdef", "123"]) and len(complaints) == 1 and ":0 is not shown" in complaints[0]


def test_bytes_that_are_no_text_are_told_apart(broker, publish):
    topic = unique_topic("bytes")
    publish(topic, ({}, b"\xff"), ({}, b"\xfe"))
    assert read(broker, topic)[1] == [r"\xff", r"\xfe"]


# -- addresses

@pytest.fixture
def here(capsys):
    """here(words...): as `run`, in this process."""
    def here(*words):
        status = main(list(words))
        printed, complaints = capsys.readouterr()
        return status, printed, complaints.splitlines()
    return here


class Listener:
    """A server that accepts connections, and treats each as `meets` does."""

    def __init__(self, meets):
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port, self._meets = self._socket.getsockname()[1], meets
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        with contextlib.suppress(OSError):
            while True:
                link, _ = self._socket.accept()
                with link, contextlib.suppress(OSError):
                    link.settimeout(HANG_SECONDS)
                    self._meets(link)

    def close(self):
        self._socket.close()


def silent(link):
    link.recv(65_536)


def resets(link):
    link.recv(1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def gibberish(link):
    link.recv(65_536)
    link.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """{kind of listener: its port}, and the authority of TLS."""
    authority, context = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("elsewhere.example").configure_cert(context)
    place = tmp_path_factory.mktemp("authority") / "trusted"
    place.write_bytes(authority.cert_pem.bytes())
    other = place.with_name("other")
    other.write_bytes(trustme.CA().cert_pem.bytes())

    def shakes_hands(link):
        with context.wrap_socket(link, server_side=True) as secured:
            secured.recv(65_536)

    made = {name: Listener(meets) for name, meets in
            (("silent", silent), ("resets", resets), ("gibberish", gibberish), ("tls", shakes_hands))}
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    yield {name: one.port for name, one in made.items()} | {"closed": port, "trusted": place, "other": other}
    for one in made.values():
        one.close()


COMMANDS = {"pulsar": (("publish", "{address}", "t", "x"), ("read", "{address}", "t")),
            "http": (("why", "{address}", "t", "s"), ("status", "{address}"),
                     ("admin", "{address}", "tenants", "list"))}
SECURE = {"pulsar": "pulsar+ssl", "http": "https"}
REASONS = [      # (listener, whether TLS is wanted, more options, the complaint)
    ("silent", False, (), "without an answer"), ("silent", True, (), "may not speak TLS"),
    ("resets", False, (), "reset|without an answer"), ("resets", True, (), "reset|may not speak TLS"),
    ("gibberish", False, (), "does not speak"), ("gibberish", True, (), "may not speak TLS"),
    ("tls", False, (), "TLS|without an answer|reset"),
    ("tls", True, ("--tls-trust-cert-path", "{trusted}"), "not to be trusted.*127.0.0.1"),
    ("tls", True, ("--tls-trust-cert-path", "{other}"), "not to be trusted.*(issuer|self-signed)"),
    ("pulsar", True, (), "may not speak TLS"), ("http", True, (), "may not speak TLS"),
    ("crossed", False, (), "does not speak|serves|without an answer"),
    ("closed", False, (), "Connection refused"), ("closed", True, (), "Connection refused"),
]


@pytest.mark.parametrize(("scheme", "words"), [(scheme, words) for scheme, some in COMMANDS.items() for words in some],
                         ids=lambda value: value if isinstance(value, str) else value[0])
@pytest.mark.parametrize(("what", "is_secure", "more", "says"), REASONS)
def test_an_address_that_does_not_answer_as_it_should_is_one_line_that_says_what_is_there(
    broker, others, here, scheme, words, what, is_secure, more, says
):
    of_broker = {"pulsar": broker.service_url, "http": broker.http_url}
    of_broker["crossed"] = of_broker["http" if scheme == "pulsar" else "pulsar"]
    port = others[what] if what in others else of_broker[what].rpartition(":")[2]
    address = f"{SECURE[scheme] if is_secure else scheme}://127.0.0.1:{port}"
    option = "--url" if scheme == "pulsar" else "--admin-url"
    given = [part for word in words for part in ((option, address) if word == "{address}" else (word,))]
    more = [word.format(**others) for word in more]
    at = given.index(address) + 1
    status, printed, complaints = here(*given[:at], *more, *given[at:])
    assert (status, printed, len(complaints)) == (3, "", 1), complaints
    assert address in complaints[0] and re.search(says, complaints[0]) and not complaints[0].rstrip().endswith(":")


@pytest.mark.parametrize("address", ["127.0.0.1:6650", "http://127.0.0.1:6650", "pulsar://", "pulsar://:6650",
                                     "pulsar://127.0.0.1:99999",
                                     "pulsar://[::1", "pulsar://127.0.0.1:x", "nonsense", ""])
def test_what_is_no_address_is_one_line(here, address):
    status, printed, complaints = here("read", "t", "--url", address)
    assert (status, printed, len(complaints)) == (2, "", 1) and repr(address) in complaints[0]


@pytest.mark.parametrize("command", ["status", "admin tenants list"])
@pytest.mark.parametrize("address", ["127.0.0.1:8080", "pulsar://127.0.0.1:6650", "http://", "http://127.0.0.1:99999",
                                     "http://[::1", "http://127.0.0.1:x", ""])
def test_what_is_no_address_of_http_is_one_line(here, command, address):
    first, *rest = command.split()
    status, printed, complaints = here(first, "--admin-url", address, *rest)
    assert (status, printed, len(complaints)) == (2, "", 1) and repr(address) in complaints[0]


@pytest.mark.parametrize("command",
                         ["publish --url pulsar+ssl://127.0.0.1:1 t x", "status --admin-url https://127.0.0.1:1"])
@pytest.mark.parametrize("options", [("--tls-trust-cert-path", "{file}"), ("--tls-trust-cert-path", "{missing}"),
                                     ("--auth-plugin", "tls", "--auth-params",
                                      "tlsCertFile:{missing},tlsKeyFile:{file}"),
                                     ("--auth-plugin", "tls", "--auth-params", "tlsCertFile:{file},tlsKeyFile:{file}")])
def test_a_file_that_is_no_certificate_is_named(here, tmp_path, command, options):
    (tmp_path / "file").write_text("nothing")
    options = [word.format(file=tmp_path / "file", missing=tmp_path / "missing") for word in options]
    status, printed, complaints = here(*command.split(), *options)
    assert (status, printed) == (2, "") and str(tmp_path) in complaints[-1] and options[-2] in complaints[-1]

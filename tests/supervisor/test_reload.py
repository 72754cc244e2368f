"""A reload of the configuration while the broker runs: every key takes effect, or is named as one that needs a restart.
"""
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import jwt
import pulsar
import pytest
import trustme

from geminga.proto import pulsar_api_pb2 as api
from geminga.supervisor.configuration.config import KEYS, SECTIONS, Config, shown, value
from geminga.supervisor.configuration.restarts import NEEDS_RESTART, TLS_SWITCH
from geminga.supervisor.configuration.value_ranges import RANGES
from geminga.supervisor.processes import control_socket
from geminga.supervisor.processes.children import READY
from geminga.supervisor.processes.reload import Reload, merged
from geminga.workers.identity.options import AuthenticationOptions, Secret, TlsOptions

from .. import issuer as issuers
from ..clients.test_tls import Authority
from ..harness import HANG_MS, HANG_SECONDS, Broker, eventually, request, unique_topic
from ..proto.client_frames import CONNECT, T, command, entry_of, message_metadata, send
from ..web.rest import Rest
from ..workers.peer import Closed, Peer

pytestmark = pytest.mark.slow

GEMINGA = str(Path(sys.executable).with_name("geminga"))
CHOICES = {     # other values of keys that do not take any number or any text
    "affinity": "spread",
    "storage.sync": "interval", "storage.failover_selection": "join-order",
    "storage.backlog_quota_policy": "producer_exception",
    "storage.inactive_topic_mode": "delete_when_subscriptions_caught_up", "storage.subscription_types": ("Shared",),
    "storage.schema_compatibility_strategy": "BACKWARD", "nightly.engine": "here", "nightly.master": "local[1]",
    "network.advertised_listeners": ("inside:pulsar://inside:6650",), "network.broker_entry_metadata": ("index",),
    "storage.compaction_order": "event_time", "storage.export": "messages", "nightly.until": "05:00",
    "storage.replication_start_at": "earliest",
    "console.url": "https://broker.example", "standby.of": "pulsar://other:6650", "standby.hosts": ("10.0.0.2",),
    "nightly.tables.url": "/srv/tables", "nightly.tables.format": "iceberg",
    "nightly.tables.packages": ("a:b:1",), "nightly.tables.settings_file": "/etc/tables.properties",
    "log.level": "debug", "log.format": "json", "tls.client_certificates": "none", "tls.versions": ("TLSv1.3",),
    "authentication.methods": ("basic",),
    "authentication.public_key_algorithm": "ES256", "tls.certificate": "", "tls.key": ""}


def other(key, now):
    """Return another value that the key may have."""
    if key in CHOICES:
        return CHOICES[key]
    if isinstance(now, bool):
        return not now
    if isinstance(now, int):
        return now - 1 if now + 1 > RANGES.get(key, (0, 1 << 62))[1] else now + 1
    if isinstance(now, tuple):
        return (Secret("data:,x"),) if "keys" in key else ("x",)
    return type(now)(f"{now}x")


def with_value(config, key, found):
    section, _, name = key.rpartition(".")
    part = SECTIONS[section][0] if section else ""
    return replace(config, **({part: replace(getattr(config, part), **{name: found})} if section else {name: found}))


@pytest.mark.parametrize("key", KEYS)
def test_each_key_holds_or_is_named(key):
    before = replace(Config(), tls=TlsOptions(certificate="c", key="k"))
    wanted = other(key, value(before, key))
    after, [change] = merged(before, with_value(before, key, wanted))
    needs = key in NEEDS_RESTART or key == "tls.certificate"      # without its certificate TLS is switched off
    assert (change.key, change.old, change.new, bool(change.needs)) == (key, value(before, key), wanted, needs)
    assert value(after, key) == (change.old if needs else wanted)


def test_only_listeners_folders_and_numbers_of_processes_need_a_restart():
    assert set(NEEDS_RESTART) == {"data_dir", "workers", "owners", "network.bind", "network.port",
                                  "network.proxy_protocol", "http_bind", "http_port", "tls.port", "tls.http_port",
                                  "http.web_processes"}


def test_tls_is_not_switched_on_halfway():
    """If no TLS port was open at the start, no key of TLS takes effect, and each is named."""
    after, changes = merged(Config(), replace(Config(), tls=TlsOptions(certificate="c", key="k", trusted="t")))
    assert after == Config()
    assert {(change.key, change.needs) for change in changes} == {(f"tls.{name}", TLS_SWITCH)
                                                                  for name in ("certificate", "key", "trusted")}


def test_secrets_are_shown_to_nobody():
    assert shown((Secret("data:,s3cret"), Secret("/etc/key"))) == '["***", "***"]'


# -- a supervisor that is played

class Driven:
    """A reload of a played supervisor, with its steps in order."""

    def __init__(self, new, *, old=None, has_tls=True):
        self.done, self.errors = [], []
        old = old or Config()
        children = [self._child(role) for role in ("owner", "worker", "admin", "owner")]
        certificates = SimpleNamespace(configure=lambda tls: self.done.append("certificates")) if has_tls else None
        self.supervisor = SimpleNamespace(
            config=old, is_stopping=False, is_ready=True, is_draining=False, children=children, addresses=(),
            certificates=certificates,
            authenticator=SimpleNamespace(configure=lambda identity: self.done.append("identity")),
            notify=SimpleNamespace(reloading=lambda: self.done.append("reloading"),
                                   ready=lambda: self.done.append("ready")),
            announce=lambda config: self.done.append("announced"), tell_status=lambda: self.done.append("status"),
            hang_up=lambda caller: self.done.append("hung up"))
        self.reload = Reload(self.supervisor, lambda: (new, []))
        self.answers = []
        self.reload.asked(SimpleNamespace(send=lambda **said: self.answers.append(said)), True)

    def _child(self, role):
        return SimpleNamespace(role=role, is_asked=False, state=READY, pid=0, leaves_for="", killed_for="",
                               control=SimpleNamespace(send=lambda options: self.done.append(role)))

    def answer(self, *roles):
        for child in self.supervisor.children:
            if child.role in roles:
                self.reload.answered(child, "")
        self.reload.go_on()


def test_owners_are_told_first_and_last_when_messages_become_smaller():
    """No message may reach an owner that is larger than the owner accepts."""
    for size, order in ((1 << 20, [["worker", "admin"], ["owner", "owner"]]),
                        (6 << 20, [["owner", "owner"], ["worker", "admin"]])):
        driven = Driven(with_value(Config(), "network.max_message_size", size), has_tls=False)
        driven.reload.go_on()
        assert driven.done == ["reloading", "identity", "announced", *order[0]]
        driven.answer(*order[0])
        assert driven.done[-2:] == order[1] and driven.answers == []
        driven.answer(order[1][0])
        assert driven.answers == [] or order[1][0] == "owner"
        driven.answer(*order[1])
        [answer] = driven.answers
        assert (
            answer["error"] == "" and len(answer["changes"]) == 1 and driven.done[-3:] == ["hung up", "status", "ready"]
        )


def test_nothing_is_taken_of_a_configuration_of_which_a_part_cannot_be_used(tmp_path):
    """Certificates do not take effect if users cannot be read, nor users if certificates cannot."""
    files = {"certificate": str(tmp_path / "cert"), "key": str(tmp_path / "key")}
    certificate = trustme.CA().issue_cert("localhost")
    certificate.private_key_pem.write_to_path(files["key"])
    certificate.cert_chain_pems[0].write_to_path(files["certificate"])
    good, bad = TlsOptions(**files), TlsOptions(**files | {"key": f"{tmp_path}/absent"})
    old = replace(Config(), tls=good)
    users = AuthenticationOptions(methods=("basic",), users=Secret(f"{tmp_path}/absent"))
    for new, key in ((replace(old, tls=replace(good, versions=("TLSv1.3",)), authentication=users),
                      "authentication.users"),
                     (replace(old, tls=bad), "tls.key")):
        driven = Driven(new, old=old)
        driven.reload.go_on()
        assert driven.done == ["reloading", "hung up", "status", "ready"]
        assert key in driven.answers[0]["error"] == driven.reload.refused
        assert driven.supervisor.config is old


def test_a_reload_waits_until_everybody_is_there_and_another_until_that_is_done():
    driven = Driven(with_value(Config(), "storage.retention_s", 5), has_tls=False)
    for name, obstacle in (("is_stopping", True), ("is_ready", False), ("is_draining", True)):
        usual = getattr(driven.supervisor, name)
        setattr(driven.supervisor, name, obstacle)
        driven.reload.go_on()
        assert driven.done == []
        setattr(driven.supervisor, name, usual)
    driven.supervisor.children[0].state = "starting"
    driven.reload.go_on()
    assert driven.done[-1] == "announced"
    later = []
    driven.reload.asked(SimpleNamespace(send=lambda **said: later.append(said)), True)
    driven.reload.go_on()
    assert driven.done[-1] == "announced"
    driven.supervisor.children[0].state = READY
    driven.reload.go_on()
    driven.answer("owner")
    driven.answer("worker", "admin")
    assert driven.done.count("reloading") == 1 and driven.done[-1] == "ready"
    assert (len(driven.answers), later) == (1, [])      # which has not read what the later caller has changed
    driven.reload.go_on()
    assert driven.done.count("reloading") == 2
    driven.answer("owner")
    driven.answer("worker", "admin")
    assert driven.done.count("ready") == 2 and (len(driven.answers), len(later)) == (1, 1)


def test_a_child_that_cannot_follow_makes_room_for_one_that_can(monkeypatch):
    driven, killed = Driven(Config()), []
    monkeypatch.setattr("geminga.supervisor.processes.reload.os",
                        SimpleNamespace(kill=lambda pid, how: killed.append(how)))
    one, other, third, _ = driven.supervisor.children
    for child in (one, other, third):
        child.is_asked = True
    driven.reload.answered(one, "")
    driven.reload.answered(other, "again")
    assert (one.is_asked, other.is_asked, bool(other.leaves_for), killed) == (False, True, True, [])
    driven.reload.answered(third, "no room")
    assert killed == [signal.SIGKILL] and "no room" in third.killed_for and third.is_asked


@pytest.mark.parametrize("said", [False, 1, None, "true", {}])
def test_a_reload_that_is_asked_for_in_other_words_is_none(said):
    driven = Driven(Config())
    with pytest.raises(ValueError):
        driven.reload.asked(SimpleNamespace(), said)


# -- with a broker

class Reloaded:
    """A broker whose configuration file is written anew."""

    def __init__(self, folder):
        self.folder, self.file = folder, folder / "geminga.toml"
        self.authority = Authority(folder)
        (folder / "other").mkdir()
        self.tls = (f'[tls]\ncertificate = "{folder}/cert"\nkey = "{folder}/key"\ntrusted = "{folder}/trusted"\n'
                    "port = 0\nhttp_port = 0\n")
        self.file.write_text(self.tls)
        self.broker = Broker(folder / "data", "--config", str(self.file), "--workers", "2", "--owners", "2").start()

    def run(self, *arguments):
        done = subprocess.run([GEMINGA, *map(str, arguments)], capture_output=True, text=True,
                              timeout=HANG_SECONDS, check=False)
        return SimpleNamespace(status=done.returncode, printed=done.stdout, said=done.stderr)

    def load(self, text, tls=None):
        """Reload the configuration, and return what `geminga reload` prints."""
        self.file.write_text(text + "\n" + (self.tls if tls is None else tls))
        return self.run("reload", "--data-dir", self.broker.data_dir)

    def holds(self, text, tls=None):
        """Reload a configuration that must take effect."""
        self.file.write_text(text + "\n" + (self.tls if tls is None else tls))
        [answer] = control_socket.ask(self.broker.data_dir, reload=True)
        assert not answer["error"]
        return "".join(f"{change}\n" for change in answer["changes"])


@pytest.fixture(scope="module")
def reloaded(tmp_path_factory):
    made = Reloaded(tmp_path_factory.mktemp("reload"))
    yield made
    made.broker.close()


@pytest.fixture
def reload(reloaded):
    yield reloaded
    reloaded.holds("")


def producer_answer(broker, **fields):
    with Peer(broker.service_url) as peer:
        return peer.ask(T.PRODUCER, **{"topic": unique_topic(), "producer_id": 1, "request_id": 1} | fields)


def test_all_keys_at_once_are_told_and_taken_back(reload):
    """Every process answers that it uses the new values, else the command would not return."""
    sections, before = {"": []}, replace(Config(), tls=TlsOptions(certificate="c", key="k"))
    changed = []
    for key in KEYS:
        section, _, name = key.rpartition(".")
        if section in ("tls", "authentication", "authentication.oidc", "authorization") or key in NEEDS_RESTART:
            continue      # keys of the first three sections need files or keys that fit; tests below change them
        wanted = other(key, value(before, key))
        changed.append(key)
        sections.setdefault(section, []).append(f"{name} = {json.dumps(wanted)}")
    text = "\n".join("\n".join([f"[{name}]"] * bool(name) + lines) for name, lines in sections.items())
    printed = reload.holds(text)
    assert [line.partition(":")[0] for line in printed.splitlines()] == changed
    assert "storage.retention_s: 0 -> 1" in printed
    assert reload.holds(text) == ""
    assert len(reload.holds("").splitlines()) == len(changed)


def test_what_needs_a_restart_stays_and_is_said(reload):
    printed = reload.holds('http_bind = "0.0.0.0"\nowners = 7\n[storage]\nretention_s = 5\n')
    assert "owners" not in printed      # the command line gave this value, which is stronger
    assert "http_bind: " in printed and "needs a restart" in printed and "stays" in printed
    assert "storage.retention_s: 0 -> 5" in printed
    assert reload.broker.service_url and request("GET", reload.broker.http_url + "/status.html")[0] == 200
    assert "needs a restart" in reload.broker.log()


@pytest.mark.parametrize(("text", "key"),
                         [("[storage]\nretention_s = -7", "storage.retention_s"), ("[storage", "geminga.toml"),
                                           ("[authentication]\nmethods = ['basic']\nusers = '{folder}/absent'",
                                            "authentication.users")])
def test_a_wrong_one_changes_nothing(reload, text, key):
    """One line names the key, as `geminga config check` does, and the exit status tells the failure."""
    reload.holds("[network]\nmax_message_size = 100000\n")
    wrong = text.format(folder=reload.folder)
    done = reload.load(f"[network]\nmax_message_size = 200000\n{wrong}")
    assert (done.status, len(done.said.splitlines())) == (2, 1)
    assert key in done.said and "stays in force" in done.said
    checked = reload.run("config", "check", "--config", reload.file)
    assert (checked.status, len(checked.said.splitlines())) == (2, 1)
    assert key in checked.said
    with Peer(reload.broker.service_url, b"") as peer:
        peer.say(CONNECT)
        assert peer.hear().connected.max_message_size == 100_000


def test_a_signal_does_the_same(reload):
    reload.file.write_text("[storage]\nretention_s = 77\n" + reload.tls)
    os.kill(reload.broker.pid, signal.SIGHUP)
    eventually(lambda: "storage.retention_s: 0 -> 77" in reload.broker.log())
    eventually(lambda: "the configuration was loaded: 1 keys" in reload.broker.log())


def test_whoever_is_started_later_has_it_too(reload):
    reload.holds("[storage]\nauto_create_topics = false\n[network]\nmax_message_size = 50000\n")
    for role in ("owner", "worker"):
        for index in range(2):
            reload.broker.wait_replaced(role, index, reload.broker.kill(role, index))
    eventually(lambda: producer_answer(reload.broker).type == T.ERROR)


def test_nobody_is_disturbed(reload):
    """Producers and consumers go on over a reload, on the connections that they have."""
    reload.holds("")
    client = pulsar.Client(reload.broker.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull))
    topic = unique_topic()
    consumer, producer = client.subscribe(topic, "s"), client.create_producer(topic)
    before = connections(reload)
    for number in range(3):
        reload.holds(f"[storage]\nretention_s = {number + 1}\nroll_over_bytes = {(10 + number) << 20}\n")
        producer.send(b"%d" % number)
        assert consumer.receive(HANG_MS).data() == b"%d" % number
    assert connections(reload) == before
    client.close()


def connections(reload):
    """Return how many connections clients have made so far."""
    lines = request("GET", reload.broker.http_url + "/metrics")[1].splitlines()
    return [line for line in lines if line.startswith("pulsar_broker_connection_created_total_count")]


# -- keys one by one

def test_topics_are_made_or_not(reload):
    assert producer_answer(reload.broker).type == T.PRODUCER_SUCCESS
    reload.holds("[storage]\nauto_create_topics = false\n")
    assert producer_answer(reload.broker).error.error == api.TopicNotFound
    reload.holds("[storage]\nauto_create_partitions = 3\n")
    topic = unique_topic()
    with Peer(reload.broker.service_url) as peer:
        assert peer.ask(T.PARTITIONED_METADATA, topic=topic, request_id=1).partitionMetadataResponse.partitions == 3


def test_topics_that_keep_nothing_may_be_used_or_not(reload):
    topic = unique_topic().replace("persistent", "non-persistent")
    assert producer_answer(reload.broker, topic=topic).type == T.PRODUCER_SUCCESS
    reload.holds("[storage]\nnon_persistent_topics = false\n")
    assert producer_answer(reload.broker, topic=topic + "2").error.error == api.NotAllowedError


def test_types_of_subscriptions(reload):
    reload.holds('[storage]\nsubscription_types = ["Shared"]\n')
    with Peer(reload.broker.service_url) as peer:
        assert peer.ask(T.SUBSCRIBE, topic=unique_topic(), subscription="s", subType=api.CommandSubscribe.Exclusive,
                        consumer_id=1, request_id=1).type == T.ERROR


def test_the_size_of_messages_also_on_connections_that_are_there(reload):
    """A connection that was told another bound before is closed."""
    topic = unique_topic()
    with Peer(reload.broker.service_url) as before:
        before.open_producer(topic)
        reload.holds("[network]\nmax_message_size = 10000\n")
        before.say(send(entry_of(message_metadata(), b"x" * 100_000)))
        with pytest.raises(Closed):
            before.hear()
    reload.holds("[network]\nmax_message_size = 20000000\n")
    with Peer(reload.broker.service_url) as after:
        after.open_producer(topic)
        after.say(send(entry_of(message_metadata(), b"x" * 19_000_000)))
        assert after.hear().type == T.SEND_RECEIPT


def test_the_time_between_pings(reload):
    with Peer(reload.broker.service_url) as peer:
        peer.answers_pings = False
        reload.holds("[network]\nkeep_alive_interval_ms = 200\n")
        assert peer.until_closed() == []


def test_where_clients_are_sent(reload):
    def lookup(**fields):
        with Peer(reload.broker.service_url) as peer:
            return peer.ask(T.LOOKUP, topic=unique_topic(), request_id=1, **fields).lookupTopicResponse.brokerServiceUrl

    assert lookup() == reload.broker.service_url
    reload.holds('[network]\nadvertised_address = "elsewhere"\n')
    assert urlsplit(lookup()).hostname == "elsewhere"
    reload.holds('[network]\nadvertised_listeners = ["inside:pulsar://within:1234"]\n')
    assert lookup(advertised_listener_name="inside") == "pulsar://within:1234"
    _, text = request("GET",
                      f"{reload.broker.http_url}/lookup/v2/topic/persistent/public/default/t?listenerName=inside")
    assert json.loads(text)["brokerUrl"] == "pulsar://within:1234"


def test_what_brokers_add_to_entries(reload):
    """Consumers that exist already get the new metadata."""
    topic = unique_topic()
    with Peer(reload.broker.service_url, b"") as peer:
        peer.say(command(T.CONNECT, client_version="t", protocol_version=21,
                         feature_flags={"supports_broker_entry_metadata": True}))
        peer.hear()
        peer.open_producer(topic)
        peer.subscribe(topic)
        peer.say(command(T.FLOW, consumer_id=1, messagePermits=10))
        sizes = []
        for number, text in enumerate(("", "[network]\nexpose_broker_entry_metadata = true\nbroker_entry_metadata = "
                                           "['index']\n")):
            reload.holds(text)
            peer.say(send(entry_of(message_metadata()), sequence_id=number))
            heard = {said.type: entry for said, entry in (peer.hear_frame(), peer.hear_frame())}
            sizes.append(heard[T.MESSAGE][:2])
    # an entry begins with its own magic, or with that of the broker's metadata
    assert sizes == [b"\x0e\x01", b"\x0e\x02"]
    with urllib.request.urlopen(
        f"{reload.broker.http_url}/admin/v2/{topic.replace('://', '/')}/examinemessage"
    ) as answer:
        assert answer.headers["X-Pulsar-Broker-Entry-METADATA-index"] == "1"      # the answer shows the second message
        assert answer.headers["X-Pulsar-Broker-Entry-METADATA-timestamp"] is None


def test_the_name_of_the_cluster_and_what_metrics_show(reload):
    topic = unique_topic()
    with Peer(reload.broker.service_url) as peer:
        peer.open_producer(topic)
        eventually(lambda: topic in request("GET", reload.broker.http_url + "/metrics")[1])
        reload.holds('cluster_name = "renamed"\n[metrics]\ntopics = false\n')
        text = request("GET", reload.broker.http_url + "/metrics")[1]
        assert topic not in text and 'cluster="renamed"' in text and 'cluster="standalone"' not in text


def test_policies_that_hold_where_nothing_is_set(reload):
    """Open topics use them too; policies set over REST, for the topic or for the broker, are stronger."""
    topic = unique_topic()
    path = f"{reload.broker.http_url}/admin/v2/{topic.replace('://', '/')}"
    with Peer(reload.broker.service_url) as peer:
        peer.open_producer(topic)
        reload.holds("[storage]\nmax_producers_per_topic = 1\n")
        assert producer_answer(reload.broker, topic=topic, producer_name="two").error.error == api.ProducerBusy
        configuration = f"{reload.broker.http_url}/admin/v2/brokers/configuration/maxProducersPerTopic"
        assert request("POST", configuration + "/5")[0] == 200
        reload.holds("[storage]\nmax_producers_per_topic = 1\nretention_s = 9\n")
        assert producer_answer(reload.broker, topic=topic, producer_name="two").type == T.PRODUCER_SUCCESS
        assert request("DELETE", configuration)[0] == 200
        assert producer_answer(reload.broker, topic=topic, producer_name="three").error.error == api.ProducerBusy
        assert request("POST", path + "/maxProducers", b"7")[0] < 300
        assert producer_answer(reload.broker, topic=topic, producer_name="four").type == T.PRODUCER_SUCCESS


def test_rates(reload):
    """The new rates hold for existing producers."""
    topic = unique_topic()
    client = pulsar.Client(reload.broker.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull))
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"x")
    reload.holds("[storage]\npublish_messages_per_topic = 10\n")
    began = time.monotonic()
    for _ in range(30):
        producer.send(b"x")
    assert time.monotonic() - began > 1
    client.close()


def test_the_certificate_and_who_must_show_one(reload):
    """New handshakes use them; existing connections go on."""
    folder = reload.folder / "other"
    second = Authority(folder)

    def serial(authority, *, shows=False):
        context = ssl.create_default_context(cafile=authority.trusted)
        # TLS 1.2, where a refusal comes within the handshake
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
        if shows:
            context.load_cert_chain(f"{authority.folder}/joe", f"{authority.folder}/joe-key")
        with connected(context, reload.broker.tls_url) as link:
            return link.getpeercert()["serialNumber"]

    def connected(context, url):
        where = urlsplit(url)
        return context.wrap_socket(socket.create_connection((where.hostname, where.port), 10),
                                   server_hostname="localhost")

    first = serial(reload.authority)
    tls = reload.tls.replace(f"{reload.folder}/", f"{folder}/")
    reload.holds("", tls)
    assert serial(second) != first
    with pytest.raises(ssl.SSLError):
        serial(reload.authority)
    reload.holds("", tls + 'client_certificates = "required"\n')
    with pytest.raises(OSError, match="handshake|certificate|closed|reset|EOF"):
        serial(second)
    assert serial(second, shows=True)
    reload.holds("", tls + 'versions = ["TLSv1.3"]\n')
    with pytest.raises(OSError, match="version|handshake|alert|closed|reset|EOF"):
        serial(second)
    reload.holds("", tls
                 + 'versions = ["TLSv1.2"]\nciphers = "ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-AES256-GCM-SHA384"\n')
    context = ssl.create_default_context(cafile=second.trusted)
    with connected(context, reload.broker.tls_url) as link:
        assert (link.version(), "AES256-GCM" in link.cipher()[0]) == ("TLSv1.2", True)
    with connected(context, reload.broker.https_url) as link:
        assert link.version() == "TLSv1.2"


def test_who_is_asked_and_what_they_may_do(reload):
    """Clients that never authenticated are closed, and users that were removed cannot connect."""
    from passlib.hash import bcrypt
    users = reload.folder / "users"
    users.write_text(f"joe:{bcrypt.using(rounds=4).hash('one')}\n")
    identity = f'[authentication]\nmethods = ["basic"]\nusers = "{users}"\n'

    def connect(said, **fields):
        with Peer(reload.broker.service_url, b"") as peer:
            peer.say(command(T.CONNECT, client_version="t", protocol_version=21, auth_method_name="basic",
                             auth_data=said, **fields))
            answer = peer.hear()
            if answer.type != T.CONNECTED:
                return answer.type
            return peer.ask(T.PRODUCER, topic=unique_topic(), producer_id=1, request_id=1).type

    with Peer(reload.broker.service_url) as stranger:
        stranger.open_producer(unique_topic())
        reload.holds(identity)
        with pytest.raises(Closed):
            stranger.hear()
    assert (connect(b"joe:one"), connect(b"joe:two")) == (T.PRODUCER_SUCCESS, T.ERROR)
    assert request("GET", reload.broker.http_url + "/admin/v2/clusters")[0] == 401
    assert request("GET", reload.broker.http_url + "/metrics")[0] == 200
    reload.holds(identity + "metrics = true\n[authorization]\nenabled = true\n")
    assert request("GET", reload.broker.http_url + "/metrics")[0] == 401
    assert connect(b"joe:one") == T.ERROR
    reload.holds(identity + '[authorization]\nenabled = true\nsuper_user_roles = ["joe"]\n')
    assert connect(b"joe:one") == T.PRODUCER_SUCCESS
    with Peer(reload.broker.service_url, b"") as joe:
        joe.say(command(T.CONNECT, client_version="t", protocol_version=21, auth_method_name="basic",
                        auth_data=b"joe:one"))
        joe.hear()
        joe.open_producer(unique_topic())
        reload.holds(identity + '[authorization]\nenabled = true\nsuper_user_roles = ["jim"]\n')
        assert joe.hear().type == T.CLOSE_PRODUCER      # this role has lost its right
    (reload.folder / "users2").write_text(f"jim:{bcrypt.using(rounds=4).hash('two')}\n")
    reload.holds(identity.replace("/users", "/users2"))
    assert (connect(b"joe:one"), connect(b"jim:two")) == (T.ERROR, T.PRODUCER_SUCCESS)
    reload.holds("")
    assert producer_answer(reload.broker).type == T.PRODUCER_SUCCESS


def test_processes_keep_to_a_core_or_do_not(reload):
    """All threads of running processes are moved."""
    cores = sorted(os.sched_getaffinity(0))
    rest = Rest(reload.broker.http_url)
    rest.publish(rest.topic(), "x")      # begins geminga-web
    for text, is_spread in (('affinity = "spread"\n', True), ("", False)):
        reload.holds(text)
        children = reload.broker.children()
        assert len(children) == 6      # with geminga-web
        for name, pid in children.items():
            is_pinned = is_spread and name not in ("geminga-admin", "geminga-web", "geminga-replica")
            on = {cores[int(name[-1]) % len(cores)]} if is_pinned else set(cores)
            assert all(os.sched_getaffinity(int(thread)) == on for thread in os.listdir(f"/proc/{pid}/task")), name


def test_a_process_that_cannot_take_it_is_replaced_by_one_that_does(reload):
    """Only the supervisor can read the file, as if it had been removed; its successors inherit what it read."""
    broker = reload.broker
    key = f"/proc/self/task/{broker.pid}/cmdline"
    rest = Rest(broker.http_url)
    rest.publish(rest.topic(), "x")      # begins geminga-web
    before = broker.children()
    reload.holds(f'[authentication]\nmethods = ["token"]\nsecret_keys = ["{key}"]\n')
    assert "cannot take the new configuration: authentication.secret_keys" in broker.log()
    assert {name for name, pid in broker.children().items() if before[name] != pid} == {
        "geminga-w0",
        "geminga-w1",
        "geminga-admin",
        "geminga-web",
    }
    shown = jwt.encode({"sub": "joe"}, Path(key.replace("self", str(broker.pid))).read_bytes(), "HS256")
    for said, kind in ((shown, T.CONNECTED), ("x", T.ERROR)):
        with Peer(broker.service_url, b"") as peer:
            peer.say(command(T.CONNECT, client_version="t", protocol_version=21, auth_method_name="token",
                             auth_data=said.encode()))
            assert peer.hear().type == kind


def test_issuers_of_tokens(reload):
    with issuers.running() as issuer:
        def asked() -> int:
            url = reload.broker.http_url + "/admin/v2/clusters"
            return request("GET", url, Authorization=f"Bearer {issuer.token().decode()}")[0]
        identity = '[authentication]\nmethods = ["token"]\n[authentication.oidc]\naudiences = ["pulsar"]\n'
        reload.holds(f'{identity}issuers = ["{issuer.url}"]\nrequire_https = false\n')
        assert asked() == 200
        reload.holds(f'{identity}issuers = ["https://id.example.com"]\n')
        assert asked() == 401
    reload.holds("")


def test_how_much_is_told_and_how(reload):
    reload.holds('[log]\nlevel = "debug"\nformat = "json"\n')
    before = len(reload.broker.log())
    producer_answer(reload.broker)
    eventually(lambda: '"level": "debug"' in reload.broker.log()[before:])


# -- the command

def test_show_says_where_each_value_comes_from(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMINGA_STORAGE_SYNC", "interval")
    (tmp_path / "key").write_bytes(b"a secret key of thirty-two bytes")
    (tmp_path / "c.toml").write_text(f'[authentication]\nmethods = ["token"]\nsecret_keys = ["{tmp_path}/key"]\n')
    done = subprocess.run([GEMINGA, "config", "show", "--config", tmp_path / "c.toml"], capture_output=True, text=True,
                          check=True)
    assert 'storage.sync = "interval"    # GEMINGA_STORAGE_SYNC' in done.stdout
    assert f'authentication.secret_keys = ["***"]    # {tmp_path}/c.toml:3' in done.stdout
    assert f"{tmp_path}/key" not in done.stdout
    assert "network.port = 6650    # default" in done.stdout
    assert len(done.stdout.splitlines()) == len(KEYS)


def test_check_prints_what_is_not_as_by_default(tmp_path):
    (tmp_path / "c.toml").write_text("[storage]\nretention_s = 5\nsync = 'group'\n")
    done = subprocess.run([GEMINGA, "config", "check", "--config", tmp_path / "c.toml"], capture_output=True, text=True,
                          check=True)
    assert done.stdout == f"storage.retention_s = 5    # {tmp_path}/c.toml:2\n{tmp_path}/c.toml: ok\n"


def test_reload_of_a_folder_that_nobody_serves(tmp_path):
    done = subprocess.run([GEMINGA, "reload", "--data-dir", tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)

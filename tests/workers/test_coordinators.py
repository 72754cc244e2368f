"""Transactions over the topics of two owners, through real sockets, while owners and the whole broker are killed."""
import itertools
import json
import subprocess

import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.runtime.routing import owner_of

from ..harness import HANG_SECONDS, Broker, eventually, unique_topic
from ..proto.client_frames import T, command, entry_of, message_metadata, send
from ..supervisor.sweep import rights
from ..supervisor.test_serve import GEMINGA
from .peer import Closed, Peer, error_of

pytestmark = pytest.mark.slow
OWNERS = 2
OWN_OPTIONS = "--workers", "1", "--owners", str(OWNERS)
LIFETIME_MS = 300_000
WAYS = pytest.mark.parametrize("action", [api.COMMIT, api.ABORT], ids=["commit", "abort"])


def topic_of(index):
    return next(name for name in (unique_topic("tc") for _ in itertools.count()) if owner_of(name, OWNERS) == index)


class Begun:
    """A transaction of one coordinator that has published a message to a topic of each owner."""

    def __init__(self, broker, coordinator):
        self.broker, self.topics = broker, [topic_of(index) for index in range(OWNERS)]
        with Peer(broker.service_url) as peer:
            assert peer.ask(T.TC_CLIENT_CONNECT_REQUEST, request_id=9, tc_id=coordinator).type \
                == T.TC_CLIENT_CONNECT_RESPONSE
            new = peer.ask(T.NEW_TXN, request_id=10, tc_id=coordinator, txn_ttl_millis=LIFETIME_MS).newTxnResponse
            assert not new.HasField("error") and new.txnid_most_bits == coordinator, new
            self.bits = {"txnid_most_bits": new.txnid_most_bits, "txnid_least_bits": new.txnid_least_bits}
            for number, topic in enumerate(self.topics, 1):
                peer.open_producer(topic, number)
            added = peer.ask(T.ADD_PARTITION_TO_TXN, request_id=11, partitions=self.topics, **self.bits)
            assert not added.addPartitionToTxnResponse.HasField("error"), added
            for number in (1, 2):
                entry = entry_of(message_metadata(sequence_id=1, **self.bits), b"in it")
                peer.say(send(entry, producer_id=number, sequence_id=1, **self.bits))
                assert peer.hear().type == T.SEND_RECEIPT

    def end(self, action):
        """Ask for the end until it is answered with success, as clients do whose connection breaks."""
        def ended():
            try:
                with Peer(self.broker.service_url) as peer:
                    answer = peer.ask(T.END_TXN, request_id=12, txn_action=action, **self.bits)
            except (Closed, ConnectionError):
                return False
            if answer.type != T.END_TXN_RESPONSE or answer.endTxnResponse.HasField("error"):
                assert error_of(answer) in (api.ServiceNotReady, api.TransactionCoordinatorNotFound), answer
                return False
            return True

        eventually(ended, what="the end of the transaction")

    def stored(self):
        """Return for each topic what a consumer gets before a message that is published now."""
        return [received(self.broker, topic) for topic in self.topics]


def received(broker, topic):
    def attempt():
        try:
            with Peer(broker.service_url) as peer:
                peer.open_producer(topic)
                peer.say(send(entry_of(message_metadata(sequence_id=2), b"last"), sequence_id=2))
                assert peer.hear().type == T.SEND_RECEIPT
                peer.subscribe(topic, unique_topic("sub"))
                peer.say(command(T.FLOW, consumer_id=1, messagePermits=100))
                found = []
                while not found or not found[-1].endswith(b"last"):
                    found.append(peer.hear_frame()[1])
                return [entry for entry in found if entry.endswith(b"in it")], True
        except (AssertionError, Closed, ConnectionError):      # its owner is being started again
            return None
    return len(eventually(attempt, what="messages of the topic")[0])


@WAYS
@pytest.mark.parametrize("coordinator", range(OWNERS))
def test_an_end_reaches_the_topics_of_both_owners(own, coordinator, action):
    begun = Begun(own, coordinator)
    begun.end(action)
    begun.end(action)
    assert begun.stored() == [action == api.COMMIT] * OWNERS


@WAYS
@pytest.mark.parametrize("killed", range(OWNERS), ids=["coordinator", "participant"])
def test_an_end_is_carried_out_whoever_is_killed_before(own, killed, action):
    begun = Begun(own, 0)
    pid = own.kill("owner", killed)
    begun.end(action)
    own.wait_replaced("owner", killed, pid)
    assert begun.stored() == [action == api.COMMIT] * OWNERS


def test_transactions_outlive_the_broker(own):
    begun = Begun(own, 1)
    own.kill_supervisor(30)
    own.start()
    begun.end(api.COMMIT)
    assert begun.stored() == [1] * OWNERS


# -- roles

KEY = b"a secret key of thirty-two bytes"
CONFIG = """
[authentication]
methods = ["token"]
secret_keys = ["{key}"]
[authorization]
enabled = true
super_user_roles = {supers}
"""


def configure(folder, *supers):
    (folder / "geminga.toml").write_text(CONFIG.format(key=folder / "key", supers=json.dumps(supers)))


@pytest.fixture
def guarded(tmp_path):
    """A broker that asks for tokens, and knows ops as a super user."""
    (tmp_path / "key").write_bytes(KEY)
    configure(tmp_path, "ops")
    made = Broker(tmp_path / "data", "--config", str(tmp_path / "geminga.toml"), "--workers", "1", "--owners", "1")
    try:
        yield made.start()
    finally:
        made.close()


def connected(broker, role):
    token = rights.Broker(broker.http_url, broker.service_url, KEY).token(role)
    peer = Peer(broker.service_url, command(T.CONNECT, client_version="test", protocol_version=21,
                                            auth_method_name="token", auth_data=token.encode()))
    assert peer.hear().type == T.CONNECTED
    return peer


def test_a_transaction_is_ended_by_its_role_and_by_super_users(guarded, tmp_path):
    """A reload decides anew who is a super user, also for connections that owners know already."""
    def new():
        made = ann.ask(T.NEW_TXN, request_id=1, tc_id=0, txn_ttl_millis=LIFETIME_MS).newTxnResponse
        return {"txnid_most_bits": made.txnid_most_bits, "txnid_least_bits": made.txnid_least_bits}

    def reload(*supers):
        configure(tmp_path, *supers)
        assert subprocess.run([GEMINGA, "reload", "--data-dir", str(guarded.data_dir)],
                              timeout=HANG_SECONDS).returncode == 0

    def ended(peer, bits):
        """The error of END_TXN, None if it was answered with success."""
        answer = peer.ask(T.END_TXN, request_id=2, txn_action=api.ABORT, **bits).endTxnResponse
        return answer.error if answer.HasField("error") else None

    with connected(guarded, "ann") as ann, connected(guarded, "bob") as bob, connected(guarded, "ops") as ops:
        bits = new()
        assert ended(bob, bits) == api.TransactionNotFound
        assert ended(ops, bits) is None
        assert ended(ann, new()) is None
        bits = new()
        reload("bob")
        assert ended(ops, bits) == api.TransactionNotFound
        assert ended(bob, bits) is None


def test_administration_names_the_role_that_began_a_transaction_until_its_coordinator_restarts(guarded):
    people = rights.Broker(guarded.http_url, guarded.service_url, KEY)

    def told():
        """Roles in the table and in the description; None while the owner is being started again."""
        status, text = people.ask("ops", "GET", "/ops/v1/transactions")
        rows = {row["transaction"]: row["role"] for row in json.loads(text)["rows"]} if status == 200 else {}
        status, text = people.ask("ops", "GET", f"/admin/v3/transactions/transactionMetadata/{path}")
        name = f"({path.replace('/', ',')})"
        return (rows[name], json.loads(text).get("owner")) if name in rows and status == 200 else None

    with connected(guarded, "ann") as ann:
        made = ann.ask(T.NEW_TXN, request_id=1, tc_id=0, txn_ttl_millis=LIFETIME_MS).newTxnResponse
        path = f"{made.txnid_most_bits}/{made.txnid_least_bits}"
        topic = topic_of(0)
        ann.ask(T.ADD_PARTITION_TO_TXN, request_id=2, partitions=[topic],
                txnid_most_bits=made.txnid_most_bits, txnid_least_bits=made.txnid_least_bits)
        assert told() == ("ann", "ann")
        pid = guarded.kill("owner", 0)
        guarded.wait_replaced("owner", 0, pid)
        assert eventually(told) == (None, None)

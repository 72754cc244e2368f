"""Clients that use one id for two things, over two owners and two workers.

Each topic keeps one owner, and a disconnect frees everything.  Beside each attack a witness publishes to the attacked
topic, and must receive every message for which it has a receipt.
"""
import itertools
import json
import struct

import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.runtime.routing import owner_of

from ..harness import Broker, eventually, request, unique_topic
from ..proto.client_frames import PING, T, command, entry_of, message_metadata, send
from ..supervisor.sweep import rights
from .peer import Bystander, Closed, Peer

OWNERS = 2
OWN_OPTIONS = "--workers", "2", "--owners", str(OWNERS)
MISSING = "persistent://public/no-such-namespace/topic"
KEY = b"a secret key of thirty-two bytes"
CONFIG = """
workers = 2
owners = 2
[authentication]
methods = ["token"]
secret_keys = ["{key}"]
[authorization]
enabled = true
super_user_roles = ["admin"]
"""


@pytest.fixture
def unharmed(own):
    """After the test no process has ended, clients are served as before, and nothing of the attackers is left."""
    before, bystander = own.children(), Bystander(own.service_url, unique_topic("bystander"))
    bystander.round()
    yield
    bystander.round()
    bystander.close()
    assert own.children() == before


def topic_of(index: int, domain: str = "persistent") -> str:
    """Return an unused topic of this owner."""
    return next(name for name in (unique_topic("id").replace("persistent", domain) for _ in itertools.count())
                if owner_of(name, OWNERS) == index)


def stats(broker, topic: str) -> dict:
    status, text = request("GET", f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/stats")
    return json.loads(text) if status == 200 else {}


class Witness:
    """A client that publishes to a topic, with a durable subscription of which it acknowledges nothing."""

    def __init__(self, broker, topic: str):
        self._broker, self._topic, self._receipted = broker, topic, []
        self._peer = Peer(broker.service_url)
        self._peer.open_producer(topic)
        self._peer.subscribe(topic, "witness")
        self.publish()

    @property
    def count(self) -> int:
        """Return the number of messages with a receipt."""
        return len(self._receipted)

    def close(self) -> None:
        self._peer.socket.close()

    def publish(self) -> None:
        for _ in range(20):
            number = len(self._receipted)
            self._peer.say(send(entry_of(message_metadata(sequence_id=number), struct.pack(">I", number)),
                                sequence_id=number))
            found = self._peer.hear().send_receipt
            self._receipted.append((found.message_id.ledgerId, found.message_id.entryId))

    def ends(self) -> None:
        """End the witness: every message with a receipt is where the receipt says, and nothing else is there."""
        self.publish()
        assert len(set(self._receipted)) == len(self._receipted)
        self._peer.say(command(T.FLOW, consumer_id=1, messagePermits=len(self._receipted) + 10))
        heard = [self._peer.hear_frame() for _ in self._receipted]
        assert [(one.message.message_id.ledgerId, one.message.message_id.entryId, struct.unpack(">I", entry[-4:])[0])
                for one, entry in heard] == [(*place, number) for number, place in enumerate(self._receipted)]
        assert (
            self._peer.ask(
                T.GET_LAST_MESSAGE_ID, consumer_id=1, request_id=90
            ).getLastMessageIdResponse.last_message_id.entryId
            == self._receipted[-1][1]
        )
        self.close()
        eventually(lambda: not stats(self._broker, self._topic)["publishers"], what="no publishers")
        with Peer(self._broker.service_url) as other:      # nobody else is in the way of exclusive access
            answer = other.ask(T.PRODUCER, topic=self._topic, producer_id=1, request_id=1,
                               producer_access_mode=api.Exclusive)
            assert answer.type == T.PRODUCER_SUCCESS, answer
            other.subscribe(self._topic, "witness")


@pytest.fixture
def witnesses(own):
    """witnesses(topic): a new one, whose connection is closed with the test."""
    made = []

    def witness(topic: str) -> Witness:
        made.append(Witness(own, topic))
        return made[-1]

    yield witness
    for one in made:
        one.close()


def producer(topic, request_id, producer_id=1, **fields):
    return command(T.PRODUCER, topic=topic, producer_id=producer_id, request_id=request_id, **fields)


def subscribe(topic, request_id, consumer_id=1, **fields):
    named = {"subscription": "attack", "subType": api.CommandSubscribe.Shared} | fields
    return command(T.SUBSCRIBE, topic=topic, consumer_id=consumer_id, request_id=request_id, **named)


def close_producer(request_id, producer_id=1):
    return command(T.CLOSE_PRODUCER, producer_id=producer_id, request_id=request_id)


def close_consumer(request_id, consumer_id=1):
    return command(T.CLOSE_CONSUMER, consumer_id=consumer_id, request_id=request_id)


def alternating(make, close, ours, theirs):
    """Return the commands that an attacker sends in one write."""
    refused = {"txn_enabled": True} if make is producer else {"subscription": ""}      # the owner refuses these
    return {
        "the first is refused": [make(ours, 1, **refused), make(theirs, 2)],
        "none is refused": [make(ours, 1), make(theirs, 2)],
        "the second is refused": [make(theirs, 1), make(ours, 2, **refused)],
        "closed in between": [make(ours, 1), close(2), make(theirs, 3)],
        "closed behind": [make(ours, 1), make(theirs, 2), close(3)],
        "again and again": [part for number in range(50) for part in (
            make(ours if number % 2 else theirs, 10 * number), make(theirs if number % 2 else ours, 10 * number),
            close(10 * number + 1))],
        "closed first": [close(1), make(ours, 1), make(theirs, 1), close(1), make(theirs, 1)]}


ORDERS = list(alternating(producer, close_producer, "", ""))


@pytest.mark.slow
@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("make, close", [(producer, close_producer), (subscribe, close_consumer)],
                         ids=["producer", "consumer"])
@pytest.mark.parametrize("owner", range(OWNERS), ids=["the same owner", "another owner"])
def test_two_commands_with_one_id_in_one_write(own, witnesses, make, close, order, owner):
    theirs, ours = topic_of(0), topic_of(owner)
    witness = witnesses(theirs)
    with Peer(own.service_url) as peer:
        peer.say(b"".join([*alternating(make, close, ours, theirs)[order], PING]))
        while peer.hear().type != T.PONG:
            pass
        peer.say(command(T.FLOW, consumer_id=1, messagePermits=1)
                 + command(T.GET_LAST_MESSAGE_ID, consumer_id=1, request_id=50))
        witness.publish()
        peer.say(PING)
    witness.ends()
    assert not stats(own, ours).get("publishers")
    assert not any(one["consumers"] for one in stats(own, ours).get("subscriptions", {}).values())


def consumed(peer: Peer, permits: int) -> list[tuple[api.MessageIdData, bytes]]:
    """Return (id, last bytes) of the messages that so many permits bring."""
    peer.say(command(T.FLOW, consumer_id=1, messagePermits=permits)
             + command(T.GET_LAST_MESSAGE_ID, consumer_id=1, request_id=70))
    found = []
    while True:
        heard, entry = peer.hear_frame()
        if heard.type == T.GET_LAST_MESSAGE_ID_RESPONSE:
            peer.say(PING)
        elif heard.type == T.PONG:
            return found
        elif heard.type == T.MESSAGE:
            found.append((heard.message.message_id, entry[-4:]))


def test_two_owners_never_write_one_partition(own, witnesses):
    """An id is refused, used for another owner's topic, and then used again, to get a producer of the wrong owner.

    Anything that such a producer stored would appear when each owner has put its journal in place.
    """
    theirs, ours = topic_of(0), topic_of(1)
    witness = witnesses(theirs)
    with Peer(own.service_url) as peer:
        peer.subscribe(theirs, "durable")
        place = consumed(peer, 1)[0][0]
        assert (
            peer.ask(T.ACK, consumer_id=1, ack_type=api.CommandAck.Individual, message_id=[place], request_id=9).type
            == T.ACK_RESPONSE
        )
    with Peer(own.service_url) as peer:
        peer.say(producer(ours, 1, txn_enabled=True) + producer(theirs, 2) + subscribe(ours, 3, subscription="")
                 + subscribe(theirs, 4))
        for _ in range(4):
            peer.hear()
        peer.say(producer(ours, 5) + subscribe(ours, 6))
        for _ in range(2):
            peer.hear()
        peer.say(b"".join([send(entry_of(message_metadata(sequence_id=number), b"attack"), sequence_id=number)
                           for number in range(30)]))
        for _ in range(30):
            peer.hear()
        witness.publish()
    with Peer(own.service_url) as other:      # this subscription is made at the topic's own owner
        other.subscribe(theirs, "attack")
    for owner in range(OWNERS):
        pid = own.kill("owner", owner)
        own.wait_replaced("owner", owner, pid)
    with Peer(own.service_url) as peer:
        peer.subscribe(theirs, "durable")
        assert [body for _, body in consumed(peer, 1_000)] == [struct.pack(">I", number)
                                                               for number in range(1, witness.count)]


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("make", [producer, subscribe])
def test_an_id_is_free_again_when_its_command_was_refused(own, make):
    """A second command with the id, in the same write, is served by its own owner."""
    theirs = topic_of(1)
    with Peer(own.service_url) as peer:
        peer.say(make(MISSING, 1))
        assert peer.hear().type == T.ERROR
        peer.say(make(theirs, 2))
        assert peer.hear().type in (T.PRODUCER_SUCCESS, T.SUCCESS)


@pytest.mark.usefixtures("unharmed")
def test_sends_behind_the_clients_own_close_end_its_connection(own, witnesses):
    witness = witnesses(topic := topic_of(0))
    with Peer(own.service_url) as peer:
        peer.open_producer(topic)
        peer.say(close_producer(2) + send(sequence_id=7) * 40)
        assert T.SEND_RECEIPT not in [heard.type for heard in peer.until_closed()]
    witness.ends()


@pytest.mark.usefixtures("unharmed")
def test_sends_behind_an_unload_are_ignored_and_taken_when_the_producer_is_back(own):
    topic = topic_of(0)
    with Peer(own.service_url) as peer:
        peer.open_producer(topic)
        assert request("PUT", f"{own.http_url}/admin/v2/{topic.replace('://', '/')}/unload")[0] == 204
        assert peer.hear().type == T.CLOSE_PRODUCER
        peer.say(send(sequence_id=1) + PING)
        assert peer.hear().type == T.PONG
        peer.open_producer(topic)
        peer.say(send(sequence_id=1))
        assert peer.hear().send_receipt.message_id.entryId == 0


@pytest.mark.slow
@pytest.mark.parametrize("make", [producer, subscribe])
def test_an_owner_that_ends_over_them_leaves_no_ghosts(own, make):
    """An owner is killed with the commands unanswered: each is made once, or refused, and the disconnect frees them."""
    mine, other = [topic_of(0) for _ in range(10)], topic_of(1)
    with Peer(own.service_url) as peer:
        pid = own.pause("owner", 0)
        peer.say(b"".join([*(make(topic, number, number) for number, topic in enumerate(mine)),
                           *(make(other, 100 + number, number) for number in range(10)),
                           *((close_producer if make is producer else close_consumer)(200 + number, number)
                             for number in range(5))]))
        refused = [peer.hear().error for _ in range(10)]
        assert [(one.request_id, one.error) for one in refused] == [(100 + number, api.ServiceNotReady)
                                                                    for number in range(10)]
        own.kill("owner", 0)
        own.wait_replaced("owner", 0, pid)
        heard = [peer.hear() for _ in range(10)]
        done = {one.producer_success.request_id if one.type == T.PRODUCER_SUCCESS else one.success.request_id
                for one in heard}
        assert done == {5, 6, 7, 8, 9, 200, 201, 202, 203, 204}
    for topic in (*mine, other):
        with Peer(own.service_url) as another:
            answer = another.ask(T.PRODUCER, topic=topic, producer_id=1, request_id=1,
                                 producer_access_mode=api.WaitForExclusive)
            while not answer.producer_success.producer_ready:
                answer = another.hear()


# -- rights

class Guarded:
    """A broker with authentication and authorization."""

    def __init__(self, folder):
        (folder / "key").write_bytes(KEY)
        (folder / "geminga.toml").write_text(CONFIG.format(key=folder / "key"))
        self.process = Broker(folder / "data", "--config", str(folder / "geminga.toml")).start()
        self._people = rights.Broker(self.process.http_url, self.process.service_url, KEY)

    def close(self):
        self.process.close()

    def connect(self, role: str) -> Peer:
        shown = {"auth_method_name": "token", "auth_data": self._people.token(role).encode()}
        found = Peer(self.process.service_url, command(T.CONNECT, client_version="test", protocol_version=21, **shown))
        assert found.hear().type == T.CONNECTED
        return found

    def make(self, topic: str) -> None:
        status, text = self._people.ask("admin", "PUT", f"/admin/v2/{topic.replace('://', '/')}")
        assert status == 204, (status, text)

    def permissions(self, method: str, topic: str, role: str) -> None:
        path = f"/admin/v2/{topic.replace('://', '/')}/permissions/{role}"
        status, text = self._people.ask("admin", method, path, ["produce", "consume"] if method == "POST" else None)
        assert status == 204, (status, text)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    made = Guarded(tmp_path_factory.mktemp("guarded"))
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("lost", ["theirs", "both"])
def test_a_role_that_has_lost_its_rights_is_out_when_the_answer_comes(guarded, order, lost):
    """It neither publishes nor receives any more, however it came to its producer and consumer."""
    before, theirs, ours = guarded.process.children(), topic_of(0), topic_of(1)
    for topic in (theirs, ours):
        guarded.make(topic)
        guarded.permissions("POST", topic, "mallory")
    with guarded.connect("admin") as witness, guarded.connect("mallory") as peer:
        witness.open_producer(theirs)
        witness.subscribe(theirs, "witness")
        peer.say(b"".join([*alternating(producer, close_producer, ours, theirs)[order],
                           *alternating(subscribe, close_consumer, ours, theirs)[order],
                           producer(theirs, 900, 9), subscribe(theirs, 901, 9),
                           command(T.FLOW, consumer_id=9, messagePermits=100)]))
        for topic in (theirs, ours) if lost == "both" else (theirs,):
            guarded.permissions("DELETE", topic, "mallory")
        for number in (1, 9):
            peer.say(command(T.FLOW, consumer_id=number, messagePermits=100))
        witness.say(send(entry_of(message_metadata(sequence_id=1), b"secret"), sequence_id=1))
        assert witness.hear().type == T.SEND_RECEIPT
        with guarded.connect("mallory") as other:
            for make, request_id in ((producer, 1), (subscribe, 2)):
                other.say(make(theirs, request_id))
                assert other.hear().error.error == api.AuthorizationError
        peer.say(PING)
        secrets = []
        while (heard := peer.hear_frame())[0].type != T.PONG:
            secrets += [entry for said, entry in [heard] if said.type == T.MESSAGE]
        assert secrets == []
        # a SEND for a producer that the broker has closed is ignored; for an unknown one it ends the connection
        for number in (9, 1):
            peer.say(send(entry_of(message_metadata(sequence_id=5), b"forged"), producer_id=number, sequence_id=5))
        peer.say(PING)
        try:
            while (said := peer.hear()).type != T.PONG:
                assert said.type not in (T.MESSAGE,) and (said.type != T.SEND_RECEIPT
                                                          or said.send_receipt.producer_id != 9)
        except Closed:
            pass
        witness.say(send(entry_of(message_metadata(sequence_id=2), b"last"), sequence_id=2))
        assert witness.hear().type == T.SEND_RECEIPT
        witness.say(command(T.FLOW, consumer_id=1, messagePermits=100))
        assert [witness.hear_frame()[1][-6:] for _ in range(2)] == [
            b"secret",
            entry_of(message_metadata(sequence_id=2), b"last")[-6:],
        ]
    assert guarded.process.children() == before

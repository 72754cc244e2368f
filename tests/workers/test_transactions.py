"""Transactions of clients in a worker whose owners the test plays: what coordinators and consumers' owners are sent,
and what clients are answered.
"""
from types import SimpleNamespace

import numpy as np
import pytest
import zmq

from geminga.proto import envelope, names, responses, sends
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.acks import WORDS_MAX
from geminga.workers.clients import pending_requests
from geminga.workers.owners import links

from ..proto.client_frames import T, command, entry_of, field_of, message_metadata, send
from .played import OWNERS, PlayedRights, PlayedWorker
from .test_client import CONSUMER, PRODUCER, open_on

LARGEST = 2**64 - 1
FIRST = {"txnid_most_bits": 1, "txnid_least_bits": 700}
ID = names.transaction(1, 700)
NONE = ({}, {"txnid_most_bits": 1}, {"txnid_most_bits": 128, "txnid_least_bits": 1}, {"txnid_least_bits": 2**56})
ASKED = {      # commands to a coordinator, which all name coordinator 1
    T.NEW_TXN: {"tc_id": 1, "txn_ttl_millis": 5_000},
    T.ADD_PARTITION_TO_TXN: FIRST | {"partitions": ["persistent://public/default/t"]},
    T.ADD_SUBSCRIPTION_TO_TXN: FIRST | {"subscription": [api.Subscription(topic="t", subscription="s")]},
    T.END_TXN: FIRST | {"txn_action": api.COMMIT},
}
asked = pytest.mark.parametrize("kind", ASKED, ids=T.Name)
ASSIGN = "persistent://pulsar/system/transaction_coordinator_assign"


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Make a worker with options of its own."""
    found = []

    def make(**options):
        (tmp_path / str(len(found))).mkdir()
        found.append(PlayedWorker(tmp_path / str(len(found)), monkeypatch, **options))
        return found[-1]

    yield make
    for worker in found:
        worker.close()


@pytest.fixture
def worker(made):
    return made()


@pytest.fixture
def client(worker):
    return worker.client()


def ask(kind, request_id=7, **fields):
    return command(kind, request_id=request_id, **ASKED[kind] | fields)


def ack(*entries, request_id=7, consumer_id=1, of=FIRST, **fields):
    more = {} if request_id is None else {"request_id": request_id}
    ids = [entry if isinstance(entry, api.MessageIdData) else api.MessageIdData(ledgerId=3, entryId=entry)
           for entry in entries]
    return command(T.ACK, consumer_id=consumer_id, ack_type=api.CommandAck.Individual, message_id=ids, **more | of,
                   **fields)


def answer(client):
    """Return (type's name, body) of the one answer that has come."""
    [heard] = client.hear()
    return T.Name(heard.type), getattr(heard, field_of(heard.type))


def refusal(client):
    """Return (type's name, request id, most bits, least bits, error) of the one answer that has come."""
    name, body = answer(client)
    assert body.message
    return name, body.request_id, body.txnid_most_bits, body.txnid_least_bits, body.error


def bits(kind):
    return (1, 0) if kind == T.NEW_TXN else (1, 700)


# -- coordinators

def test_every_owner_is_a_coordinator(worker, client):
    """A client that connects to a coordinator must not fail because its owner is just being restarted."""
    worker.owners[1].gone()
    for coordinator in (0, 1):
        client.say(command(T.TC_CLIENT_CONNECT_REQUEST, request_id=7, tc_id=coordinator))
        name, body = answer(client)
        assert (name, body.request_id, body.HasField("error")) == ("TC_CLIENT_CONNECT_RESPONSE", 7, False)
    for coordinator in (2, LARGEST):
        client.say(command(T.TC_CLIENT_CONNECT_REQUEST, request_id=7, tc_id=coordinator))
        name, body = answer(client)
        assert (name, body.request_id, body.error) == (
            "TC_CLIENT_CONNECT_RESPONSE", 7, api.TransactionCoordinatorNotFound)


@asked
def test_a_command_goes_to_its_coordinator_and_the_answer_back(worker, client, kind):
    client.say(ask(kind))
    [heard] = worker.owners[1].commands()
    assert (heard.type, getattr(heard, field_of(kind)).request_id) == (kind, 7)
    assert worker.owners[0].commands() == [] and len(client.client.requests) == 1
    frame = {T.NEW_TXN: responses.new_transaction, T.ADD_PARTITION_TO_TXN: responses.added_partition,
             T.ADD_SUBSCRIPTION_TO_TXN: responses.added_subscription, T.END_TXN: responses.ended_transaction}[kind]
    worker.owners[1].replies(client, frame(7, 1, 700), request_id=7)
    name, body = answer(client)
    assert (name, body.txnid_most_bits, body.txnid_least_bits) == (f"{T.Name(kind)}_RESPONSE", 1, 700)
    assert len(client.client.requests) == 0 and not client.client.requests._ids


@asked
@pytest.mark.parametrize("most", [0, 2, 3, 127])
def test_old_transactions_have_an_owner_after_the_number_of_owners_has_changed(worker, client, kind, most):
    if kind == T.NEW_TXN:      # but none is begun there: clients would not find the answer
        client.say(ask(kind, tc_id=2 + most))
        assert refusal(client) == ("NEW_TXN_RESPONSE", 7, 2 + most, 0, api.TransactionCoordinatorNotFound)
    else:
        client.say(ask(kind, txnid_most_bits=most))
        assert [one.type for one in worker.owners[most % OWNERS].commands()] == [kind]
    assert [owner.commands() for owner in worker.owners] == [[], []]


@pytest.mark.parametrize("kind", [T.ADD_PARTITION_TO_TXN, T.ADD_SUBSCRIPTION_TO_TXN, T.END_TXN], ids=T.Name)
@pytest.mark.parametrize("of", NONE, ids=str)
def test_a_transaction_that_nobody_can_have_begun_is_not_found(worker, client, kind, of):
    client.say(ask(kind, txnid_most_bits=of.get("txnid_most_bits", 0), txnid_least_bits=of.get("txnid_least_bits", 0)))
    assert refusal(client) == (f"{T.Name(kind)}_RESPONSE", 7, of.get("txnid_most_bits", 0),
                               of.get("txnid_least_bits", 0), api.TransactionNotFound)
    assert [owner.heard() for owner in worker.owners] == [[], []]


@asked
def test_clients_try_again_while_a_coordinator_is_restarted(worker, client, kind):
    worker.owners[1].gone()
    client.say(ask(kind))
    assert refusal(client) == (f"{T.Name(kind)}_RESPONSE", 7, *bits(kind), api.TransactionCoordinatorNotFound)
    worker.owners[1].up()
    client.say(ask(kind, 8))
    assert [one.type for one in worker.owners[1].commands()] == [kind]


@asked
def test_clients_try_again_when_a_coordinator_ends_before_its_answer(worker, client, kind):
    client.say(ask(kind))
    worker.owners[1].gone()
    assert refusal(client) == (f"{T.Name(kind)}_RESPONSE", 7, *bits(kind), api.TransactionCoordinatorNotFound)
    assert len(client.client.requests) == 0


@asked
def test_commands_without_answers_are_bounded(worker, client, monkeypatch, kind):
    monkeypatch.setattr(pending_requests, "_PENDING_MAX", 1)
    client.say(ask(kind, 6), ask(kind))
    assert refusal(client) == (f"{T.Name(kind)}_RESPONSE", 7, *bits(kind), api.TooManyRequests)
    assert len(worker.owners[1].commands()) == 1


def test_an_end_that_is_neither_commit_nor_abort_breaks_the_protocol(worker, client):
    client.say(command(T.END_TXN, request_id=7, **FIRST))
    assert client.transport.is_closed and worker.owners[1].commands() == []


@pytest.mark.parametrize("kind", [T.END_TXN_ON_PARTITION, T.END_TXN_ON_SUBSCRIPTION], ids=T.Name)
def test_clients_do_not_end_parts_of_transactions(worker, client, kind):
    client.say(command(kind, request_id=7, txn_action=api.COMMIT, **FIRST))
    assert refusal(client) == (f"{T.Name(kind)}_RESPONSE", 7, 1, 700, api.NotAllowedError)
    assert [owner.heard() for owner in worker.owners] == [[], []]


def test_the_type_of_a_command_says_which_field_counts(worker, client):
    """Fields of other commands that the client has filled in are ignored."""
    both = api.BaseCommand(type=T.NEW_TXN, newTxn=api.CommandNewTxn(request_id=7, tc_id=99), ping=api.CommandPing(),
                           endTxn=api.CommandEndTxn(request_id=8))
    data = both.SerializeToString()
    client.say((4 + len(data)).to_bytes(4, "big") + len(data).to_bytes(4, "big") + data)
    assert refusal(client) == ("NEW_TXN_RESPONSE", 7, 99, 0, api.TransactionCoordinatorNotFound)


# -- messages

def sent(sequence_id, of=FIRST):
    return send(entry_of(message_metadata(sequence_id=sequence_id, **of)), sequence_id=sequence_id, **of)


def test_one_send_has_its_transaction_in_its_row(worker, client):
    open_on(worker, client, PRODUCER)
    client.say(sent(5), sent(6, {}))
    (kind, producer, connection, row, _), plain = worker.owners[0].heard()
    assert (kind, producer, connection, plain[0]) == ("send in a transaction", 10, client.number, "send")
    found = np.array([row], sends.SEND_ROW)[0]
    assert (found["message_index"], found["flags"] & sends.IN_TRANSACTION) == (ID, sends.IN_TRANSACTION)


def test_a_run_of_sends_has_its_transaction_in_its_rows(worker, client):
    open_on(worker, client, PRODUCER)
    client.say(*(sent(1_000 + number) for number in range(100)), *(sent(2_000 + number, {}) for number in range(100)))
    heard = worker.owners[0].heard("sends in transactions", "sends")
    assert [kind for kind, _, _ in heard] == ["sends in transactions", "sends"]
    (_, rows, _), (_, plain, _) = heard
    assert set(rows["message_index"].tolist()) == {ID} and (rows["flags"] & sends.IN_TRANSACTION).all()
    assert set(rows["producer"].tolist()) == {10} and len(rows) > 32
    assert not plain["message_index"].any() and not (plain["flags"] & sends.IN_TRANSACTION).any()


def test_an_envelope_keeps_the_order_of_sends_with_and_without_transactions(tmp_path, monkeypatch):
    """Sections say whether any of their SENDs is in a transaction; a section without one costs its owner no look."""
    sealed = []
    monkeypatch.setattr(links, "zmq_frames", SimpleNamespace(send=lambda _, frames: sealed.append(frames)))
    with zmq.Context() as context:
        link = links.OwnerLink(context, tmp_path, 1, 1)

        def rows(sequence_id, **of):
            said = api.CommandSend(producer_id=1, sequence_id=sequence_id, **of)
            return sends.read_one(said, entry_of(message_metadata()))

        many = np.array([rows(3), rows(4)], sends.SEND_ROW)
        link.send(10, 1, rows(1), b"a")
        link.send_in_transaction(10, 1, rows(2, **FIRST), b"bb")
        link.sends(many, b"ccdd")
        link.send(10, 1, rows(5), b"e")
        link.command(1, 21, b"")
        link.sends(np.array([rows(6, **FIRST)], sends.SEND_ROW), b"f", envelope.SENDS_IN_TRANSACTIONS)
        link.send_in_transaction(10, 1, rows(7, **FIRST), b"g")
        link.flush()
        link.send(10, 1, rows(8), b"h")
        link.flush()
        link.close()
    some, plain, mixed = envelope.SENDS_IN_TRANSACTIONS, envelope.SENDS, envelope.COMMANDS
    found = [envelope.unseal(frames)[1] for frames in sealed]
    assert [[(kind, bytes(data)) for kind, _, data in sections] for sections in found] == [
        [(some, b"abb"), (plain, b"ccdd"), (plain, b"e"), (mixed, b""), (some, b"f"), (some, b"g")], [(plain, b"h")]]
    assert found[0][0][1]["message_index"].tolist() == [0, ID]
    assert found[0][0][1]["offset"].tolist() == [0, 1]


@pytest.mark.parametrize("of", NONE[1:], ids=str)
def test_a_send_in_a_transaction_that_nobody_can_have_begun_is_refused(worker, client, of):
    """With NotAllowedError, at which clients give the message up; the connection and what follows go on."""
    open_on(worker, client, PRODUCER)
    client.say(sent(5, of), sent(6, {}))
    [heard] = client.hear()
    assert (heard.send_error.sequence_id, heard.send_error.error) == (5, api.NotAllowedError)
    assert [one[0] for one in worker.owners[0].heard()] == ["send"]


# -- acknowledgements

def test_an_ack_goes_to_the_owner_of_its_consumer_behind_what_came_before(worker, client):
    open_on(worker, client, CONSUMER)
    client.say(ack(1, of={}), command(T.FLOW, consumer_id=1, messagePermits=5), ack(4, 5), ack(6, of={}))
    heard = worker.owners[0].heard()
    assert [one[0] for one in heard if one[:3:2] != ("command", envelope.INTRODUCED)] == [
        "acks", "flow", "command", "acks"]
    [said] = [api.BaseCommand.FromString(one[3]).ack for one in heard
              if one[0] == "command" and one[2] == envelope.COMMAND]
    assert (said.txnid_most_bits, said.txnid_least_bits, [one.entryId for one in said.message_id]) == (1, 700, [4, 5])
    worker.owners[0].replies(client, responses.ack_response(1, 7), request_id=7)
    assert client.told() == [("ACK_RESPONSE", 7, api.UnknownError)] and len(client.client.requests) == 0


def test_an_ack_of_many_messages_in_a_transaction_is_no_plain_one(worker, client):
    open_on(worker, client, CONSUMER)
    client.say(ack(*range(500), request_id=None))
    [heard] = worker.owners[0].commands()
    assert len(heard.ack.message_id) == 500 and len(client.client.requests) == 0


def test_an_ack_set_is_no_longer_than_a_batch_can_be(worker, client):
    open_on(worker, client, CONSUMER)
    client.say(ack(api.MessageIdData(ledgerId=3, entryId=4, ack_set=[5] * (WORDS_MAX + 1))))
    [heard] = worker.owners[0].commands()
    assert list(heard.ack.message_id[0].ack_set) == [5] * WORDS_MAX


@pytest.mark.parametrize("of", NONE[1:], ids=str)
def test_an_ack_in_a_transaction_that_nobody_can_have_begun_is_refused(worker, client, of):
    open_on(worker, client, CONSUMER)
    client.say(ack(4, of=of))
    assert client.told() == [("ACK_RESPONSE", 7, api.TransactionNotFound)]
    client.say(ack(4, of=of, request_id=None), ack(4, consumer_id=2))      # no answer is asked for; nobody's consumer
    assert client.told() == [("ACK_RESPONSE", 7, api.ConsumerNotFound)] and worker.owners[0].heard() == []


def test_an_ack_is_refused_when_its_owner_ends_before_the_answer(worker, client):
    open_on(worker, client, CONSUMER)
    client.say(ack(4), ack(5, request_id=None))
    worker.owners[0].gone()
    assert ("ACK_RESPONSE", 7, api.ServiceNotReady) in client.told()


def test_acks_without_answers_are_bounded(worker, client, monkeypatch):
    monkeypatch.setattr(pending_requests, "_PENDING_MAX", 1)
    open_on(worker, client, CONSUMER)
    client.say(ack(4, request_id=6), ack(5))
    assert client.told() == [("ACK_RESPONSE", 7, api.TooManyRequests)]
    assert len(worker.owners[0].commands()) == 1


# -- discovery

def metadata(topic):
    return command(T.PARTITIONED_METADATA, topic=topic, request_id=7)


def lookup(topic):
    return command(T.LOOKUP, topic=topic, request_id=7)


def test_clients_find_as_many_coordinators_as_there_are_owners(worker, client):
    client.say(metadata(ASSIGN))
    assert answer(client)[1].partitions == OWNERS
    client.say(metadata(ASSIGN + "-partition-0"))
    assert answer(client)[1].partitions == 0
    client.say(lookup(worker.topic(0)))
    _, expected = answer(client)
    for topic in (ASSIGN, ASSIGN + "-partition-0", ASSIGN + "-partition-1"):
        client.say(lookup(topic))
        assert answer(client)[1] == expected and expected.brokerServiceUrl


def test_no_right_is_needed_to_find_coordinators(made):
    rights = PlayedRights()
    rights.allows = lambda *_: False
    worker = made(rights=rights)
    client = worker.client()
    client.say(metadata(ASSIGN), lookup(ASSIGN + "-partition-1"), ask(T.NEW_TXN))
    found, place = client.hear()
    assert found.partitionMetadataResponse.partitions == OWNERS
    assert place.lookupTopicResponse.response == api.CommandLookupTopicResponse.Connect
    assert [one.type for one in worker.owners[1].commands()] == [T.NEW_TXN]
    for said in (lookup("persistent://public/default/t"), command(T.GET_SCHEMA, topic=ASSIGN, request_id=7),
                 command(T.PRODUCER, topic=ASSIGN, producer_id=1, request_id=7)):
        client.say(said)
        body = answer(client)[1]
        assert api.AuthorizationError in (getattr(body, "error", 0), getattr(body, "error_code", 0))


# -- switched off

def test_where_transactions_are_off_everything_of_them_is_refused(made):
    worker = made(transactions=False)
    worker.worker.directory.configure(worker.worker.directory.addresses, worker.storage(transactions=False))
    client = worker.client()
    for kind in ASKED:
        for fields in ({}, {"tc_id": 99} if kind == T.NEW_TXN else {"txnid_least_bits": 0}):
            client.say(ask(kind, **fields))
            assert client.told() == [("ERROR", 7, api.NotAllowedError)]
    client.say(command(T.TC_CLIENT_CONNECT_REQUEST, request_id=7, tc_id=0))
    assert client.told() == [("ERROR", 7, api.NotAllowedError)]
    client.say(metadata(ASSIGN))
    assert answer(client)[1].partitions == 0
    open_on(worker, client, CONSUMER)
    client.say(ack(4))
    assert client.told() == [("ACK_RESPONSE", 7, api.NotAllowedError)]
    client.say(ack(4, request_id=None))
    assert client.told() == []
    open_on(worker, client, PRODUCER)
    client.say(*(sent(number) for number in range(100)), sent(500, {}))
    assert [(heard.type, heard.send_error.sequence_id, heard.send_error.error) for heard in client.hear()] == [
        (T.SEND_ERROR, number, api.NotAllowedError) for number in range(100)]
    assert [one[0] for one in worker.owners[0].heard()] == ["send"]

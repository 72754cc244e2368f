"""Administration of transactions, and their metrics, while a client uses transactions on a broker with two owners."""
import json

import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.runtime.routing import owner_of
from geminga.supervisor import main

from ..harness import Broker, eventually, request
from ..proto.client_frames import T, command, entry_of, message_metadata, send
from ..workers.peer import Peer

pytestmark = pytest.mark.slow
BASE, SUBSCRIPTION = "/admin/v3/transactions", "sub"
OWNERS = 2
OWN_OPTIONS = "--owners", str(OWNERS), "--workers", "1"
LIFETIME_MS = 600_000


@pytest.fixture
def peer(own):
    with Peer(own.service_url) as made:
        yield made


class Get:
    """Requests to a broker's administration of transactions."""

    def __init__(self, broker):
        self.broker = broker

    def __call__(self, path):
        status, text = request("GET", f"{self.broker.http_url}{BASE}/{path}")
        assert status == 200, (path, status, text)
        return json.loads(text)

    def status(self, path, method="GET", body=None):
        status, text = request(method, f"{self.broker.http_url}{BASE}/{path}", body)
        assert status < 400 or json.loads(text)["reason"]
        return status


@pytest.fixture
def get(own):
    return Get(own)


def begin(peer, coordinator, lifetime_ms=LIFETIME_MS):
    """Begin a transaction; return the fields that name it in commands, and its path."""
    answer = peer.ask(T.NEW_TXN, request_id=9, txn_ttl_millis=lifetime_ms, tc_id=coordinator).newTxnResponse
    assert not answer.HasField("error"), answer
    bits = answer.txnid_most_bits, answer.txnid_least_bits
    assert bits[0] == coordinator
    return {"txnid_most_bits": bits[0], "txnid_least_bits": bits[1]}, "{}/{}".format(*bits)


def add(peer, its, topic, subscription=None):
    if subscription is None:
        answer = peer.ask(T.ADD_PARTITION_TO_TXN, request_id=9, partitions=[topic], **its)
        assert not answer.addPartitionToTxnResponse.HasField("error"), answer
    else:
        wanted = [api.Subscription(topic=topic, subscription=subscription)]
        answer = peer.ask(T.ADD_SUBSCRIPTION_TO_TXN, request_id=9, subscription=wanted, **its)
        assert not answer.addSubscriptionToTxnResponse.HasField("error"), answer


def end(peer, its, action=api.COMMIT):
    answer = peer.ask(T.END_TXN, request_id=9, txn_action=action, **its).endTxnResponse
    assert not answer.HasField("error"), answer


def publish(peer, sequence_id=0, **its):
    """Publish a message on producer 1; return its message id."""
    peer.say(send(entry_of(message_metadata(**its), b"x"), producer_id=1, sequence_id=sequence_id, num_messages=1,
                  **its))
    return peer.hear().send_receipt.message_id


def begin_with_message(peer, coordinator, topic):
    """Begin a transaction, and publish a message in it on producer 1, a new one; return the same as `begin`."""
    peer.open_producer(topic)
    its, path = begin(peer, coordinator)
    add(peer, its, topic)
    publish(peer, **its)
    return its, path


def acknowledge(peer, its, message_id, kind=api.CommandAck.Individual):
    answer = peer.ask(T.ACK, request_id=9, consumer_id=1, ack_type=kind, message_id=[message_id], **its)
    assert not answer.ackResponse.HasField("error"), answer


def text(message_id):
    return f"{message_id.ledgerId}:{message_id.entryId}"


def topic_of(owner, hint):
    """Return a topic that belongs to the owner with this index."""
    topics = (f"persistent://public/default/{hint}-{number}" for number in range(1_000))
    return next(topic for topic in topics if owner_of(topic, OWNERS) == owner)


def short(topic):
    return topic.partition("://")[2]


def test_every_owner_is_a_coordinator(get, own):
    assert get("coordinators") == [{"id": number, "brokerServiceUrl": own.service_url} for number in range(OWNERS)]
    told = get("coordinatorStats")
    assert [told[number]["state"] for number in ("0", "1")] == ["Ready", "Ready"] and len(told) == 2
    assert get("coordinatorStats?coordinatorId=1").keys() == told["1"].keys()
    assert get.status("coordinatorStats?coordinatorId=2") == 404
    assert get.status("slowTransactions/1?coordinatorId=2") == 404
    assert get.status("coordinatorInternalStats/2") == 404


def test_figures_of_a_coordinator_follow_its_transactions(get, peer):
    before = get("coordinatorStats?coordinatorId=1")["ongoingTxnSize"]
    first, _ = begin(peer, 1)
    second, _ = begin(peer, 1)
    told = get("coordinatorStats?coordinatorId=1")
    assert (told["ongoingTxnSize"], told["leastSigBits"]) == (before + 2, second["txnid_least_bits"])
    assert told["lowWaterMark"] < first["txnid_least_bits"]
    end(peer, first)
    end(peer, second, api.ABORT)
    assert get("coordinatorStats?coordinatorId=1")["ongoingTxnSize"] == before


@pytest.mark.parametrize("owner", range(OWNERS))
def test_a_transaction_is_described_with_what_it_has_done(get, peer, owner):
    """The coordinator is that of owner 0; the topic belongs to each owner in turn."""
    topic = topic_of(owner, "described")
    peer.open_producer(topic)
    peer.subscribe(topic, SUBSCRIPTION)
    plain = publish(peer)
    its, path = begin(peer, 0)
    told = get(f"transactionMetadata/{path}")
    assert told.pop("openTimestamp") > 0
    assert told == {"txnId": f"({path.replace('/', ',')})", "status": "OPEN", "timeoutAt": LIFETIME_MS,
                    "producedPartitions": {}, "ackedPartitions": {}}
    add(peer, its, topic, SUBSCRIPTION)
    told = get(f"transactionMetadata/{path}")
    assert (told["producedPartitions"], told["ackedPartitions"]) == ({}, {topic: {SUBSCRIPTION: {}}})
    add(peer, its, topic)
    assert get(f"transactionInBufferStats/{short(topic)}/{path}") == {"aborted": False}
    first = publish(peer, 1, **its)
    publish(peer, 2, **its)
    acknowledge(peer, its, plain, api.CommandAck.Cumulative)
    buffer, pending = {"startPosition": text(first), "aborted": False}, {"cumulativeAckPosition": text(plain)}
    told = get(f"transactionMetadata/{path}")
    assert (told["producedPartitions"], told["ackedPartitions"]) == ({topic: buffer}, {topic: {SUBSCRIPTION: pending}})
    assert get(f"transactionInBufferStats/{short(topic)}/{path}") == buffer
    assert get(f"transactionInPendingAckStats/{short(topic)}/{SUBSCRIPTION}/{path}") == pending
    told = get(f"transactionBufferStats/{short(topic)}")
    assert (told["state"], told["maxReadPosition"], told["ongoingTxnSize"]) == ("Ready", text(plain), 1)
    assert "lowWaterMarks" not in told
    marks = get(f"transactionBufferStats/{short(topic)}?lowWaterMarks=true")["lowWaterMarks"]
    assert marks["0"] == get("coordinatorStats?coordinatorId=0")["lowWaterMark"] < int(path.split("/")[1])
    assert get(f"pendingAckStats/{short(topic)}/{SUBSCRIPTION}")["ongoingTxnSize"] == 1
    end(peer, its, api.ABORT)
    assert get.status(f"transactionMetadata/{path}") == 404
    assert get(f"transactionInBufferStats/{short(topic)}/{path}") == {"aborted": True}
    told = get(f"transactionBufferStats/{short(topic)}")
    assert (told["ongoingTxnSize"], told["totalAbortedTransactions"]) == (0, 1)
    assert get(f"pendingAckStats/{short(topic)}/{SUBSCRIPTION}")["state"] == "None"


def test_a_committed_transaction_was_not_aborted(get, peer):
    topic = topic_of(1, "committed")
    its, path = begin_with_message(peer, 0, topic)
    end(peer, its)
    assert get(f"transactionInBufferStats/{short(topic)}/{path}") == {"aborted": False}


def test_topics_and_subscriptions_without_transactions_say_so(get, peer):
    topic = topic_of(0, "plain")
    peer.open_producer(topic)
    assert get(f"transactionBufferStats/{short(topic)}")["state"] == "NoSnapshot"
    assert get.status(f"pendingAckStats/{short(topic)}/none") == 404
    assert get.status(f"transactionInPendingAckStats/{short(topic)}/none/0/1") == 404
    assert get.status("transactionBufferStats/public/default/there-is-none") == 404
    assert get.status("transactionBufferInternalStats/public/default/there-is-none") == 404
    assert get.status(f"pendingAckInternalStats/{short(topic)}/none") == 404


@pytest.mark.parametrize("owner", range(OWNERS))
def test_the_journals_are_described_as_the_logs_of_transactions(get, own, peer, owner):
    """Segments are ledgers, and records are entries; a transaction makes some."""
    topic = topic_of(owner, "logged")
    peer.open_producer(topic)
    peer.subscribe(topic, SUBSCRIPTION)
    before = get(f"coordinatorInternalStats/{owner}")["transactionLogStats"]
    its, _ = begin_with_message(peer, owner, topic)
    end(peer, its)
    after = get(f"coordinatorInternalStats/{owner}")["transactionLogStats"]
    assert after["managedLedgerName"] == f"journal/{owner}"
    then, now = before["managedLedgerInternalStats"], after["managedLedgerInternalStats"]
    files = {path.name: path.stat().st_size for path in (own.data_dir / "journal" / str(owner)).glob("*.journal")}
    assert now["entriesAddedCounter"] >= then["entriesAddedCounter"] + 2
    assert now["currentLedgerSize"] > then["currentLedgerSize"]
    assert now["numberOfEntries"] == sum(one["entries"] for one in now["ledgers"]) >= then["numberOfEntries"] + 2
    assert 0 < now["totalSize"] <= sum(files.values()) and 1 <= len(now["ledgers"]) <= len(files)
    assert now["lastConfirmedEntry"] == f"{now['ledgers'][-1]['ledgerId']}:{now['currentLedgerEntries'] - 1}"
    assert get(f"transactionBufferInternalStats/{short(topic)}") == {"snapshotType": "None"}
    told = get(f"pendingAckInternalStats/{short(topic)}/{SUBSCRIPTION}")["pendingAckLogStats"]
    assert told["managedLedgerName"] == f"journal/{owner}"
    assert told["managedLedgerInternalStats"].keys() == now.keys()


def test_where_an_acknowledgement_stands_is_told(get, peer):
    topic = topic_of(1, "positions")
    peer.open_producer(topic)
    peer.subscribe(topic, SUBSCRIPTION)
    first, second, third = (publish(peer, number) for number in range(3))
    its, _ = begin(peer, 1)
    add(peer, its, topic, SUBSCRIPTION)
    acknowledge(peer, its, second)
    peer.ask(T.ACK, request_id=9, consumer_id=1, ack_type=api.CommandAck.Individual, message_id=[first])

    def state(message_id, more=0, batch=""):
        path = f"{message_id.ledgerId}/{message_id.entryId + more}{batch}"
        return get(f"positionStatsInPendingAck/{short(topic)}/{SUBSCRIPTION}/{path}")["state"]

    assert [state(one) for one in (first, second, third)] == ["MarkDelete", "PendingAck", "NotInPendingAck"]
    assert state(third, 1) == "InvalidPosition"
    assert (state(second, batch="?batchIndex=0"), state(second, batch="?batchIndex=1")) == (
        "PendingAck", "InvalidPosition")
    end(peer, its)
    assert state(second) == "MarkDelete"


def test_slow_transactions_are_those_of_a_long_lifetime(get, peer):
    short_lived, path = begin(peer, 0, 60_000)
    long_lived, long_path = begin(peer, 1, 10 * LIFETIME_MS)
    names = [f"({one.replace('/', ',')})" for one in (path, long_path)]
    assert get(f"slowTransactions/{2 * LIFETIME_MS}").keys() == {names[1]}
    assert get(f"slowTransactions/{2 * LIFETIME_MS}?coordinatorId=0") == {}
    assert {*names} <= get("slowTransactions/1").keys()
    end(peer, short_lived)
    end(peer, long_lived)


def test_an_administrator_aborts_a_transaction(get, peer):
    topic = topic_of(1, "aborted")
    _, path = begin_with_message(peer, 0, topic)
    assert get.status(f"abortTransaction/{path}", "POST") == 204
    assert get.status(f"abortTransaction/{path}", "POST") == 404
    assert get.status("abortTransaction/0/1", "POST") == 404
    assert get.status("abortTransaction/9999/1", "POST") == 404
    assert get.status("abortTransaction/x/1", "POST") == 400
    stats = f"transactionInBufferStats/{short(topic)}/{path}"
    assert eventually(lambda: get(stats) == {"aborted": True})


def test_metrics_count_the_transactions_of_each_coordinator(own, peer):
    def counted(name, coordinator):
        lines = request("GET", own.http_url + "/metrics/")[1].splitlines()
        [value] = [line.split()[1] for line in lines
                   if line.startswith(f"pulsar_txn_{name}{{") and f'coordinator_id="{coordinator}"' in line]
        return float(value)

    def all_counts(coordinator):
        return [counted(name, coordinator) for name in (
            "active_count", "created_total", "committed_total", "aborted_total", "timeout_total")]

    before, other, appended = all_counts(1), all_counts(0), counted("append_log_total", 1)
    for action in (api.COMMIT, api.ABORT):
        end(peer, begin(peer, 1)[0], action)
    begin(peer, 1)
    begin(peer, 1, lifetime_ms=0)      # aborted at once

    def grown():
        return [now - then for now, then in zip(all_counts(1), before, strict=True)] == [1, 4, 1, 2, 1]

    assert eventually(grown)
    assert all_counts(0) == other
    assert counted("append_log_total", 1) == appended + 10, "a transaction's begin, decision and end"
    bounds = (10, 20, 50, 100, 500, 1000, 5000, 15000, 30000, 60000, 300000, 1500000, 3000000, "overflow")
    took = sum(counted(f"execution_latency_le_{bound}", 1) for bound in bounds)
    assert took == counted("committed_total", 1) + counted("aborted_total", 1)


def test_metrics_count_the_transactions_that_acknowledged_on_a_subscription(own, peer):
    topic = topic_of(1, "acknowledging")
    peer.open_producer(topic)
    peer.subscribe(topic, SUBSCRIPTION)
    for number, action in enumerate((api.COMMIT, api.COMMIT, api.ABORT)):
        message_id = publish(peer, number)
        its, _ = begin(peer, 0)
        add(peer, its, topic, SUBSCRIPTION)
        acknowledge(peer, its, message_id)
        end(peer, its, action)

    def counts():
        lines = request("GET", own.http_url + "/metrics/")[1].splitlines()
        return [line.split()[1] for state in ("committed", "aborted") for line in lines
                if line.startswith(f"pulsar_txn_tp_{state}_count_total{{") and topic in line
                and f'subscription="{SUBSCRIPTION}",status="succeed"' in line]

    assert eventually(lambda: list(map(float, counts())) == [2, 1])


# -- the table, and the commands that show it

@pytest.fixture
def run(own, capsys):
    """run(words...): exit status, standard output, standard error of `geminga transactions`."""
    def run(*words):
        status = main.main(["transactions", *words, "--admin-url", own.http_url])
        printed = capsys.readouterr()
        return status, printed.out, printed.err
    return run


@pytest.fixture
def rows(run):
    """rows(words...): the rows that `geminga transactions` prints as JSON, by id."""
    def rows(*words):
        status, printed, _ = run(*words, "-o", "json")
        assert status == 0
        return {row["transaction"].strip("()"): row for row in json.loads(printed)}
    return rows


def id_of(path):
    return path.replace("/", ",")


@pytest.mark.parametrize("owner", range(OWNERS))
def test_the_table_says_what_a_transaction_has_done_and_who_waits(rows, peer, own, owner):
    """The coordinator is that of owner 1; the topic belongs to each owner in turn."""
    topic = topic_of(owner, "listed")
    peer.open_producer(topic)
    peer.subscribe(topic, SUBSCRIPTION)
    plain = publish(peer)
    its, path = begin(peer, 1)
    told = rows()[id_of(path)]
    assert (told["partitions"], told["subscriptions"], told["messages"], told["acknowledgements"]) == (0, 0, 0, 0)
    add(peer, its, topic)
    add(peer, its, topic, SUBSCRIPTION)
    for number in (1, 2):
        publish(peer, number, **its)
    acknowledge(peer, its, plain)
    later, later_path = begin(peer, 0)
    add(peer, later, topic)
    publish(peer, 3, **later)
    assert rows(topic)[id_of(path)]["waiting"] == [], "a consumer without permits waits for nothing"
    peer.say(command(T.FLOW, consumer_id=1, messagePermits=100))
    waiting = [{"topic": topic, "subscription": SUBSCRIPTION}]
    told = eventually(lambda: found if (found := rows(topic))[id_of(path)]["waiting"] == waiting else None)
    assert list(told) == [id_of(path), id_of(later_path)], "the longest open comes first"
    first = told[id_of(path)]
    assert (first["state"], first["ending_seconds"], first["unfinished"]) == ("open", None, [])
    assert 0 <= first["open_seconds"] <= 60 and LIFETIME_MS / 1_000 - 60 <= first["left_seconds"] <= LIFETIME_MS / 1_000
    assert (first["partitions"], first["subscriptions"], first["messages"], first["acknowledgements"]) == (1, 1, 2, 1)
    assert (told[id_of(later_path)]["messages"], told[id_of(later_path)]["waiting"]) == (1, [])
    assert rows(topic_of(1 - owner, "unused") + "*") == {}
    with Peer(own.service_url) as other:      # on the peer's own connection messages come now
        end(other, its)
        assert eventually(lambda: rows(topic)[id_of(later_path)]["waiting"] == waiting)
        end(other, later)
    assert rows(topic) == {}


def test_a_look_at_the_table_opens_no_topic(own, rows, peer):
    topic = topic_of(0, "unloaded")
    its, path = begin_with_message(peer, 1, topic)
    assert request("PUT", f"{own.http_url}/admin/v2/{topic.replace('://', '/')}/unload")[0] == 204
    for _ in range(2):
        told = rows(topic)[id_of(path)]
        assert (told["partitions"], told["messages"], told["waiting"]) == (1, None, [])
    with Peer(own.service_url) as other:
        end(other, its, api.ABORT)


def test_the_table_is_sorted_and_says_how_many_rows_are_left_out(run, rows, peer):
    short_lived, path = begin(peer, 0, 300_000)
    long_lived, long_path = begin(peer, 1, 100 * LIFETIME_MS)
    assert next(iter(rows("--sort", "left-seconds"))) == id_of(long_path)
    assert next(iter(rows("--sort", "left-seconds", "--reverse"))) == id_of(path)
    assert rows("--sort", "waiting") and rows("--sort", "transaction")
    status, printed, said = run("-n", "1", "--sort", "left-seconds")
    heading, line = printed.splitlines()
    assert status == 0 and heading.split()[:4] == ["ID", "STATE", "OPEN", "LEFT"] and "HOLDS UP" in heading
    assert line.split()[:2] == [id_of(long_path), "open"] and "1 of " in said and "-n shows more" in said
    end(peer, short_lived)
    end(peer, long_lived)


def test_the_command_aborts_transactions_and_names_those_that_are_not_open(run, rows, peer):
    paths = [begin(peer, coordinator)[1] for coordinator in range(OWNERS)]
    first, second = map(id_of, paths)
    status, printed, said = run("abort", first, f"({second})", "1,987654321")
    assert (status, printed) == (1, f"aborted {first}\naborted {second}\n")
    assert said.startswith("geminga: 1,987654321: The transaction is unknown") and said.count("\n") == 1
    assert not {first, second} & rows().keys()
    assert run("abort", "17")[0] == 2


def test_why_names_the_command_that_aborts_what_is_in_the_way(own, peer, capsys):
    topic = topic_of(1, "held-up")
    peer.subscribe(topic, SUBSCRIPTION)
    its, path = begin_with_message(peer, 0, topic)
    assert main.main(["why", topic, SUBSCRIPTION, "--admin-url", own.http_url]) == 0
    assert f"geminga transactions abort {id_of(path)}\n" in capsys.readouterr().out
    end(peer, its)


def test_the_number_of_coordinators_is_that_of_the_owners(get):
    assert get.status("transactionCoordinator/replicas", "POST", b"1") == 406
    assert get.status("transactionCoordinator/replicas", "POST", b"2") == 406
    assert get.status("transactionCoordinator/replicas", "POST", b"3") == 409


def test_a_transaction_that_consumers_wait_for_is_an_alarm_until_it_ends(tmp_path, capsys):
    config = tmp_path / "geminga.toml"
    config.write_text("owners = 2\nworkers = 1\n[alarms]\ntransaction_s = 1\n")
    broker = Broker(tmp_path / "data", "--config", str(config))
    try:
        broker.start()
        with Peer(broker.service_url) as peer:
            topic = topic_of(0, "hangs")
            peer.subscribe(topic, SUBSCRIPTION)
            peer.say(command(T.FLOW, consumer_id=1, messagePermits=100))
            _, path = begin_with_message(peer, 1, topic)

            def alarms():
                return [alarm["text"] for alarm in
                        json.loads(request("GET", f"{broker.http_url}/ops/v1/status")[1])["alarms"]]

            [told] = eventually(alarms)
            assert f"subscription {SUBSCRIPTION} of {topic} waits for its end" in told
            assert told.endswith(f"geminga transactions abort {id_of(path)}")
            assert main.main(["transactions", "abort", id_of(path), "--admin-url", broker.http_url]) == 0
            assert eventually(lambda: not alarms())
    finally:
        broker.close()


def test_without_transactions_nothing_is_told(tmp_path):
    config = tmp_path / "geminga.toml"
    config.write_text("owners = 1\nworkers = 1\n[transactions]\nenabled = false\n")
    broker = Broker(tmp_path / "data", "--config", str(config))
    try:
        broker.start()
        for path in ("coordinators", "transactionMetadata/0/1", "nothing"):
            assert Get(broker).status(path) == 503
    finally:
        broker.close()

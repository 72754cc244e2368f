"""`geminga redrive` to scalable topics, and its undo: once each, whatever splits, merges and is killed meanwhile."""
import json
import subprocess
import sys
from collections import Counter

import pulsar
import pytest

from geminga.proto import layouts
from geminga.storage.runtime.routing import owner_of

from ..console.test_sessions import SECRET, ask, token
from ..harness import COMMAND, HANG_SECONDS, Broker, eventually, path_of, request, unique_topic
from .test_redrive import KILLED, bury, command, leaves_nothing, redrive
from .test_scalable_topics import Rest

pytestmark = pytest.mark.slow
SECONDS = HANG_SECONDS
OWNERS = 2
OWN_OPTIONS = ("--owners", str(OWNERS))


class Orders(Rest):
    """A scalable topic of two segments with the subscriptions billing and shipping."""

    def __init__(self, broker):
        super().__init__(broker)
        self.set("PUT", "?numInitialSegments=2")
        self.set("POST", "/autoScalePolicy", {"enabled": False})
        for name in ("billing", "shipping"):
            self.set("PUT", f"/subscriptions/{name}")

    @property
    def segments(self):
        """The names of all segments, sealed ones too."""
        return [f"segment://public/default/{self.local}/{one['hashRange']['start']:04x}-{one['hashRange']['end']:04x}-"
                f"{one['segmentId']}" for one in self.get()["segments"].values()]

    def left(self, subscription="billing"):
        """Return the messages, as JSON, that a subscription has left."""
        words = [COMMAND[0], "consume", self.name, "-s", subscription, "--no-ack", "-o", "jsonl", "--url",
                 self.broker.service_url]
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def numbers(self, subscription="billing"):
        return Counter(one["properties"]["number"] for one in self.left(subscription))

    def change(self):
        """Split the first segment that takes messages, and merge the others."""
        segments = [(one["hashRange"]["start"], number) for number, one in self.get()["segments"].items()
                    if one["active"]]
        first, *others = [number for _, number in sorted(segments)]
        self.set("POST", f"/split/{first}")
        if len(others) > 1:
            self.set("POST", f"/merge/{others[0]}/{others[1]}")

    def backlog(self):
        return self.get("/stats")["subscriptions"]["billing"]["msgBacklog"]


@pytest.fixture
def orders(own):
    return Orders(own)


def buried(client, orders, count, **more):
    """Bury letters of the subscription billing, from its segments in turn; return their topic."""
    dead = unique_topic("dead")
    bury(client, dead, orders.segments, count, REAL_SUBSCRIPTION="billing", **more)
    return dead


def test_only_the_subscription_that_lost_them_gets_letters_each_in_the_segment_of_its_key(own, client, orders):
    dead = buried(client, orders, 40)
    told = redrive(own, dead, "--dry-run")
    status, figures, complaints = redrive(own, dead)
    assert told == (status, figures | {"dry_run": True}, complaints)
    assert (status, figures["targets"], complaints) == (0, {orders.name: 40}, [])
    left = orders.left()
    for one in left:
        first, last = (int(text, 16) for text in one["topic"].rpartition("/")[2].split("-")[:2])
        assert first <= layouts.hash_of(one["key"]) <= last
        assert {"REAL_TOPIC", "REAL_SUBSCRIPTION"}.isdisjoint(one["properties"])
    assert Counter(one["payload"] for one in left) == {f"letter {number}": 1 for number in range(40)}
    assert not orders.left("shipping")
    assert orders.get("/stats")["subscriptions"].keys() == {"billing", "shipping"}
    assert redrive(own, dead)[1]["sent"] == 0


def test_all_subscriptions_get_letters_if_that_is_said_and_letters_of_a_missing_one_stay(own, client, orders):
    dead = buried(client, orders, 10)
    bury(client, dead, [orders.name], 5, REAL_SUBSCRIPTION="gone")
    assert redrive(own, dead, "--to", orders.name, "-s", "billing")[1]["to_all_subscriptions"] == 10
    assert len(orders.left()) == len(orders.left("shipping")) == 10
    status, figures, _ = redrive(own, dead)
    [(why, count)] = figures["not_possible"].items()
    assert (status, figures["sent"], count) == (1, 0, 5) and "has no subscription 'gone'" in why
    missing = "topic://public/default/missing"
    assert f"there is no topic {missing}" in redrive(own, dead, "--to", missing)[1]["not_possible"]
    path = f"{own.http_url}/ops/v1/redrive/{path_of(dead)}"
    assert json.loads(request("POST", path, b'{"to_all": true}')[1])["targets"] == {orders.name: 5}


def test_where_transactions_are_switched_off_letters_stay(tmp_path):
    (tmp_path / "geminga.toml").write_text("[transactions]\nenabled = false\n")
    broker = Broker(tmp_path / "data", "--config", str(tmp_path / "geminga.toml"), *OWN_OPTIONS)
    try:
        broker.start()
        client = pulsar.Client(broker.service_url)
        dead = buried(client, Orders(broker), 3)
        client.close()
        for words in (["--dry-run"], []):
            status, figures, _ = redrive(broker, dead, *words)
            [(why, count)] = figures["not_possible"].items()
            assert (status, figures["sent"], count) == (1, 0, 3) and "ransactions" in why
    finally:
        broker.close()


def test_a_role_with_rights_to_its_topics_alone_may_redrive(tmp_path):
    """To an ordinary topic, of which it may not ask whether there is a scalable one of the name, and to a scalable one.
    """
    (tmp_path / "geminga.toml").write_text(
        f'[authentication]\nmethods = ["token"]\nsecret_keys = ["data:;base64,{SECRET}"]\n'
        '[authorization]\nenabled = true\nsuper_user_roles = ["admin"]\n')
    broker = Broker(tmp_path / "data", "--config", str(tmp_path / "geminga.toml"), *OWN_OPTIONS)
    places = {"orders": "persistent/acme/eu/orders", "letters": "persistent/acme/eu/orders-billing-DLQ",
              "segmented": "scalable/acme/eu/segmented"}
    try:
        broker.start()
        wanted = [("PUT", "tenants/acme", {"adminRoles": [], "allowedClusters": ["standalone"]}),
                  ("PUT", "namespaces/acme/eu", None)]
        for path in places.values():
            wanted += [("PUT", path, None), ("POST", f"{path}/permissions/worker", ["produce", "consume"])]
        for path in (f"{places['orders']}/subscription/billing", f"{places['segmented']}/subscriptions/billing",
                     f"{places['letters']}/subscription/geminga-redrive"):
            wanted.append(("PUT", path, None))
        for method, path, body in wanted:
            answer = ask(broker, method, f"/admin/v2/{path}", body, Authorization=f"Bearer {token('admin')}")
            assert answer.status == 204, (path, answer.text)
        client = pulsar.Client(broker.service_url, authentication=pulsar.AuthenticationToken(token("worker")))
        letters, origins = "persistent://acme/eu/orders-billing-DLQ", {
            "persistent://acme/eu/orders": 3, "topic://acme/eu/segmented": 2}
        producer = client.create_producer(letters, batching_enabled=False)
        for origin, count in origins.items():
            for _ in range(count):
                producer.send(b"letter", properties={"REAL_TOPIC": origin, "REAL_SUBSCRIPTION": "billing"})
        client.close()
        for words in (["--dry-run"], []):
            status, figures, complaints = redrive(broker, letters, *words, "--auth-params", f"token:{token('worker')}")
            assert (status, complaints) == (0, []) and figures["targets"] == origins
    finally:
        broker.close()


# Where a redrive is killed: a method of redriving.py, before or after its call number so much.
POINTS = [("SegmentedTarget.open", "after", 1), ("SegmentedTarget.send", "before", 1),
          ("SegmentedTarget.send", "after", 2), ("Backlog.acknowledge", "before", 1),
          ("Backlog.acknowledge", "after", 1), ("Redrive._commit", "after", 1), ("Redrive._commit", "after", 2)]


@pytest.mark.parametrize(("method", "when", "number"), POINTS)
def test_a_killed_redrive_that_is_repeated_behind_a_split_sends_each_letter_once(
        own, client, orders, method, when, number):
    dead = buried(client, orders, 100)
    killed = subprocess.run([sys.executable, "-c", KILLED, method, when, str(number), *command(own, dead)[1:]],
                            capture_output=True, text=True, timeout=SECONDS, check=False)
    assert killed.returncode == -9, killed.stderr
    orders.change()
    assert redrive(own, dead)[::2] == (0, [])
    assert orders.numbers() == Counter(map(str, range(100))) and not orders.left("shipping")
    assert redrive(own, dead)[1]["sent"] == 0


def test_segments_change_during_a_redrive_at_a_rate(own, client, orders):
    """Each letter goes once, whichever segment its key has by then."""
    dead = buried(client, orders, 200)
    with subprocess.Popen(command(own, dead, "--rate", "40"), stdout=subprocess.PIPE, text=True) as process:
        changes = 0
        while changes < 4 and process.poll() is None:      # a slow machine may have time for fewer
            before = orders.backlog()
            eventually(lambda before=before: process.poll() is not None or orders.backlog() > before)
            if process.poll() is None:
                orders.change()
                changes += 1
        figures = json.loads(process.communicate(timeout=SECONDS)[0])
    assert changes
    assert process.returncode == 0 and figures["targets"] == {orders.name: 200}, figures
    assert orders.numbers() == Counter(map(str, range(200))) and not orders.left("shipping")


THROTTLED = """
import sys
from geminga.supervisor.tasks import redrive_segments, redriving
from geminga.supervisor.main import main
redrive_segments._LIFETIME_MS, redriving._ROUND_MOST_S = 2_000, 0.5
sys.exit(main(sys.argv[1:]))
"""


def test_a_round_to_a_throttled_topic_ends_within_the_life_of_its_transaction(own, client, orders):
    """Rounds become smaller, as long as they take too long."""
    dead = buried(client, orders, 120)
    rate = b'{"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": -1}'
    path = f"{own.http_url}/admin/v2/persistent/public/default/{orders.local}/publishRate"
    assert request("POST", path, rate)[0] == 204
    done = subprocess.run([sys.executable, "-c", THROTTLED, *command(own, dead)[1:]], capture_output=True, text=True,
                          timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert orders.numbers() == Counter(map(str, range(120)))


def test_kills_of_owners_during_a_redrive_until_it_is_done(own, client, orders):
    dead = buried(client, orders, 300)
    for place in (orders.segments[0], dead, orders.segments[1]):
        index = owner_of(place, OWNERS)
        with subprocess.Popen(command(own, dead, "--rate", "100"), stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as process:
            before = orders.backlog()
            eventually(lambda before=before: process.poll() is not None or
                       orders.backlog() > before)
            own.wait_replaced("owner", index, own.kill("owner", index))
            process.wait(SECONDS)
        eventually(lambda: orders.ask("GET", "/stats")[0] == 200)
        orders.change()
    eventually(lambda: redrive(own, dead)[0] == 0 and orders.numbers().total() == 300, SECONDS)
    assert orders.numbers() == Counter(map(str, range(300))) and not orders.left("shipping")


def test_letters_of_partitions_go_back_when_the_topic_was_made_scalable(own, client):
    orders = Rest(own)
    regular = orders.name.replace("topic:", "persistent:")
    assert request("PUT", f"{own.http_url}/admin/v2/{path_of(regular)}/partitions", b"2")[0] == 204
    assert request("PUT", f"{own.http_url}/admin/v2/{path_of(regular)}/subscription/billing")[0] == 204
    dead = unique_topic("dead")
    bury(client, dead, [f"{regular}-partition-0", f"{regular}-partition-1"], 20, REAL_SUBSCRIPTION="billing")
    orders.set("POST", "/migrate")
    assert redrive(own, dead)[1]["targets"] == {orders.name: 20}
    assert orders.get("/stats")["subscriptions"]["billing"]["msgBacklog"] == 20
    assert redrive(own, dead, "--undo", regular, "-s", "billing")[1]["taken_back"] == 20


def test_letters_that_are_cleared_during_a_redrive_are_not_sent(own, client, orders):
    dead = buried(client, orders, 40)
    with subprocess.Popen(command(own, dead, "--rate", "5"), stdout=subprocess.PIPE, text=True) as process:
        eventually(lambda: orders.backlog())
        place = f"{own.http_url}/admin/v2/{path_of(dead)}/subscription/geminga-redrive/skip_all"
        assert request("POST", place)[0] == 204
        figures = json.loads(process.communicate(timeout=SECONDS)[0])
    assert 0 < figures["sent"] < 40 and figures["sent"] == len(orders.left()), figures


# -- undo

def test_what_no_consumer_has_is_a_letter_again_over_a_split(own, client, orders):
    dead = buried(client, orders, 60)
    assert redrive(own, dead, "-n", 30)[1]["sent"] == 30
    orders.change()
    assert redrive(own, dead)[1]["sent"] == 30
    undo = "--undo", orders.name, "-s", "billing"
    assert redrive(own, dead, *undo, "--dry-run")[1]["taken_back"] == 60 == len(orders.left())
    assert redrive(own, dead, *undo, "--key", "k1")[1]["taken_back"] == 12
    orders.change()
    assert redrive(own, dead, *undo, "--rate", 100, "-n", 8)[1]["taken_back"] == 8
    status, figures, complaints = redrive(own, dead, *undo)
    assert (status, figures["taken_back"], figures["not_possible"], complaints) == (0, 40, {}, [])
    assert not orders.left() and not orders.left("shipping")
    assert redrive(own, dead)[1]["targets"] == {orders.name: 60}
    assert orders.numbers() == Counter(map(str, range(60)))


def test_an_undo_that_owners_are_killed_in_takes_each_message_back_once(own, client, orders):
    dead = buried(client, orders, 200)
    assert redrive(own, dead)[1]["sent"] == 200
    undo = "--undo", orders.name, "-s", "billing"
    for place in (orders.segments[0], dead):
        index = owner_of(place, OWNERS)
        with subprocess.Popen(command(own, dead, *undo, "--rate", "20"), stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as process:
            before = orders.backlog()
            # On a slow machine the first one may have taken back everything before its kill.
            eventually(lambda before=before: process.poll() is not None or orders.backlog() < before)
            own.wait_replaced("owner", index, own.kill("owner", index))
            process.wait(SECONDS)
        eventually(lambda: orders.ask("GET", "/stats")[0] == 200)
        orders.change()
    eventually(lambda: leaves_nothing(own, dead, *undo) and not orders.left(), SECONDS)
    sent = []      # letters of a round that a kill has cut off wait until its transaction is aborted
    eventually(lambda: sent.append(redrive(own, dead)[1]["sent"]) or sum(sent) >= 200, SECONDS)
    assert orders.numbers() == Counter(map(str, range(200)))

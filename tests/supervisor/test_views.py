"""Tables of topics, subscriptions and clients over HTTP, of a broker with several owners and real clients."""
import json

import pulsar
import pytest

from geminga.supervisor.admin.monitoring.views import OFFSET_MAX, ROWS_MAX
from geminga.supervisor.console.pages.tables import TABLES

from ..harness import eventually, partitioned_topic, request

pytestmark = pytest.mark.slow
OWN_OPTIONS = "--owners", "2", "--workers", "2"
NAMESPACE = "public/default"
PREFIX = f"persistent://{NAMESPACE}/"


@pytest.fixture(scope="module", autouse=True)
def filled(own, client):
    """Five topics with as many messages as their number, that a subscription has not acknowledged."""
    for number in range(5):
        client.subscribe(f"t{number}", "sub", pulsar.ConsumerType.Shared).close()
        producer = client.create_producer(f"t{number}")
        for _ in range(number):
            producer.send(b"x")
        producer.close()


def ask(broker, path):
    status, text = request("GET", f"{broker.http_url}/ops/v1/{path}")
    return (json.loads(text) if status == 200 else json.loads(text)["reason"])


def test_topics_of_all_owners_are_sorted_and_bounded(own):
    path = f"topics/{NAMESPACE}?match=t*&sort=backlog&limit=3"
    told = eventually(lambda: one if (one := ask(own, path))["rows"][0]["backlog"] == 4 else None)
    assert [(row["topic"], row["backlog"]) for row in told["rows"]] == [(f"{PREFIX}t{n}", n) for n in (4, 3, 2)]
    assert (told["total"], told["more"], told["not_loaded"], told["owners_missing"]) == (5, True, 0, [])
    told = ask(own, f"topics/{NAMESPACE}?match=t*&sort=topic&reverse=true")
    assert [row["topic"] for row in told["rows"]] == [f"{PREFIX}t{n}" for n in (4, 3, 2, 1, 0)] and not told["more"]


def test_subscriptions_of_all_owners_are_sorted(own):
    told = ask(own, "subscriptions?sort=backlog&limit=2")
    assert [(row["topic"], row["subscription"], row["type"], row["backlog"]) for row in told["rows"]] == [
        (f"{PREFIX}t{n}", "sub", "Shared", n) for n in (4, 3)]
    assert told["total"] >= 5


def test_a_partitioned_topic_has_a_row_for_each_partition(own, client):
    topic = partitioned_topic(own.http_url, 12)
    producer = client.create_producer(topic)
    rows = eventually(lambda: told if len(
        told := ask(own, f"topics/{topic.replace('://', '/')}?sort=topic")["rows"]) == 12 else None)
    assert {row["topic"] for row in rows} == {f"{topic}-partition-{n}" for n in range(12)}
    [row] = ask(own, f"clients/{topic.replace('://', '/')}")["rows"]
    assert (row["producers"], row["topics"]) == (12, 12), "the counts of both owners are added"
    producer.close()


@pytest.mark.parametrize("path, reason", [
    ("topics?sort=colour", "sort is one of topic, rate_in"),
    (f"topics?limit={ROWS_MAX + 1}", f"limit is a whole number of 0 to {ROWS_MAX}"),
    (f"topics/persistent/{NAMESPACE}/none", f"Topic {PREFIX}none not found"),
    ("subscriptions/public/none", "Namespace does not exist"),
    ("topics?match=" + 257 * "x", "match has at most 256 characters, and 8 stars"),
    ("topics?match=" + 9 * "*", "match has at most 256 characters, and 8 stars"),
])
def test_a_request_that_cannot_be_answered_is_told_why(own, path, reason):
    assert ask(own, path).startswith(reason)


def test_a_topic_that_is_not_loaded_has_a_row_without_numbers(own):
    request("PUT", f"{own.http_url}/admin/v2/persistent/{NAMESPACE}/unused")
    request("PUT", f"{own.http_url}/admin/v2/persistent/{NAMESPACE}/t0/unload")
    told = eventually(lambda: one if (
        one := ask(own, f"topics/{NAMESPACE}?match=t*&sort=backlog"))["not_loaded"] else None)
    assert told["rows"][-1]["topic"] == f"{PREFIX}t0" and told["rows"][-1]["backlog"] is None
    assert (told["total"], told["not_loaded"]) == (5, 1)


def test_status_and_the_list_count_topics_alike(own, client):
    """Each partition counts, used or not, and topics that keep nothing count as well."""
    request("PUT", f"{own.http_url}/admin/v2/persistent/{NAMESPACE}/counted/partitions", b"3")
    request("PUT", f"{own.http_url}/admin/v2/persistent/{NAMESPACE}/never-used")
    live = client.create_producer(f"non-persistent://{NAMESPACE}/counted-live")
    used = client.create_producer(f"{PREFIX}counted-partition-1")

    def counts():
        told, listed = ask(own, "status")["topics"], ask(own, "topics?limit=0")
        return told, {"total": listed["total"], "loaded": listed["total"] - listed["not_loaded"]}

    eventually(lambda: (one := counts())[0] == one[1] and one[0]["loaded"] >= 2)
    told, listed = counts()
    assert told == listed and told["total"] == len(ask(own, "topics?limit=1000")["rows"]) >= 5
    live.close()
    used.close()


def test_closing_a_client_needs_an_address_that_is_connected(own):
    status, text = request("DELETE", f"{own.http_url}/ops/v1/clients/10.0.0.1:1")
    assert status == 404 and "There is no connection from 10.0.0.1:1" in text


def names_of(broker, path):
    return [row["topic"].removeprefix(PREFIX) for row in ask(broker, path)["rows"]]


@pytest.fixture
def half_loaded(own, client):
    """Ten topics of which two, the third and the eighth, have been opened."""
    for number in range(10):
        request("PUT", f"{own.http_url}/admin/v2/persistent/{NAMESPACE}/half-{number}")
    for number in (2, 7):
        client.create_producer(f"half-{number}").close()
    path = f"topics/{NAMESPACE}?match=half-*&state=loaded"
    eventually(lambda: len(ask(own, path)["rows"]) == 2)


def test_windows_of_a_table_are_the_table(own, half_loaded):
    """Loaded topics are sorted by their numbers before all others, or stand among these by name."""
    for order in ("sort=topic", "sort=topic&reverse=true", "sort=backlog", "sort=backlog&reverse=true"):
        path = f"topics/{NAMESPACE}?match=half-*&{order}"
        whole, windows = names_of(own, path), []
        for offset in range(0, 12, 3):
            told = ask(own, f"{path}&limit=3&offset={offset}")
            assert (told["total"], told["not_loaded"], told["more"]) == (10, 8, offset + 3 < 10)
            windows += [row["topic"].removeprefix(PREFIX) for row in told["rows"]]
        assert windows == whole and sorted(whole) == [f"half-{n}" for n in range(10)], order
        if "topic" in order:
            assert whole == sorted(whole, reverse="reverse" in order)
        else:
            assert set(whole[:2]) == {"half-2", "half-7"}


def test_a_table_of_topics_is_narrowed_by_their_state(own, half_loaded):
    request("PUT", f"{own.http_url}/admin/v2/non-persistent/{NAMESPACE}/half-live")
    request("PUT", f"{own.http_url}/admin/v2/persistent/{NAMESPACE}/half-parts/partitions", b"2")
    path = f"topics/{NAMESPACE}?match=half-*&sort=topic"
    assert names_of(own, f"{path}&state=loaded") == ["half-2", "half-7"]
    assert names_of(own, f"{path}&state=partitioned") == ["half-parts-partition-0", "half-parts-partition-1"]
    assert names_of(own, f"{path}&state=non-persistent") == [f"non-persistent://{NAMESPACE}/half-live"]
    others = names_of(own, f"{path}&state=not-loaded")
    assert len(others) == 11 and not {"half-2", "half-7"} & set(others)
    assert ask(own, f"{path}&state=not-loaded&limit=2&offset=10")["total"] == 11
    assert ask(own, f"{path}&state=lost") == "state is one of loaded, not-loaded, partitioned, non-persistent"


def test_subscriptions_are_found_by_name_in_windows(own, client):
    for name in ("alpha-1", "alpha-2", "beta"):
        client.subscribe("named", name).close()
    path = f"subscriptions/{NAMESPACE}?match=named&sort=subscription"
    told = eventually(lambda: one if (one := ask(own, f"{path}&subscription=alpha*&offset=1"))["total"] == 2 else None)
    assert [row["subscription"] for row in told["rows"]] == ["alpha-2"]
    assert ask(own, f"{path}&subscription={9 * '*'}").startswith("subscription has at most 256 characters")


def test_subscriptions_of_topics_that_are_not_loaded_are_known(own, client):
    """After a restart a subscription is in the table as it was before, without numbers until its topic is used."""
    for number in range(3):
        client.subscribe(f"resting-{number}", f"sleeper-{number}").close()
    for number in range(3):
        request("PUT", f"{own.http_url}/admin/v2/persistent/{NAMESPACE}/resting-{number}/unload")
    client.create_producer("resting-1").close()
    path = f"subscriptions/{NAMESPACE}?match=resting-*&sort=subscription"
    told = eventually(lambda: one if (one := ask(own, path))["not_loaded"] == 2 else None)
    assert [(row["subscription"], row["backlog"]) for row in told["rows"]] == [
        ("sleeper-0", None), ("sleeper-1", 0), ("sleeper-2", None)] and told["total"] == 3
    by_backlog = ask(own, path.replace("sort=subscription", "sort=backlog"))["rows"]
    assert by_backlog[0]["subscription"] == "sleeper-1"      # those without a number come last
    told = ask(own, f"{path}&subscription=*-2&limit=1")
    assert [row["topic"] for row in told["rows"]] == [f"{PREFIX}resting-2"]
    assert (told["total"], told["more"]) == (1, False)
    assert [row["subscription"] for row in ask(own, f"{path}&limit=1&offset=2")["rows"]] == ["sleeper-2"]
    one = ask(own, f"subscriptions/persistent/{NAMESPACE}/resting-0")
    assert [row["subscription"] for row in one["rows"]] == ["sleeper-0"] and one["not_loaded"] == 1


def test_every_column_that_the_console_shows_sorts_its_table(own):
    paths = [f"{table.name}?sort={column.key}{order}" for table in TABLES.values() for column in table.columns
             for order in ("", "&reverse=true")]
    assert {path: told for path in paths if not isinstance(told := ask(own, path), dict)} == {}


def test_an_offset_has_a_bound(own):
    assert ask(own, f"topics?offset={OFFSET_MAX + 1}") == f"offset is a whole number of 0 to {OFFSET_MAX}"


def test_rows_far_behind_the_first_ones_have_their_numbers(own):
    """Owners are asked in two steps for such rows; the windows are the table all the same."""
    path = f"/admin/v2/non-persistent/{NAMESPACE}/far"
    request("PUT", f"{own.http_url}{path}/partitions", b"420")
    assert request("GET", f"{own.http_url}{path}/partitioned-stats?perPartition=false")[0] == 200      # loads all
    table = f"topics/{NAMESPACE}?match=far-*&sort=subscriptions"
    eventually(lambda: ask(own, table)["not_loaded"] == 0)
    for order in ("", "&reverse=true", "&state=loaded"):
        rows = [row for offset in range(0, 500, 100) for row in ask(own, f"{table}{order}&offset={offset}")["rows"]]
        assert len(rows) == 420 and all(row["subscriptions"] == 0 and row["rate_in"] == 0 for row in rows)
        assert {row["topic"].rpartition("-")[2] for row in rows} == set(map(str, range(420)))

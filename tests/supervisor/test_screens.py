"""The parts of live views that need no broker: keys, lines of the screen, places, and the sentences of `why`."""
import pytest

from geminga.supervisor.cli.views.scopes import scope_of
from geminga.supervisor.cli.views.screen import Screen
from geminga.supervisor.cli.views.snapshots import Question, Snapshot
from geminga.supervisor.cli.views.tables import SUBSCRIPTIONS
from geminga.supervisor.cli.views.terminal import keys_of
from geminga.supervisor.wording import sentences


@pytest.mark.parametrize("text, path, match", [
    (None, "", ""), ("orders", "/persistent/public/default/orders", ""), ("acme/eu", "/acme/eu", ""),
    ("acme/eu/orders", "/persistent/acme/eu/orders", ""),
    ("non-persistent://acme/eu/orders", "/non-persistent/acme/eu/orders", ""),
    ("orders-*", "/public/default", "orders-*"), ("acme/eu/*-dead", "/acme/eu", "*-dead"),
    ("*/eu/orders", "", "*/eu/orders"), ("acme/*", "", "acme/*/*"),
])
def test_a_place_is_everything_a_namespace_a_topic_or_a_pattern(text, path, match):
    assert scope_of(text)[1:] == (path, match)


# -- the screen of `top`

@pytest.mark.parametrize("data, keys", [
    (b"q", ["q"]), (b"\x1b[A\x1bOB", ["up", "down"]), (b"\x1b", ["escape"]), (b"\r\x7f", ["enter", "backspace"]),
    (b"\x1b[5~\x1b[6~", ["page up", "page down"]), (b"\x1b[1;5Ca", ["a"]), ("ü".encode(), ["ü"]), (b"\xff\x00", []),
])
def test_bytes_are_keys(data, keys):
    assert keys_of(data) == keys


STATUS = {"version": "1", "ready": True, "obstacles": [], "uptime_seconds": 5, "alarms": [], "stored_not_loaded": 0,
          "rates": dict.fromkeys(("messages_in", "bytes_in", "messages_out", "bytes_out"), 0.0), "connections": 0,
          "topics": {"total": 0, "loaded": 0}, "processes": [],
          "loaded": dict.fromkeys(("subscriptions", "producers", "consumers", "backlog_entries", "stored_bytes"), 0),
          "disk": {"free_bytes": 0, "bytes": 1}, "memory": {"used_bytes": 0, "limit_bytes": 1, "of": "host"}}


def topics(number):
    row = dict.fromkeys(("rate_in", "throughput_in", "rate_out", "throughput_out", "backlog", "oldest_seconds",
                         "producers", "consumers", "storage_bytes"), 0)
    return {"rows": [row | {"topic": f"persistent://public/default/{n:03} {'x' * 200}"} for n in range(number)],
            "total": number, "more": False}


@pytest.mark.parametrize("width, height", [(80, 24), (200, 50), (20, 5), (1, 1)])
def test_every_size_has_its_lines_and_shows_the_chosen_row(width, height):
    screen = Screen("http://x")
    screen.press("t")
    screen.show(Snapshot(STATUS, {"topics": topics(100)}, screen.wanted()))
    for key in ["down"] * 57:
        screen.press(key)
    lines = screen.lines(width, height)
    assert len(lines) == height
    if height >= 24:
        [chosen] = [line.text for line in lines[:-1] if line.style == "reverse"]
        assert chosen.startswith("public/default/057") or "057" in chosen or "…" in chosen
        assert len(lines[-2].text) <= width


@pytest.mark.parametrize("width", [20, 80, 100, 200])
def test_the_last_line_has_only_whole_hints_and_begins_with_help_and_the_way_out(width):
    line = Screen("http://x").lines(width, 24)[-1].text
    assert len(line) <= width and line.split("  ")[1:3] == ["h help", "q quit"]
    assert set(line.split("  ")[1:]) <= set(Screen("http://x").lines(1_000, 24)[-1].text.split("  "))


def test_answers_to_older_questions_are_not_shown():
    def shown():
        return [line.text for line in screen.lines(400, 30)]

    screen = Screen("http://x")
    screen.press("t")
    assert screen.wanted() == {"topics": Question("/ops/v1/topics", (
        ("sort", "rate_in"), ("reverse", "false"), ("limit", "200")))}
    before = screen.wanted()
    screen.press("r")
    screen.show(Snapshot(STATUS, {"topics": topics(1)}, before))
    assert "asking" in shown()
    screen.show(Snapshot(STATUS, {"topics": topics(1)}, screen.wanted()))
    screen.press("s")
    assert any("default/000" in line for line in shown()), "until the answer in another order comes"
    screen.press("enter")
    assert "asking" in shown() and screen.wanted().keys() == {"subscriptions"}
    screen.press("w")
    assert screen.wanted().keys() == {"subscriptions"}, "there is no row to ask about"


def test_rows_of_another_topic_cannot_be_chosen():
    """After a topic was opened, the rows of all subscriptions are gone at once."""
    screen, row = Screen("http://x"), {column.key: None for column in SUBSCRIPTIONS}
    screen.press("u")
    rows = [row | {"topic": "persistent://a/b/c", "subscription": "s", "type": "Shared"}]
    screen.show(Snapshot(STATUS, {"subscriptions": {"rows": rows, "total": 1, "more": False}}, screen.wanted()))
    screen.press("enter")
    assert "/ops/v1/subscriptions/persistent/a/b/c" in screen.wanted()["subscriptions"].path
    screen.press("w")
    assert screen.wanted().keys() == {"subscriptions"}
    screen.press("escape")
    screen.press("u")
    screen.show(Snapshot(STATUS, {"subscriptions": {"rows": rows, "total": 1, "more": False}}, screen.wanted()))
    screen.press("w")
    assert screen.wanted()["why"].path == "/ops/v1/why/persistent/a/b/c/s"


# -- sentences of `why`

def test_partitions_that_are_alike_are_added():
    """One consumer of two partitions is told once, with the messages of both."""
    consumer = {"name": "c", "address": "10.0.0.7:1", "library": "L", "connected_ms": 1, "acknowledged_ms": 0,
                "consumed_ms": 0, "messages": 2, "permits": 0, "is_active": True}
    told = [{"topic": f"t-partition-{n}", "subscription": "s", "type": "Shared", "backlog": 3, "oldest_ms": 1,
             "messages": {"published": 3, "backlog": 3}, "consumers": [consumer], "consumer_count": 1,
             "causes": [{"cause": "no permits", "consumer": "c"},
                        {"cause": "delayed messages", "until_ms": 10 - n, "messages": 5}]} for n in range(2)]
    text = "\n".join(sentences.tell(told, "t", "s"))
    assert "6 messages are not acknowledged" in text and "c (10.0.0.7:1, L) holds 4 messages" in text
    assert "10 messages wait for their delivery times" in text and "00.009Z" in text
    assert "partition" not in text and text.count("asks for no more") == 1
    other = told[1] | {"causes": [{"cause": "no permits", "consumer": "d"}, *told[1]["causes"][1:]]}
    assert "  partition 0: 3 messages" in "\n".join(sentences.tell([told[0], other], "t", "s"))


def test_every_cause_has_a_sentence_and_an_unknown_one_is_told_too():
    """Sentences use only fields that the broker's answer has."""
    consumer = {"name": "c", "address": "10.0.0.7:1", "library": "L", "connected_ms": 1, "acknowledged_ms": 0,
                "consumed_ms": 0, "messages": 2, "permits": 0, "is_active": True}
    details = {"consumer": "c", "messages": 2, "limit": 3, "until_ms": 5, "since_ms": 1, "key": "k", "hash": 7,
               "waiting": "d", "message": "1:2", "ranges": [[0, 9]], "rule": "dispatchRate of the broker: 3/s",
               "held_back": 1, "chunks": 2, "deaths": 3, "transaction": "(0,7)", "cluster": "far",
               "segments": [0, 3], "error": "a file is missing", "filter": "a = 1", "entries": 2,
               "schedule": "tick", "paused": True, "next": None, "last": "2026-03-29T03:00:00+02:00", "dropped": 2}
    for cause in [*sentences._SENTENCES, "something new"]:
        told = {"topic": "persistent://a/b/c", "subscription": "s", "type": "Shared", "backlog": 1, "oldest_ms": 1,
                "messages": {"published": 1, "acknowledged": 0, "backlog": 1}, "consumers": [consumer],
                "consumer_count": 1, "causes": [details | {"cause": cause}, details | {"cause": "no consumer"}]}
        lines = sentences.tell([told], "a/b/c", "s")
        assert len(lines) >= 3 and all(line.strip() for line in lines), cause
        assert "\n" not in sentences.in_short([told])

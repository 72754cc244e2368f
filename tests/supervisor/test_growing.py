"""Scalable topics whose segments split, merge and get entry buckets by themselves."""
import json
import os
import re
import subprocess
import sys

import psutil
import pytest

from geminga.supervisor.admin.scalable.growing import Cores

from ..harness import Broker, eventually, request
from ..proto.client_frames import T, entry_of, message_metadata, send
from ..workers.peer import Peer
from ..workers.test_scalable_topics import layout_of, register, segments_of
from .test_scalable_topics import Rest

_TOML = """[storage]
stats_window_s = 1
scale_interval_s = 1
scale_split_messages_in = 20
scale_split_cooldown_s = 0
scale_merge_messages_in = 2
scale_merge_messages_out = 2
scale_merge_cooldown_s = 0
scale_merge_window_s = 1
scale_segments_max = 2
"""


@pytest.fixture(scope="module")
def growing(tmp_path_factory):
    """A broker that looks at segments each second, and splits and merges them at once."""
    folder = tmp_path_factory.mktemp("growing")
    (folder / "geminga.toml").write_text(_TOML)
    made = Broker(folder / "data", "--config", str(folder / "geminga.toml"))
    made.start()
    yield made
    made.stop()


def active_of(rest):
    return sorted(int(number) for number, one in rest.get()["segments"].items() if one["active"])


def said(peer, frame):
    peer.say(frame)
    return peer.hear()


def operation_of(rest):
    said = rest.get("/stats")["layout"].get("lastOperation", {})
    return said.get("operation"), said.get("trigger"), said.get("status")


def test_a_segment_that_carries_much_is_split_and_merged_when_it_is_quiet_again(growing):
    rest = Rest(growing)
    rest.set("PUT")
    with Peer(growing.service_url) as peer:
        [segment] = segments_of(rest.name, layout_of(peer, rest.name).dag)
    with Peer(growing.service_url) as peer:
        peer.open_producer(segment)
        message = send(entry_of(message_metadata(), b"x"))
        while (answer := said(peer, message)).type == T.SEND_RECEIPT:      # until it takes no messages any more
            pass
        assert answer.type == T.SEND_ERROR, answer
    eventually(lambda: active_of(rest) == [3] and operation_of(rest) == ("merge", "auto", "success"))
    # The merge may have begun before this test could look at what the split left.
    lines = [line for line in growing.log().splitlines() if "changes by itself" in line and rest.name in line]
    assert [re.search(r"change=(\w+)", line)[1] for line in lines] == ["split", "merge"]
    assert sorted(rest.get()["segments"]["3"]["parentIds"]) == [1, 2]


def test_the_topics_policy_keeps_its_segments(growing):
    rest, moved = Rest(growing), Rest(growing)
    rest.set("PUT", "?numInitialSegments=2")
    rest.set("POST", "/autoScalePolicy", {"enabled": False})
    moved.set("PUT", "?numInitialSegments=2")
    eventually(lambda: active_of(moved) == [2])       # both were looked at together
    assert active_of(rest) == [0, 1]


def test_an_owner_is_as_busy_as_its_process():
    """A process that is new, or has ended, is not known."""
    spin = "import sys\nprint(flush=True)\nwhile True: pass"
    now, pids = [0.0], {0: os.getpid(), 1: 1 << 22}
    cores = Cores(lambda: pids, lambda: now[0])
    assert cores.used() == {}
    with subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE) as busy:
        busy.stdout.readline()
        pids[2] = busy.pid
        assert cores.used() == {}      # no time has passed
        before = sum(psutil.Process(busy.pid).cpu_times()[:2])
        eventually(lambda: sum(psutil.Process(busy.pid).cpu_times()[:2]) > before + 1)
        now[0] = 1.0
        used = cores.used()
        busy.kill()
    assert used.keys() == {0, 2} and used[2] > 1.0 > used[0]


def test_consumers_without_a_bucket_get_one_at_once(broker):
    """A fifth stream consumer of a topic with one segment and four buckets makes it eight, with nothing published."""
    rest = Rest(broker)
    rest.set("PUT")
    with Peer(broker.service_url) as peer:
        for number in range(5):
            register(peer, rest.name, f"c{number}", number)
        eventually(lambda: active_of(rest) == [1])
        assert operation_of(rest) == ("rebucket", "auto", "success")
        assert len(rest.get()["segments"]["1"]["entryBucketSplits"]) == 7


def test_consumers_are_left_where_the_policy_says_so(broker):
    rest, grown = Rest(broker), Rest(broker)
    for one in (rest, grown):
        one.set("PUT")
    rest.set("POST", "/autoScalePolicy", {"enabled": False})
    with Peer(broker.service_url) as peer:
        for number in range(5):
            register(peer, rest.name, f"c{number}", number)
        for number in range(5, 10):
            register(peer, grown.name, f"c{number}", number)
        eventually(lambda: active_of(grown) == [1])
        assert active_of(rest) == [0]


def test_the_most_specific_level_of_the_policy_wins(rest_of_namespace):
    rest, namespace = rest_of_namespace

    def policy():
        return rest.get("/stats")["autoScale"]["policy"]

    assert rest.ask("GET", "/autoScalePolicy") == (200, None)
    assert ask(rest, "POST", namespace, {"maxSegments": 8, "minSegments": 2})[0] == 204
    rest.set("POST", "/autoScalePolicy", {"maxSegments": 4})
    assert rest.get("/autoScalePolicy")["maxSegments"] == 4
    assert (policy()["maxSegments"], policy()["minSegments"], policy()["splitMsgRateInThreshold"]) == (4, 2, 10_000)
    assert rest.ask("POST", "/autoScalePolicy", {"maxSegments": 1}) == (
        412, {"reason": "Invalid auto split/merge configuration: maxSegments must be >= minSegments"})
    assert policy()["maxSegments"] == 4                   # what is refused changes nothing
    rest.set("DELETE", "/autoScalePolicy")
    assert policy()["maxSegments"] == 8
    assert ask(rest, "DELETE", namespace)[0] == 204
    assert policy()["maxSegments"] == 64


@pytest.mark.parametrize(("sent", "status"), [
    ({"maxSegments": 0}, 412), ({"splitMsgRateInThreshold": 0.5}, 412), ({"mergeWindowSeconds": -1}, 412),
    ({"maxSegments": "many"}, 400), ([], 400), ({"enabled": 7}, 400)])
def test_a_policy_that_contradicts_itself_is_refused(rest_of_namespace, sent, status):
    rest, namespace = rest_of_namespace
    for said in (rest.ask("POST", "/autoScalePolicy", sent), ask(rest, "POST", namespace, sent)):
        assert said[0] == status and said[1]["reason"], said


@pytest.fixture(scope="module")
def rest_of_namespace(broker):
    """A scalable topic, and the path of its namespace's policy."""
    rest = Rest(broker)
    rest.set("PUT")
    yield rest, f"{broker.http_url}/admin/v2/namespaces/public/default/scalableTopicAutoScalePolicy"
    rest.set("DELETE")


def ask(rest, method, url, body=None):
    status, text = request(method, url, None if body is None else json.dumps(body).encode())
    return status, json.loads(text) if text else None

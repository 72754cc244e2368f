"""Schedules on a standby that takes over: it goes on behind the last planned time, and repeats none."""
import json

import pytest

from geminga.storage.runtime.units import moment
from geminga.supervisor.main import main

from ..harness import eventually, path_of, request, unique_topic
from ..supervisor.test_schedules import make, put

pytestmark = pytest.mark.slow
SECOND_MS = 1_000


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_promoted_standby_goes_on_and_repeats_nothing(run, capsys, is_killed):
    """Each second is there once, over a planned promotion and over one behind a kill, also where a segment has split.
    """
    broker = run("first")
    standby = run("second", broker.service_url)
    regular, scalable = topics = [make(broker, unique_topic()) for _ in range(2)]
    for topic in topics:
        assert request("PUT", f"{broker.http_url}/admin/v2/{path_of(topic)}/subscription/keeps")[0] == 204
        put(broker, topic, "tick", every="1s", missed="all", at_most=1_000)

    def published(url, least):
        for topic in topics:
            status, text = request("GET", f"{url}/ops/v1/schedules/{path_of(topic)}/tick")
            if status != 200 or json.loads(text)["published"] < least:
                return False
        return True

    eventually(lambda: published(broker.http_url, 3))
    url = f"{broker.http_url}/admin/v2/scalable/{path_of(scalable).removeprefix('persistent/')}"
    for change in ("migrate", "split/1"):
        assert request("POST", f"{url}/{change}")[0] == 204
        eventually(lambda: published(broker.http_url, 1))
    standby.wait_complete()
    if is_killed:
        broker.kill_supervisor()
    promoted = standby.promote()
    assert promoted.returncode == 0, promoted.stderr
    eventually(lambda: published(standby.http_url, 3))
    for name in (regular, scalable.replace("persistent:", "topic:")):
        assert main(["consume", name, "-o", "jsonl", "--url", standby.service_url]) == 0
        messages = map(json.loads, capsys.readouterr().out.splitlines())
        times = sorted(moment(one["properties"]["geminga.scheduled-for"], 0) for one in messages)
        assert len(times) >= 6 and times == list(range(times[0], times[-1] + 1, SECOND_MS))

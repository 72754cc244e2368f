"""The page of schedules in a real browser: each action, what its dialog says, and who may not."""
import json
from urllib.parse import quote

import pytest

from ..harness import eventually, request, unique_topic
from .browser import needs_browser
from .test_message_rights import PATH, TOPIC, as_role, guarded  # noqa: F401 - a fixture
from .test_sessions import ask
from .test_topic import confirm, open_topic, path_of, rest

pytestmark = pytest.mark.slow
HOSTILE = "<b>\u202e"


@pytest.fixture
def topic(own):
    name = unique_topic("planned")
    rest(own, "PUT", f"/admin/v2/{path_of(name)}")
    return name


def schedule_of(own, topic, name="clean"):
    return rest(own, "GET", f"/ops/v1/schedules/{path_of(topic)}/{name}")


@needs_browser
def test_a_schedule_is_created_paused_resumed_tried_and_deleted(browser, own, topic, client):
    consumer = client.subscribe(topic, "jobs")
    browser.open(own.http_url + "/console/schedules?match=" + topic.rpartition("/")[2])
    browser.see("There is no schedule.")
    browser.click("Create a schedule")
    browser.fill("#field-topic", topic.removeprefix("persistent://"))
    browser.fill("#field-schedule", "clean")
    browser.fill("#field-when", "61 * * * *")
    browser.see("cron: 61 cannot be the minute")
    browser.fill("#field-when", "0 0 1 1 *")
    browser.fill("#field-time_zone", "Europe/Nowhere")
    browser.see("Europe/Nowhere is not in the tz database")
    browser.fill("#field-time_zone", "Europe/Berlin")
    browser.fill("#field-payload", "cache")
    browser.see("-01-01T00:00:00.000+01:00, and so on.")
    browser.click("Same by command")
    assert "--cron '0 0 1 1 *' --time-zone Europe/Berlin --missed last cache" in browser.text
    confirm(browser, "Set it")
    browser.see("0 0 1 1 * Europe/Berlin")
    assert schedule_of(own, topic)["message"] == {"payload": "cache"}
    browser.click("Pause")
    browser.see("Times that pass meanwhile are left out.")
    confirm(browser, "Pause")
    browser.see("paused")
    assert schedule_of(own, topic)["paused"]
    browser.click("Resume")
    browser.see("The next message is published at ")
    confirm(browser, "Resume")
    browser.see("active")
    assert not schedule_of(own, topic)["paused"]
    browser.click("Try")
    browser.see("One message is published in")
    confirm(browser, "Try")
    assert consumer.receive().data() == b"cache"
    browser.click("Delete")
    browser.see("The messages that it has published stay.")
    confirm(browser, "Delete")
    browser.see("There is no schedule.")
    assert rest(own, "GET", f"/ops/v1/schedules/{path_of(topic)}") == []


@needs_browser
def test_the_page_of_a_topic_names_it_and_says_what_is_replaced(browser, own, topic):
    rest(own, "PUT", f"/ops/v1/schedules/{path_of(topic)}/clean", {"every": "1h", "message": {"payload": "x"}})
    open_topic(browser, own, topic)
    browser.see("every 1 h 0 min")
    browser.click("Create a schedule")
    assert browser.one("#field-topic").get_attribute("value") == topic
    browser.fill("#field-schedule", "clean")
    browser.choose("#field-timing", "every")
    browser.fill("#field-when", "2h")
    browser.see("It replaces the schedule of this name, which publishes at: every 1 h 0 min.")
    confirm(browser, "Set it")
    browser.see("every 2 h 0 min")
    assert schedule_of(own, topic)["every"] == 7_200_000


def dialog(broker, action, role=None, **values):
    headers = as_role(role) if role else {}
    address = "&".join(f"{name}={quote(value, safe='')}" for name, value in values.items())
    return ask(broker, "GET", f"/console/actions/{action}?{address}", **headers).text


def test_a_dialog_says_what_is_replaced_and_that_there_is_nothing_to_do(own, topic):
    path = f"/ops/v1/schedules/{path_of(topic)}/clean"
    rest(own, "PUT", path, {"every": "1h", "message": {"payload": "x"}})
    made = dialog(own, "create-schedule", topic=topic, schedule="clean", timing="every", when="2h", payload="x")
    assert "It replaces the schedule of this name, which publishes at: every 1 h 0 min." in made
    assert "It is not paused." in dialog(own, "resume-schedule", topic=topic, schedule="clean")
    rest(own, "POST", f"{path}/pause")
    assert "It is paused already." in dialog(own, "pause-schedule", topic=topic, schedule="clean")
    for action in ("pause", "resume", "try", "delete"):
        gone = dialog(own, f"{action}-schedule", topic=topic, schedule=HOSTILE)
        assert "has no schedule &lt;b&gt;\\u202e" in gone and "<b>" not in gone and "data-method" not in gone


def test_a_schedule_of_a_scalable_topic_is_changed(own):
    name = unique_topic("scaled").replace("persistent://", "topic://")
    status, text = request("PUT", f"{own.http_url}/admin/v2/scalable/{name.partition('://')[2]}", json.dumps(
        {"initialSegments": 2}).encode())
    assert status in (200, 204), text
    made = dialog(own, "create-schedule", topic=name, schedule="clean", when="0 0 1 1 *", payload="x")
    assert f'data-path="/ops/v1/schedules/{path_of(name)}/clean"' in made, made
    rest(own, "PUT", f"/ops/v1/schedules/{path_of(name)}/clean", {"every": "1h", "message": {"payload": "x"}})
    assert f'data-path="/ops/v1/schedules/{path_of(name)}/clean/run"' in dialog(
        own, "try-schedule", topic=name, schedule="clean")


def test_only_producers_may_change_schedules(guarded):  # noqa: F811
    made = ask(guarded, "PUT", f"/ops/v1/schedules/{PATH}/daily", {"every": "1h", "message": {"payload": "secret"}},
               **as_role("producer"))
    assert made.status == 200, made.text
    values = {"topic": TOPIC, "schedule": "daily"}
    for action, more in (("create", {"when": "0 0 1 1 *", "payload": "x"}), ("pause", {}), ("try", {}), ("delete", {})):
        assert "data-method" in dialog(guarded, f"{action}-schedule", "producer", **values, **more)
        refused = dialog(guarded, f"{action}-schedule", "consumer", **values, **more)
        assert "data-method" not in refused and "Not authorized" in refused and "secret" not in refused
    assert "daily" in ask(guarded, "GET", f"/console/topics/{PATH}", **as_role("producer")).text
    for role in ("producer", "consumer"):      # the page of all topics is for super users
        assert ask(guarded, "GET", "/console/schedules", **as_role(role)).status in (401, 403)
    assert "try-schedule" not in ask(guarded, "GET", f"/console/topics/{PATH}", **as_role("consumer")).text
    eventually(lambda: "try-schedule" in ask(guarded, "GET", "/console/schedules", **as_role("admin")).text)

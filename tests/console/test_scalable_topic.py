"""Pages of scalable topics and of their subscriptions: what they show, what they change, and who may."""
import html
import re
from urllib.parse import quote, urlencode

import pytest

from ..harness import eventually, unique_topic
from ..workers.peer import Peer
from ..workers.test_scalable_topics import assigned_to, layout_of, publish, register, segments_of
from .browser import needs_browser
from .test_sessions import ask, several, sign_in, token, two_namespaces  # noqa: F401 - a fixture
from .test_topic import confirm, open_topic, rest

pytestmark = pytest.mark.slow
HOSTILE = "100% & more+\"q\"<i>‮#?"


def scalable(topic):
    return "/admin/v2/scalable/" + "/".join(quote(part, safe="") for part in topic.split("/", 4)[2:])


def made(own, topic, segments=2):
    """Make a scalable topic with a message in each segment, which its subscription has not acknowledged."""
    rest(own, "PUT", f"{scalable(topic)}?numInitialSegments={segments}", {"team": "web"})
    rest(own, "PUT", f"{scalable(topic)}/subscriptions/billing?type=QUEUE")
    with Peer(own.service_url) as peer:
        for number, segment in enumerate(segments_of(topic, layout_of(peer, topic).dag)):
            publish(peer, segment, b"x", producer_id=number)
    return topic


@pytest.fixture
def topic(own):
    return made(own, unique_topic("segmented").replace("persistent://", "topic://"))


def rows(browser, section):
    return browser.run("return [...document.querySelectorAll(`section[aria-labelledby=${arguments[0]}] tbody tr`)]"
                       ".map((row) => row.innerText.split(/\\s+/).join(' '))", section)


@needs_browser
def test_a_scalable_topic_is_found_split_merged_and_deleted(browser, own, topic):
    browser.open(f"{own.http_url}/console/topics?match={topic.rpartition('/')[2]}")
    browser.see(" 2 segments")
    browser.click(topic)
    browser.see("2 segments.")
    assert browser.one("h1").text == f"{topic.rpartition('/')[2]} scalable"
    assert [re.match(r"(\d) (\S+) active 2 \S+ 0 1 ", row)[2] for row in rows(browser, "segments")] == [
        "0000-7fff", "8000-ffff"]
    browser.click("Split")
    browser.see("Segment 0 is sealed, and two others get half of its hashes each.")
    browser.click("Same by command")
    assert f"geminga admin scalable-topics split-segment {topic} -s 0" in browser.text
    assert f"POST {scalable(topic)}/split/0" in browser.text
    confirm(browser, "Split")
    browser.see("3 segments, one sealed.")
    eventually(lambda: [row.split()[0] for row in rows(browser, "segments")] == ["2", "3", "1", "0"])
    shown = rows(browser, "segments")
    assert "after 0" in shown[0] and "before 2, 3" in shown[3] and "Split" not in shown[3]
    browser.see("split of 0 at ")
    browser.click("Merge with 3")
    browser.see("Segments 2 and 3 are sealed, and another one gets their hashes.")
    confirm(browser, "Merge")
    eventually(lambda: [row.split()[0] for row in rows(browser, "segments")] == ["4", "1", "0", "2", "3"])
    browser.click("Delete")
    browser.see("The topic is deleted with its 5 segments")
    browser.see("One subscription ends.")
    browser.click("Delete")
    eventually(lambda: browser.url.endswith("/console/topics"))
    rest(own, "GET", scalable(topic), expected=(404,))


@needs_browser
def test_subscriptions_and_clients_of_all_segments_are_shown_and_a_backlog_cleared(browser, own, topic):
    rest(own, "PUT", f"{scalable(topic)}/subscriptions/idle")
    with Peer(own.service_url) as peer:
        first, second = segments_of(topic, layout_of(peer, topic).dag)
        for number, segment in enumerate((first, second)):
            peer.open_producer(segment, producer_id=number)
            peer.subscribe(segment, "idle", consumer_id=number)
        open_topic(browser, own, topic)
        browser.see("segments 0, 1")
        assert len(rows(browser, "producers")) == 2
        assert [row.split()[:3] for row in rows(browser, "subscriptions")] == [
            ["billing", "QUEUE", "2"], ["idle", "STREAM", "2"]]
        browser.click("idle")
        browser.see("Where it stands")
        browser.click("Unsubscribe")
        browser.see("It has a consumer.")
        browser.click("Cancel")
    open_topic(browser, own, topic)
    browser.click("billing")
    browser.see("Where it stands")
    assert not {"Skip", "Expire messages", "Reset to a message"} & {one.text for one in browser.all("main button")}
    browser.click("Reset to a time")
    browser.see("in all segments; 2 messages are unacknowledged so far.")
    browser.click("Cancel")
    browser.click("Clear")
    browser.see("All 2 messages of the backlog are acknowledged")
    confirm(browser, "Clear it")
    eventually(lambda: rest(own, "GET", f"{scalable(topic)}/stats")["subscriptions"]["billing"]["msgBacklog"] == 0)
    browser.click("Unsubscribe")
    browser.see("The subscription and its position are deleted; 0 messages")
    browser.click("Delete it")
    eventually(lambda: list(rest(own, "GET", f"{scalable(topic)}/stats")["subscriptions"]) == ["idle"])


@needs_browser
def test_messages_of_all_segments_are_searched(browser, own, topic):
    open_topic(browser, own, topic)
    browser.run("document.querySelector('main a.button').click()")
    eventually(lambda: "/console/messages?place=" in browser.url)
    browser.one("form[data-search]")
    assert not browser.all("form[data-tail], main [data-action=publish]")
    browser.run("document.querySelector('form[data-search] button.primary').click()")
    browser.see("Everything was searched: 2 found.")
    assert len(browser.all("article")) == 2


@needs_browser
def test_a_scalable_topic_with_an_odd_name_is_created_and_keeps_its_page_up_to_date(browser, own):
    name = f"topic://public/default/{HOSTILE}"
    browser.open(f"{own.http_url}/console/topics")
    browser.click("Create a topic")
    browser.fill("#field-topic", name)
    browser.fill("#field-partitions", "2")
    browser.see("A scalable topic with 2 segments is created")
    browser.click("Create")
    browser.see("There is no subscription: messages wait for the first ones.")
    assert browser.one("h1").text == HOSTILE.replace("‮", "\\u202e") + " scalable"
    rest(own, "PUT", f"{scalable(name)}/subscriptions/{quote('<b>sub‮', safe='')}")
    browser.see("<b>sub\\u202e")
    browser.click("Unsubscribe")
    browser.click("Delete it")
    browser.see("There is no subscription")
    assert browser.all("main b, main i") == []
    rest(own, "DELETE", scalable(name))
    browser.see("There is nothing here")
    browser.problems()      # the page is answered with 404


def dialog(broker, action, cookie="", **values):
    headers = {"Cookie": cookie} if cookie else {}
    return html.unescape(ask(broker, "GET", f"/console/actions/{action}?{urlencode(values)}", **headers).text)


def test_what_is_gone_cannot_be_changed(own, topic):
    rest(own, "POST", f"{scalable(topic)}/split/0")
    for action, values, why in (
            ("split-segment", {"segment": "0"}, "The segments have changed"),
            ("split-segment", {"segment": "<b>"}, "The segments have changed"),
            ("merge-segments", {"segment": "2", "other": "1"}, "The segments have changed"),
            ("merge-segments", {"segment": "0", "other": "1"}, "The segments have changed"),
            ("unsubscribe-scalable", {"subscription": "nobody"}, "There is no such subscription"),
            ("create-topic", {"topic": topic, "partitions": "1"}, "A topic of this name exists already")):
        told = dialog(own, action, **({"topic": topic} | values))
        assert why in told and "data-method" not in told, told
    gone = dialog(own, "delete-scalable-topic", topic=f"{topic}-gone")
    assert "Scalable topic not found" in gone and "data-method" not in gone


def test_a_subscription_of_some_segments_has_a_page_that_names_the_others(own, topic):
    """A reader may have one, or a client that subscribes to segments by itself."""
    with Peer(own.service_url) as peer:
        peer.subscribe(segments_of(topic, layout_of(peer, topic).dag)[0], "some", consumer_id=1)
        path = f"/console/topics/{topic.replace('://', '/')}"
        page = ask(own, "GET", path).text
        assert "not in: 1" in page and f"{path}/subscriptions/some" in page
        assert "segment 1: without this subscription." in ask(own, "GET", f"{path}/subscriptions/some").text


def test_a_consumer_that_has_left_keeps_its_segments_but_no_subscription(own, topic):
    rest(own, "PUT", f"{scalable(topic)}/subscriptions/sub")
    subject = {"topic": topic, "subscription": "sub"}
    with Peer(own.service_url) as peer:
        register(peer, topic, "worker-1")
        assigned_to(peer)
        assert "One producer or consumer is disconnected." in dialog(own, "delete-scalable-topic", topic=topic)
        busy = dialog(own, "unsubscribe-scalable", **subject)
        assert "It has a consumer." in busy and "data-method" not in busy
    eventually(lambda: "its connection has ended" in ask(
        own, "GET", f"/console/topics/{topic.replace('://', '/')}").text)
    assert "data-method" in dialog(own, "unsubscribe-scalable", **subject)
    assert "disconnected" not in dialog(own, "delete-scalable-topic", topic=topic)
    rest(own, "DELETE", f"{scalable(topic)}/subscriptions/sub")


@pytest.fixture(scope="module")
def guarded(several):  # noqa: F811
    """A broker with a scalable topic in each of two namespaces, and a role that may use one of these."""
    orders = "/admin/v2/scalable/acme/{namespace}/orders"
    two_namespaces(several, f"{orders}?numInitialSegments=2", f"{orders}/subscriptions/billing")
    return several


def test_a_role_sees_and_may_what_rest_allows(guarded):
    reader, admin = (sign_in(guarded, token=token(role)) for role in ("reader", "admin"))
    page = ask(guarded, "GET", "/console/topics/topic/acme/eu/orders", Cookie=reader)
    assert page.status == 200 and "0000-7fff" in page.text and "billing" in page.text
    assert 'id="policies"' not in page.text
    assert 'id="policies"' in ask(guarded, "GET", "/console/topics/topic/acme/eu/orders", Cookie=admin).text
    for path in ("", "/subscriptions/billing"):
        assert ask(guarded, "GET", f"/console/topics/topic/acme/eu/orders{path}", Cookie=reader).status == 200
        assert ask(guarded, "GET", f"/console/topics/topic/acme/us/orders{path}", Cookie=reader).status in (401, 403)
    topic, subscription = {"topic": "topic://acme/eu/orders"}, {"subscription": "billing"}
    for action, values in (("split-segment", {"segment": "0"}), ("merge-segments", {"segment": "0", "other": "1"}),
                           ("delete-scalable-topic", {})):
        told = dialog(guarded, action, reader, **topic, **values)
        assert "You may not do this" in told and "data-method" not in told
        assert "data-method" in dialog(guarded, action, admin, **topic, **values)
    assert "data-method" in dialog(guarded, "unsubscribe-scalable", reader, **topic, **subscription)
    told = dialog(guarded, "clear-backlog", reader, topic="topic://acme/us/orders", **subscription)
    assert "data-method" not in told

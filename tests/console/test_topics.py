"""The tables of topics and subscriptions in a real browser, with 10,000 topics, by mouse and by keyboard."""
import json
from urllib.parse import quote

import pytest

from ..harness import eventually, request, unique_topic
from .browser import needs_browser

pytestmark = [pytest.mark.slow, needs_browser]
MANY = 10_000
PREFIX = "persistent://public/default/"
HOSTILE = ("<script>window.broken=1<script>", "a%2Fb%25", "‮gnp.exe", "\"'&<b>", "x y+z 100%", "*?[a]")
_VISIBLE = """
    const box = document.querySelector('.rows').getBoundingClientRect();
    const head = document.querySelector('.rows thead').getBoundingClientRect();
    return [...document.querySelectorAll('.rows tbody tr[aria-rowindex]')].filter((row) => {
        const place = row.getBoundingClientRect();
        return place.bottom > head.bottom + 1 && place.top < box.bottom - 1;
    }).map((row) => row.querySelector('th').innerText.trim());
"""


@pytest.fixture(scope="module", autouse=True)
def filled(own):
    """10,000 partitions of one topic, a few topics of their own, and those with hostile names."""
    put(own, "public/default/many/partitions", b"%d" % MANY)
    put(own, "public/default/lonely")
    for name in HOSTILE:
        put(own, f"public/default/{quote(name, safe='')}")


def put(own, path, body=None, domain="persistent"):
    status, text = request("PUT", f"{own.http_url}/admin/v2/{domain}/{path}", body)
    assert status == 204, text


def open_table(browser, own, query=""):
    browser.open(f"{own.http_url}/console/topics{query}")
    eventually(lambda: browser.run("return 'rowsReady' in document.documentElement.dataset"))


def names(browser):
    """Return the names that can be read in the table now."""
    return browser.run(_VISIBLE)


def focused(browser):
    return browser.run("return document.activeElement.closest('tbody tr')?.querySelector('th').innerText.trim() ?? ''")


def sorted_names():
    return sorted([f"public/default/many-partition-{n}" for n in range(MANY)] + ["public/default/lonely"])


def test_the_last_of_10_000_topics_is_reached_by_scrolling(browser, own):
    open_table(browser, own, "?match=many*")
    browser.see(f"{MANY:,} topics and partitions")
    assert browser.run("return document.querySelector('.rows table').getAttribute('aria-rowcount')") == str(MANY + 1)
    browser.run("document.querySelector('.rows').scrollTop = 1e9")
    eventually(lambda: "public/default/many-partition-9999" in names(browser))
    assert browser.run("return document.querySelectorAll('.rows tbody tr').length") < 500, "the others are not there"
    browser.run("const box = document.querySelector('.rows'); box.scrollTop = box.scrollHeight / 2")
    middle = sorted(f"public/default/many-partition-{n}" for n in range(MANY))[MANY // 2]
    eventually(lambda: middle in names(browser))
    row = browser.run("""return [...document.querySelectorAll('.rows tr[aria-rowindex]')]
        .find((row) => row.innerText.includes(arguments[0])).getAttribute('aria-rowindex')""", middle)
    assert row == str(MANY // 2 + 2), "the heading is the first row"


def test_scrolling_through_all_topics_does_not_hold_the_page_up(browser, own):
    """Frames of a page that scrolls through everything come in time, apart from a few when windows arrive."""
    open_table(browser, own, "?match=many*")
    browser.see(f"{MANY:,} topics")
    frames = browser.driver.execute_async_script("""
        const done = arguments[0], box = document.querySelector('.rows'), times = [];
        let before = performance.now(), steps = 0;
        requestAnimationFrame(function step(now) {
            times.push(now - before);
            before = now;
            box.scrollTop += box.scrollHeight / 120;
            if (++steps < 120) requestAnimationFrame(step); else done(times);
        });""")
    frames.sort()
    assert frames[len(frames) // 2] < 100, frames[-10:]
    eventually(lambda: "public/default/many-partition-9999" in names(browser))


def test_topics_are_sorted_both_ways_without_a_new_page(browser, own, client):
    busy = unique_topic("busy")
    client.subscribe(busy, "idle").close()
    producer = client.create_producer(busy)
    for _ in range(25):
        producer.send(b"message")
    open_table(browser, own)
    browser.run("window.stayed = true")
    browser.click("Backlog")
    eventually(lambda: names(browser)[:1] == [busy.removeprefix("persistent://")])
    assert "25" in browser.one(".rows tbody tr[aria-rowindex='2']").text
    assert [th.text for th in browser.all(".rows th[aria-sort='descending']")] == ["Backlog"]
    browser.click("Topic")
    eventually(lambda: browser.all(".rows th[aria-sort='ascending']"))
    first = names(browser)[0]
    browser.click("Topic")
    eventually(lambda: browser.all(".rows th[aria-sort='descending']") and names(browser)[0] != first)
    assert "sort=topic" in browser.url and "reverse=true" in browser.url
    assert browser.run("return window.stayed")
    producer.close()


def test_typing_finds_topics_at_once(browser, own):
    open_table(browser, own)
    browser.run("window.stayed = true")
    browser.fill("form[data-narrows] input[name=match]", "lonely")
    eventually(lambda: names(browser) == ["public/default/lonely"])
    browser.see("One topic or partition")
    browser.fill("form[data-narrows] input[name=match]", "many-partition-999?")
    eventually(lambda: len(names(browser)) == 10)
    assert "match=many-partition-999" in browser.url and browser.run("return window.stayed")
    assert browser.run("return document.activeElement.name") == "match"


def test_topics_are_narrowed_by_tenant_namespace_and_state(browser, own):
    assert request("PUT", f"{own.http_url}/admin/v2/tenants/acme",
                   json.dumps({"allowedClusters": ["standalone"]}).encode())[0] == 204
    assert request("PUT", f"{own.http_url}/admin/v2/namespaces/acme/eu", b"{}")[0] == 204
    put(own, "acme/eu/orders")
    put(own, "acme/eu/live", domain="non-persistent")
    open_table(browser, own)
    browser.choose("select[name=tenant]", "acme")
    eventually(lambda: names(browser) == ["acme/eu/live non-persistent", "acme/eu/orders"])
    browser.choose("select[name=namespace]", "eu")
    eventually(lambda: "namespace=eu" in browser.url)
    browser.choose("select[name=state]", "non-persistent")
    eventually(lambda: names(browser) == ["acme/eu/live non-persistent"])
    browser.choose("select[name=tenant]", "All")
    browser.choose("select[name=state]", "not loaded")
    eventually(lambda: "public/default/lonely" in names(browser) or len(names(browser)) > 5)
    browser.see("not loaded")
    assert len(browser.all(".rows tbody td.idle")) == len(browser.all(".rows tbody tr[aria-rowindex]"))


def test_the_table_is_used_by_keyboard_alone(browser, own):
    open_table(browser, own, "?match=many-partition*")      # another table than those that were scrolled
    names_ = sorted(f"public/default/many-partition-{n}" for n in range(MANY))
    browser.run("document.querySelector('.rows').focus()")
    reached = []
    while not focused(browser) and len(reached) < 12:      # the headings are reached before the rows
        browser.press("TAB")
        reached.append(browser.run("return document.activeElement.outerHTML.slice(0, 100)"))
    assert focused(browser) == names_[0], reached
    browser.press("ARROW_DOWN")
    eventually(lambda: focused(browser) == names_[1])
    browser.press("END")
    eventually(lambda: focused(browser) == names_[-1])
    browser.press("PAGE_UP")
    eventually(lambda: focused(browser) in names_[-60:-5])
    browser.press("HOME")
    eventually(lambda: focused(browser) == names_[0])
    browser.press("ARROW_RIGHT")
    assert browser.run("return document.activeElement.textContent") == "Delete"
    browser.press("ARROW_LEFT")
    browser.press("ENTER")
    browser.see("partition")
    assert browser.url.endswith("/console/topics/persistent/public/default/many-partition-0")


def test_a_key_reaches_the_last_row_although_the_broker_is_busy(browser, own):
    """The row is waited for where the answer is an error at first, and the next one is late."""
    open_table(browser, own, "?match=many-partition*")
    browser.run("""const real = window.fetch;
        let asked = 0;
        window.fetch = async (...words) => {
          if (asked++ === 0) return new Response("", { status: 503 });
          await new Promise((resolve) => setTimeout(resolve, 1000));
          return real(...words);
        };
        document.querySelector('.rows tbody a').focus();""")
    browser.press("END")
    eventually(lambda: focused(browser) == sorted_names()[-1])
    browser.press("HOME")
    eventually(lambda: focused(browser).endswith("many-partition-0"))


def test_the_way_back_from_a_topic_ends_where_it_began(browser, own):
    open_table(browser, own, "?match=many*")
    browser.run("document.querySelector('.rows').scrollTop = 60_000")
    eventually(lambda: names(browser))
    place = names(browser)[3]
    browser.run("""[...document.querySelectorAll('.rows tbody a')]
        .find((link) => link.innerText === arguments[0]).click()""", place)
    browser.see("partition")
    browser.run("history.back()")
    eventually(lambda: place in names(browser))


def test_hostile_names_are_shown_as_they_are(browser, own):
    for name in HOSTILE:
        open_table(browser, own, "?" + "match=" + quote(name.replace("‮", "") if "‮" in name else
                                                        name.replace("*", "?").replace("[", "?"), safe=""))
        shown = f"public/default/{name}".replace("‮", "\\u202e")
        eventually(lambda shown=shown: shown in names(browser), what=shown)
        browser.click(shown)
        browser.see("There is no subscription")
        assert shown.removeprefix("public/default/") in browser.one("h1").text
    assert not browser.run("return window.broken")


def test_a_topic_is_created_and_deleted(browser, own):
    open_table(browser, own)
    browser.click("Create a topic")
    browser.fill("#field-topic", "public/default/lonely")
    browser.see("A topic of this name exists already.")
    browser.fill("#field-topic", "non-persistent://public/default/made")
    browser.fill("#field-partitions", "3")
    browser.see("A topic with 3 partitions is created.")
    browser.click("Same by command")
    assert "geminga admin topics create-partitioned-topic non-persistent://public/default/made -p 3" in browser.text
    assert "PUT /admin/v2/non-persistent/public/default/made/partitions" in browser.text
    browser.click("Create")
    eventually(lambda: browser.url.endswith("/console/topics/non-persistent/public/default/made"))
    browser.see("3 partitions")
    open_table(browser, own, "?match=made")
    browser.see("3 topics and partitions")
    browser.click("Delete")
    browser.see("The topic is deleted with its 3 partitions")
    browser.click("Delete")
    browser.see("0 topics and partitions")
    assert "match=made" in browser.url


def test_deleting_a_used_topic_has_to_be_meant(browser, own, client):
    topic = unique_topic("used")
    consumer = client.subscribe(topic, "reader")
    producer = client.create_producer(topic)
    for _ in range(3):
        producer.send(b"message")
    open_table(browser, own, f"?match={topic.rpartition('/')[2]}")
    browser.see("One topic or partition")
    browser.click("Delete")
    browser.see("The topic is used. Producers and consumers: 2; subscriptions: 1.")
    assert not browser.one("dialog[open] [data-confirm]").is_enabled()
    browser.one("#field-force").click()
    browser.see("2 producers and consumers are disconnected.")
    assert "Of these, 3 are in the backlog" in browser.text
    consumer.close()
    producer.close()      # else they would have the topic created again
    browser.click("Delete")
    browser.see("0 topics and partitions")
    assert request("GET", f"{own.http_url}/admin/v2/{topic.replace('://', '/')}/stats")[0] == 404


def test_the_table_of_subscriptions_finds_one_by_its_name(browser, own, client):
    topic = unique_topic("subscribed")
    for name in ("billing", "audit", "<b>bold"):
        client.subscribe(topic, name).close()
    browser.open(f"{own.http_url}/console/subscriptions?match={topic.rpartition('/')[2]}")
    eventually(lambda: len(names(browser)) == 3)
    browser.fill("form[data-narrows] input[name=subscription]", "bold")
    eventually(lambda: names(browser) == ["<b>bold"])
    assert browser.one(".rows tbody th a").get_attribute("href").endswith("/subscriptions/%3Cb%3Ebold")
    browser.click("Same by command")
    browser.see("geminga subscriptions ")


def test_the_table_says_that_the_broker_is_away_and_goes_on_after_it(browser, own):
    open_table(browser, own, "?match=lonely")
    own.stop()
    browser.see("The broker does not answer.")
    own.start()
    eventually(lambda: "The broker does not answer." not in browser.text)
    assert names(browser) == ["public/default/lonely"]
    browser.problems()      # requests that failed meanwhile

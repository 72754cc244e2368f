"""Pages fit into windows of a phone, a tablet and two desktops, with long names and large numbers in them.

The scripts measure what a person would see: what lies beyond the window, texts that lie on each other, numbers that are
cut, words that are broken letter by letter.
"""
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pulsar
import pytest

from ..harness import HANG_MS, Broker, eventually, request
from ..supervisor.test_transactions import begin_with_message
from ..workers.peer import Peer
from .browser import Browser, needs_browser

pytestmark = [pytest.mark.slow, needs_browser]
WIDTHS = 390, 900, 1280, 1920
LONG = "a-rather-long-topic-name-of-the-kind-that-deployments-generate-7f3c2b19-5d4e-4b8a-9c1d-0e2f3a4b5c6d"
UNBROKEN = "ATopicNameWithoutAnyPlaceToBreakItAsJavaClassesHaveThemInLargeOrganisations"
SUBSCRIPTION = "a-rather-long-subscription-name.of.the.kind-that-frameworks-make-0e2f3a4b"
MESSAGES = 123_456

OUTSIDE = """
const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
const seen = (one) => one.checkVisibility() && one.getBoundingClientRect().width > 0;
const beyond = [...document.querySelectorAll('main button, main a.button')].filter(seen)
  .filter((one) => one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.textContent.trim());
return [wide > 0 ? ["page", wide] : null, ...beyond].filter(Boolean);
"""
CUT = """
return [...document.querySelectorAll('td.number, .figure, .rows thead a, .rows td:not(:has(a))')]
  .filter((one) => one.checkVisibility())
  .filter((one) => one.scrollWidth > one.clientWidth + 1 && one.clientWidth > 0).map((one) => one.textContent.trim());
"""
OVERLAPPING = """
const main = document.querySelector('main'), texts = [];
const walker = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const holder = node.parentElement;
  if (!node.textContent.trim() || !holder.checkVisibility()) continue;
  if (getComputedStyle(holder.closest('thead') ?? holder).clipPath !== 'none') continue;      // for ears only
  if (holder.closest('.rows, .unseen, dialog, select, .tall')) continue;
  if (getComputedStyle(holder.closest('td, th') ?? holder).position === 'sticky') continue;
  const range = document.createRange();
  range.selectNodeContents(node);
  for (const box of range.getClientRects()) if (box.width > 1) texts.push([box, node.textContent.trim()]);
}
texts.sort((one, other) => one[0].top - other[0].top);
const found = [];
texts.forEach(([one, text], at) => {
  for (let next = at + 1; next < texts.length && texts[next][0].top < one.bottom - 4; next += 1) {
    const other = texts[next][0];
    if (Math.min(one.right, other.right) - Math.max(one.left, other.left) > 1 &&
        Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > 4) found.push([text, texts[next][1]]);
  }
});
return found;
"""
TOUCHING = """
return [...document.querySelectorAll('dl.fields')].flatMap((list) => [...list.children].filter((one) => {
  const next = one.nextElementSibling?.getBoundingClientRect(), range = document.createRange();
  range.selectNodeContents(one);
  const own = range.getBoundingClientRect();
  return next && Math.abs(next.top - one.getBoundingClientRect().top) < 2 && own.right > next.left - 4;
}).map((one) => one.textContent.trim()));
"""
BROKEN = """
const found = [];
for (const cell of document.querySelectorAll('main .wide td, main .wide th')) {
  if (!cell.checkVisibility()) continue;
  const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    for (const word of node.textContent.matchAll(/(?<![^\\s-])[^\\s-]{2,14}(?![^\\s-])/g)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const tops = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
      if (tops.size > 1) found.push(word[0]);
    }
  }
}
return found;
"""

WRONG = """
const main = document.querySelector('main');
main.innerHTML = `<div class="wide"><table><tr><td>deployments</td></tr></table></div>
  <div><span>one text</span><span>another</span></div><p class="figure">123,456</p>
  <dl class="fields"><dt>a long term</dt><dd>b</dd></dl><button>Abort</button>`;
const styles = {"table": {tableLayout: "fixed", width: "30px"}, "td": {overflowWrap: "anywhere", minWidth: "0"},
                "div": {position: "relative"}, "span": {position: "absolute"},
                ".figure": {width: "10px", overflow: "hidden", whiteSpace: "nowrap"},
                "dl": {gridTemplateColumns: "20px 20px"}, "dt": {whiteSpace: "nowrap"},
                "button": {position: "absolute", left: "3000px"}};
for (const [selector, style] of Object.entries(styles))
  for (const one of main.querySelectorAll(selector)) Object.assign(one.style, style);
"""


@pytest.fixture(scope="module")
def filled(own: Broker) -> Iterator[Broker]:
    """A broker with what is hard to lay out: long names, six digits, an open transaction, grants, policies."""
    client = pulsar.Client(own.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    for name in (LONG, UNBROKEN):
        topic = f"persistent://public/default/{name}"
        consumer = client.subscribe(topic, SUBSCRIPTION, pulsar.ConsumerType.Shared, consumer_name=f"consumer-{LONG}",
                                    receiver_queue_size=10)
        producer = client.create_producer(topic, producer_name=f"producer-{LONG}", block_if_queue_full=True,
                                          max_pending_messages=50_000, batching_max_messages=10_000,
                                          batching_enabled=True)
        for number in range(MESSAGES):
            properties = None if number % 5_000 else {"a-property-with-a-long-name": "and a long value " * 4}
            producer.send_async(b"a message of some bytes", None, partition_key=f"customer-{number % 7}",
                                properties=properties)
        producer.flush()
        assert consumer.receive(HANG_MS)
    role = quote("a-role-with-a-long-name@a-domain-with-a-long-name.example.com", safe="")
    assert request("POST", f"{own.http_url}/admin/v2/namespaces/public/default/permissions/{role}",
                   b'["produce", "consume"]')[0] < 300
    assert request("POST", f"{own.http_url}/admin/v2/persistent/public/default/{LONG}/retention",
                   b'{"retentionTimeInMinutes": 100000, "retentionSizeInMB": 123456}')[0] < 300
    assert request("PUT", f"{own.http_url}/admin/v2/persistent/public/default/{LONG}/subscription/idle", b"")[0] < 300
    for more in ("?numInitialSegments=64", f"/subscriptions/{SUBSCRIPTION}"):
        assert request("PUT", f"{own.http_url}/admin/v2/scalable/public/default/{LONG}-wide{more}")[0] == 204
    assert request("POST", f"{own.http_url}/admin/v2/scalable/public/default/{LONG}-wide/split/0")[0] == 204
    with Peer(own.service_url) as peer:
        begin_with_message(peer, 0, topic)
        yield own
    client.close()


TOPIC = f"/console/topics/persistent/public/default/{LONG}"
SCALABLE = f"/console/topics/topic/public/default/{LONG}-wide"
PAGES = ["/", "/console/topics", TOPIC, f"/console/topics/persistent/public/default/{UNBROKEN}",
         "/console/subscriptions", f"{TOPIC}/subscriptions/{SUBSCRIPTION}",
         f"/console/messages?place=public/default/{LONG}", "/console/delayed", "/console/schedules", "/console/clients",
         "/console/transactions", "/console/tenants", "/console/tenants/public", "/console/namespaces/public/default",
         "/console/access", "/console/audit", "/console/nights", "/console/configuration", "/console/log",
         "/console/documents", "/console/documents/docs/policies.md", SCALABLE,
         f"{SCALABLE}/subscriptions/{SUBSCRIPTION}"]


def laid_out(browser: Browser, width: int) -> dict[str, list[Any]]:
    """Return what is wrong with the page that is open, in a window of this width."""
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500})
    scripts = {"outside": OUTSIDE, "cut": CUT, "overlapping": OVERLAPPING, "touching": TOUCHING, "broken": BROKEN}
    return {name: found for name, script in scripts.items() if (found := browser.run(script))}


@pytest.fixture
def sized(browser: Browser) -> Iterator[Browser]:
    yield browser
    browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("path", PAGES)
def test_nothing_is_cut_covered_broken_or_outside(sized, filled, path):
    """In a window of each width."""
    sized.open(filled.http_url + path)
    sized.one("h1")
    if "messages?" in path:
        eventually(lambda: sized.all("article"))
    assert {width: wrong for width in WIDTHS if (wrong := laid_out(sized, width))} == {}


def test_the_checks_see_what_is_wrong(sized, filled):
    """A canary for each script."""
    sized.open(f"{filled.http_url}/console/tenants")
    sized.one("h1")
    sized.run(WRONG)
    assert sorted(laid_out(sized, 1280)) == ["broken", "cut", "outside", "overlapping", "touching"]

"""Makes the pictures of docs/console: every page of a broker that this program fills, in light and dark.

    python -m tests.console.screenshots [--to docs/console] [--only overview,topics]

The page docs/console.md lists the pictures; its last section is written anew.
"""
import argparse
import base64
import tempfile
import threading
import time
from pathlib import Path

import pulsar

from geminga.proto import pulsar_api_pb2 as api

from ..harness import HANG_MS, Broker, request
from ..proto.client_frames import T, command
from ..workers.peer import Peer
from ..workers.test_scalable_topics import layout_of, publish, segments_of
from .browser import Browser

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "console.md"
HEADING = "## All pages in light and dark"
TOPIC = "persistent/acme/shop/orders"
SCALABLE = "acme/shop/clicks"
_PEERS: list[Peer] = []      # which have producers and consumers open
PAGES = {
    "overview": "/", "topics": "/console/topics", "topic": f"/console/topics/{TOPIC}",
    "scalable-topic": f"/console/topics/topic/{SCALABLE}",
    "subscriptions": "/console/subscriptions", "subscription": f"/console/topics/{TOPIC}/subscriptions/billing",
    "messages": "/console/messages?place=acme/shop/orders&key=customer-3", "delayed": "/console/delayed",
    "clients": "/console/clients", "transactions": "/console/transactions", "tenants": "/console/tenants",
    "tenant": "/console/tenants/acme", "namespace": "/console/namespaces/acme/shop", "access": "/console/access",
    "audit": "/console/audit", "nights": "/console/nights", "configuration": "/console/configuration",
    "log": "/console/log", "documents": "/console/documents"}
WIDTH, HEIGHT_MAX = 1280, 1600
SETTLE_SECONDS = 4           # until curves have some points
QUALITY = 70                 # of a picture, in %: letters stay sharp, and a picture takes some 30 KB


def fill(broker: Broker) -> pulsar.Client:
    """Make a broker that looks lived in; returns a client whose producers and consumers go on."""
    def ask(method: str, path: str, body: bytes | None = b"") -> None:
        status, text = request(method, broker.http_url + path, body)
        assert status < 300 or status == 409, (path, status, text)

    ask("PUT", "/admin/v2/tenants/acme", b'{"adminRoles": ["alice"], "allowedClusters": ["standalone"]}')
    ask("PUT", "/admin/v2/namespaces/acme/shop", None)
    ask("POST", "/admin/v2/namespaces/acme/shop/permissions/checkout", b'["produce", "consume"]')
    ask("PUT", "/admin/v2/persistent/acme/shop/events/partitions", b"4")
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    for name in ("payments", "shipments", "returns", "mail", "search-index", "orders-failed"):
        producer = client.create_producer(f"persistent://acme/shop/{name}")
        client.subscribe(f"persistent://acme/shop/{name}", "archive").close()
        for number in range(40):
            producer.send(f"{name} {number}".encode(), partition_key=f"customer-{number % 7}")
    orders = "persistent://acme/shop/orders"
    shared = pulsar.ConsumerType.Shared
    billing = client.subscribe(orders, "billing", consumer_type=shared, receiver_queue_size=20)
    shipping = client.subscribe(orders, "shipping", consumer_type=pulsar.ConsumerType.KeyShared)
    producer = client.create_producer(orders)
    from datetime import timedelta
    for number in range(300):
        producer.send(f'{{"order": {number}, "price": {number * 7 % 100}}}'.encode(),
                      partition_key=f"customer-{number % 9}", properties={"shop": "north" if number % 2 else "south"},
                      deliver_after=timedelta(hours=1 + number % 8) if number % 10 == 0 else None)
    for number in range(120):
        message = billing.receive(HANG_MS)
        if number % 3:
            billing.acknowledge(message)
    ask("PUT", f"/admin/v2/scalable/{SCALABLE}?numInitialSegments=2", b'{"team": "web"}')
    ask("PUT", f"/admin/v2/scalable/{SCALABLE}/subscriptions/reports?type=QUEUE")
    ask("PUT", f"/admin/v2/scalable/{SCALABLE}/subscriptions/clicks-by-page")
    _use_segments(broker).end()
    ask("POST", f"/admin/v2/scalable/{SCALABLE}/split/0")
    _PEERS.append(_use_segments(broker, "clicks-by-page"))
    threading.Thread(target=_go_on, args=(producer, shipping), daemon=True).start()
    return client


def _use_segments(broker: Broker, subscription: str = "") -> Peer:
    """Publish to each active segment of the scalable topic, and subscribe to it without taking anything."""
    name, peer = f"topic://{SCALABLE}", Peer(broker.service_url)
    dag = layout_of(peer, name).dag
    peer.say(command(T.SCALABLE_TOPIC_CLOSE, session_id=1))
    for number, (segment, about) in enumerate(zip(segments_of(name, dag), dag.segments, strict=True)):
        if about.state == api.ACTIVE:
            publish(peer, segment, b"a click", producer_id=number)
            if subscription:
                peer.subscribe(segment, subscription, consumer_id=number)
    return peer


def _go_on(producer: pulsar.Producer, consumer: pulsar.Consumer) -> None:
    """Keep some traffic on one topic, until the client is closed."""
    number = 1_000
    try:
        while True:
            for _ in range(20 + number // 97 % 30):
                number += 1
                producer.send_async(f'{{"order": {number}}}'.encode(), lambda *_: None,
                                    partition_key=f"customer-{number % 9}")
            for _ in range(20):
                consumer.acknowledge(consumer.receive(200))
            time.sleep(0.1)
    except pulsar.PulsarException:
        pass


def take(browser: Browser, address: str, scheme: str, to: Path) -> None:
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia",
                                   {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    browser.driver.set_window_size(WIDTH, 900)
    browser.open(address)
    browser.one("h1")
    time.sleep(SETTLE_SECONDS)
    height = browser.run("return document.documentElement.scrollHeight")
    browser.driver.set_window_size(WIDTH, min(HEIGHT_MAX, height + 140))
    time.sleep(0.5)
    told = browser.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
    to.write_bytes(base64.b64decode(told["data"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=PAGE.with_suffix(""))
    parser.add_argument("--only", default=",".join(PAGES))
    options = parser.parse_args()
    options.to.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        broker, browser = Broker(Path(folder) / "data"), Browser()
        try:
            broker.start()
            client = fill(broker)
            for name in options.only.split(","):
                for scheme in ("light", "dark"):
                    take(browser, broker.http_url + PAGES[name], scheme, options.to / f"{name}-{scheme}.webp")
                    print(options.to / f"{name}-{scheme}.webp", flush=True)
            client.close()
        finally:
            browser.close()
            broker.close()
    text = PAGE.read_text().partition(HEADING)[0]
    rows = [f"### {name.capitalize().replace('-', ' ')}\n\n![{name}, light](console/{name}-light.webp)\n\n"
            f"![{name}, dark](console/{name}-dark.webp)\n"
            for name in PAGES if (options.to / f"{name}-dark.webp").exists()]
    told = "`python -m tests.console.screenshots` makes these pictures from a broker that it fills.\n"
    PAGE.write_text("\n".join([f"{text}{HEADING}\n", told, *rows]))


if __name__ == "__main__":
    main()

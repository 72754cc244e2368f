"""Measures what the console costs, on a broker of its own.

    python -m tests.bench.console [--topics 1000] [--pages 5] [--seconds 10] [--rounds 5] [--rows idle,load,paint]

    size     bytes of all scripts and styles
    idle     part of a core that the whole broker uses, in %, with no overview open and with so many; and the difference
             for each open page
    load     messages a second that `geminga bench` publishes and consumes with an overview closed and open, in turns
    paint    ms until a browser has painted something of a page, the best and the median of so many visits
"""
import argparse
import contextlib
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from geminga.supervisor.console import static_files

from ..harness import Broker, request
from .usage import cpu_seconds

GEMINGA = Path(sys.executable).with_name("geminga")
PAGES = "/", "/console/topics", "/console/subscriptions", "/console/clients", "/console/log"


@contextlib.contextmanager
def open_pages(broker: Broker, count: int) -> Iterator[None]:
    """Have so many overviews open: their streams are read as a browser reads them."""
    host, links = urlsplit(broker.http_url), []
    for _ in range(count):
        link = http.client.HTTPConnection(host.hostname or "", host.port)
        link.request("GET", "/console/live?page=/")
        answer = link.getresponse()
        assert answer.status == 200, answer.status
        links.append((link, answer))
        threading.Thread(target=_drain, args=(answer,), daemon=True).start()
    try:
        yield
    finally:
        for link, _ in links:
            if link.sock is not None:
                link.sock.shutdown(2)


def _drain(answer: http.client.HTTPResponse) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
        while answer.read1(65_536):
            pass


def idle(broker: Broker, pages: int, seconds: float, rounds: int) -> None:
    results: dict[int, list[float]] = {0: [], pages: []}
    for _ in range(rounds):
        for count, found in results.items():
            with open_pages(broker, count):
                time.sleep(1)
                began, before = time.monotonic(), cpu_seconds(broker.pid)
                time.sleep(seconds)
                found.append(100 * (cpu_seconds(broker.pid) - before) / (time.monotonic() - began))
    closed, opened = (statistics.median(found) for found in results.values())
    print(f"idle     {closed:.2f} % of a core closed, {opened:.2f} % with {pages} overviews: "
          f"{(opened - closed) / pages:.2f} % for each")


def load(broker: Broker, seconds: float, rounds: int) -> None:
    rates: dict[int, list[float]] = {0: [], 1: []}
    for turn in range(rounds):
        for count in (0, 1) if turn % 2 else (1, 0):
            with open_pages(broker, count):
                told = subprocess.run(
                    [GEMINGA, "bench", "--url", broker.service_url, "--admin-url", broker.http_url, "-o", "json",
                     "--duration", f"{seconds:.0f}s"], capture_output=True, text=True, check=True)
                rates[count].append(json.loads(told.stdout)["consumed_rate"])
    ratios = [opened / closed for closed, opened in zip(rates[0], rates[1], strict=True)]
    closed, opened = statistics.median(rates[0]), statistics.median(rates[1])
    print(f"load     {closed:,.0f} messages a second closed, {opened:,.0f} with an overview open: "
          f"{opened / closed:.3f} (pairs {', '.join(f'{ratio:.3f}' for ratio in ratios)})")


def paint(broker: Broker, rounds: int) -> None:
    from ..console.browser import Browser
    browser = Browser()
    try:
        for path in PAGES:
            times = []
            for _ in range(rounds + 1):
                browser.open(broker.http_url + path)
                while not (found := browser.run("return performance.getEntriesByName('first-contentful-paint')")):
                    time.sleep(0.02)
                times.append(found[0]["startTime"])
            print(f"paint    {min(times[1:]):4.0f} {statistics.median(times[1:]):4.0f} ms  {path} "
                  f"(first visit {times[0]:.0f})")
    finally:
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--pages", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", default="idle,load,paint")
    options = parser.parse_args()
    rows = options.rows.split(",")
    print(f"size     {sum(len(file.content) for file in static_files._files().values()):,} bytes")
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(Path(folder) / "data")
        try:
            broker.start()
            path = "/admin/v2/persistent/public/default/many"
            status, text = request("PUT", broker.http_url + path + "/partitions", str(options.topics).encode())
            assert status == 204, text
            status, text = request("PUT", broker.http_url + path + "/subscription/idle", b"{}")
            assert status == 204, text
            if "idle" in rows:
                idle(broker, options.pages, options.seconds, options.rounds)
            if "paint" in rows:
                paint(broker, options.rounds)
            if "load" in rows:
                load(broker, options.seconds, options.rounds)
        finally:
            broker.close()


if __name__ == "__main__":
    main()

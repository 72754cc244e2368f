"""Tools: administration with other languages' libraries, and the metrics with others' parsers and servers."""

import contextlib
import dataclasses
import json
import re
import shutil
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from . import pulsar_admin, registries
from .running import Ground, free_ports
from .subject import Answers, Subject

NAME = "tools"
ABOUT = ("Administration through Go's `pulsaradmin`, and through `pulsar-admin` and its library for Java, which do the "
         "same with Pulsar 4.0.7 at once: what differs for no known reason is named. Metrics through parsers of "
         "Prometheus' text format, after use of topics with odd names; `promtool` is Prometheus' own. Prometheus "
         "itself, which loads the rules and asks what the dashboards ask, and the OpenTelemetry collector's receiver "
         "scrape the broker each second.")

ADMIN = {
    "clusters": "standalone",
    "tenant": '["r"]',
    "namespace": "lab/n",
    "topic": "p, p-partition-0 p-partition-1 p-partition-2 t",
    "partitions": "4",
    "stats": "0",
    "internal stats": "0",
    "partitioned stats": "4",
    "subscription": "s",
    "skip and reset": "done",
    "subscription deleted": "0",
    "retention": '{"retentionTimeInMinutes":10,"retentionSizeInMB":20}',
    "TTL": "60",
    "backlog quota": "1000",
    "rates": "5",
    "permissions": '["produce"]',
    "policies": "60 20",
    "schema": "STRING",
    "compatibility": '"FORWARD"',
    "topic policy": "7",
    "lookup": "true",
    "brokers": "1",
    "health": "true",
    "terminate": "done",
    "unload": "done",
    "missing": "code: 404 reason: Namespace does not exist",
    "deleted": "done",
}
ODD_NAMES = {"a name with a quote": 'a"quote', "a name with a backslash": "a\\backslash",
             "a name with letters of Greek": "αβγ", "a name with braces": "a{b}=c", "a name with a blank": "a blank"}
METRICS = {
    "parsed": "some hundred samples",
    "families once": "[]",
    "samples once": "[]",
    "types": "[]",
    "no NaN": "[]",
    "counters are not negative": "[]",
    "buckets add up": "[]",
    **dict.fromkeys(ODD_NAMES, "shown as it is"),
}
SERVER = {
    "scraped": "up",
    "all samples kept": "true",
    "types": "[]",
    "rules": "ok",
    "queries of dashboards": "ok",
    "200 topics": "200",
    **dict.fromkeys(ODD_NAMES, "shown as it is"),
    "no warnings": "[]",
}
RECEIVER = {
    "scraped": "some hundred metrics",
    "types": "[]",
    **dict.fromkeys(ODD_NAMES, "shown as it is"),
    "no warnings": "[]",
}
SHIPPED = Path(__file__).parents[2] / "systemd/prometheus"
SECONDS = 60      # metrics are gathered from time to time


def _admin(version: str) -> Subject:
    def ask(ground: Ground, asked: list[str]) -> Answers:
        program = registries.go_program([registries.PROGRAMS / "admin.go"],
                                        {"github.com/apache/pulsar-client-go": version})
        yield from ground.ask([program], asked, f"admin-{uuid.uuid4().hex[:6]}")

    return Subject(f"pulsaradmin {version}", f"pulsar-client-go {version}", ADMIN, ask, compared=True)


def _metrics(version: str) -> Subject:
    def ask(ground: Ground, asked: list[str]) -> Answers:
        interpreter = registries.python(f"prometheus-client=={version}", "pulsar-client==3.12.0")
        yield from ground.ask([interpreter, registries.PROGRAMS / "metrics.py"], asked,
                              f"metrics-{uuid.uuid4().hex[:6]}")

    return Subject(f"prometheus-client {version}", f"prometheus-client {version}", METRICS, ask, compared=True)


def _promtool() -> Subject:
    def ask(ground: Ground, asked: list[str]) -> Answers:
        promtool = shutil.which("promtool") or registries.debian("prometheus") / "usr/bin/promtool"
        with urllib.request.urlopen(ground.broker.http_url + "/metrics/") as answer:
            done = subprocess.run([promtool, "check", "metrics"], input=answer.read(), capture_output=True)
        remarks = done.returncode == 3      # about names, which are Pulsar's; 1: the text cannot be read
        yield "parsed", "true" if remarks or not done.returncode else done.stderr.decode()

    return Subject("promtool", "of Debian 12's prometheus 2.42", {"parsed": "true"}, ask, compared=True)


def _used(ground: Ground) -> dict[str, str]:
    """Use topics with odd names; return the topics."""
    import pulsar

    prefix = f"persistent://public/default/metrics-{uuid.uuid4().hex[:6]}-"
    topics = {asked: prefix + name for asked, name in ODD_NAMES.items()}
    path = f"{prefix.replace('://', '/')}200/partitions"
    assert ground.please({"please": "PUT", "path": path, "body": 200}) == "done"
    client = pulsar.Client(ground.broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    for topic in (*topics.values(), prefix + "200"):
        client.create_producer(topic).send(b"x")
    client.close()
    return topics | {"200 topics": f"{prefix}200-partition-"}


def _receiver(version: str, interfaces: str) -> Subject:
    def ask(ground: Ground, asked: list[str]) -> Answers:
        modules = {"github.com/open-telemetry/opentelemetry-collector-contrib/receiver/prometheusreceiver": version,
                   "go.opentelemetry.io/collector/component/componenttest": version,
                   "go.opentelemetry.io/collector/receiver/receivertest": version,
                   "go.opentelemetry.io/collector/confmap": interfaces,
                   "go.opentelemetry.io/collector/consumer": interfaces,
                   "go.opentelemetry.io/collector/pdata": interfaces}
        program = registries.go_program([registries.PROGRAMS / "otel.go"], modules)
        yield from ground.ask([program], asked, "", more=_used(ground))

    return Subject("OpenTelemetry's receiver", f"prometheusreceiver {version}", RECEIVER, ask, compared=True)


class _Server:
    """A Prometheus that scrapes the broker each second.  log: its file."""

    def __init__(self, url: str, log: Path) -> None:
        self._url, self.log = url, log

    def asked(self, path: str) -> Any:
        """Return the data of an answer, None while there is none."""
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self._url}/api/v1/{path}") as answer:
            return json.load(answer)["data"]
        return None

    def query(self, text: str) -> list[Any] | None:
        """Return the result of a query, None if it is refused."""
        said = self.asked(f"query?query={quote(text)}")
        return None if said is None else list(said["result"])

    def value(self, text: str) -> str:
        """Return the only value of a query, "none" without any."""
        result = self.query(text)
        return str(result[0]["value"][1]) if result else "none"


@contextlib.contextmanager
def _prometheus(program: Path, ground: Ground) -> Iterator[_Server]:
    folder = ground.folder / f"prometheus-{uuid.uuid4().hex[:6]}"
    folder.mkdir()
    (folder / "prometheus.yml").write_text(json.dumps({
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": [f"{SHIPPED}/*.rules.yml"],
        "scrape_configs": [{"job_name": "broker", "static_configs": [
            {"targets": [urlsplit(ground.broker.http_url).netloc]}]}]}))
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([program, f"--config.file={folder}/prometheus.yml",
                                    f"--storage.tsdb.path={folder}/data", f"--web.listen-address={address}"],
                                   stdout=log, stderr=log)
        try:
            yield _Server(f"http://{address}", folder / "log")
        finally:
            process.kill()
            process.wait()


def _queries() -> set[str]:
    """Return the queries of all dashboards, with anything for their variables."""
    texts = [path.read_text() for path in SHIPPED.glob("*.json")]
    return {re.sub(r"[$]\w+", ".*", json.loads(f'"{expression}"'))
            for text in texts for expression in re.findall(r'"expr": "((?:[^"\\]|\\.)*)"', text)}


def _of_server(server: _Server, asked: str, topics: dict[str, str]) -> str:
    """Return the answer to one thing as it is now."""
    if asked == "scraped":
        targets = (server.asked("targets") or {}).get("activeTargets", [])
        return " ".join(target["health"] + target["lastError"] for target in targets)
    if asked == "all samples kept":
        kept = "scrape_samples_post_metric_relabeling == scrape_samples_scraped > 100"
        return str(server.value(f"count({kept})") == "1").lower()
    if asked == "types":
        return str(sorted({one["metric"] for one in server.asked("targets/metadata") or [{"metric": "none"}]
                           if one.get("type", "unknown") == "unknown"}))
    if asked == "rules":
        groups = (server.asked("rules") or {"groups": []})["groups"]
        return " ".join(sorted({rule["health"] for group in groups for rule in group["rules"]}))
    if asked == "queries of dashboards":
        return str([text for text in _queries() if server.query(text) is None] or "ok")
    if asked == "no warnings":
        lines = server.log.read_text().splitlines()
        return str([line for line in lines if re.search("level=(warn|error)", line, re.IGNORECASE)])
    if asked == "200 topics":
        return server.value(f'count(count by (topic) ({{topic=~"{topics[asked]}.*"}}))')
    shown = server.query(f"count by (topic) ({{topic={json.dumps(topics[asked], ensure_ascii=False)}}})")
    return "shown as it is" if shown else "not shown"


def _server(name: str, versions: str, program: Callable[[], Path]) -> Subject:
    def ask(ground: Ground, asked: list[str]) -> Answers:
        with _prometheus(program(), ground) as server:
            topics = _used(ground)
            for thing in asked:
                until, said = time.monotonic() + SECONDS, ""
                while (said := _of_server(server, thing, topics)) != SERVER[thing] and time.monotonic() < until:
                    time.sleep(0.5)
                yield thing, said

    return Subject(name, versions, SERVER, ask, compared=True)


def _built(version: str) -> Path:
    return registries.go_program([], {"github.com/prometheus/prometheus": version},
                                 package="github.com/prometheus/prometheus/cmd/prometheus")


GO, PROMETHEUS = ("v0.18.0", "v0.19.0"), ("0.21.1", "0.26.0")


def subjects(newest: bool) -> list[Subject]:
    """Return the tools; with `newest` those of the newest versions."""
    if newest:
        go = registries.newest("go", "github.com/apache/pulsar-client-go")
        parser = registries.newest("pypi", "prometheus-client")
        return [dataclasses.replace(_admin(go), like=_admin(GO[-1]).name),
                dataclasses.replace(_metrics(parser), like=_metrics(PROMETHEUS[-1]).name)]
    return [*map(_admin, GO), *map(_metrics, PROMETHEUS), _promtool(),
            _server("Prometheus 2", "Debian 12's prometheus 2.42",
                    lambda: registries.debian("prometheus") / "usr/bin/prometheus"),
            _server("Prometheus 3", "prometheus 3.16.0", lambda: _built("v0.316.0")), _receiver("v0.165.0", "v1.71.0"),
            *(made(version) for made, versions in pulsar_admin.SUBJECTS for version in versions)]

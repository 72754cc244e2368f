"""Tools: administration with other languages' libraries, and the metrics with others' parsers."""

import dataclasses
import shutil
import subprocess
import urllib.request
import uuid

from . import registries
from .running import Ground
from .subject import Answers, NotRun, Subject

NAME = "tools"
ABOUT = ("Administration through Go's `pulsaradmin`, and metrics through parsers of Prometheus' text format, after use "
         "of topics with odd names; `promtool` is Prometheus' own.")

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
METRICS = {
    "parsed": "some hundred samples",
    "families once": "[]",
    "samples once": "[]",
    "types": "[]",
    "no NaN": "[]",
    "counters are not negative": "[]",
    "buckets add up": "[]",
    "a name with a quote": "shown as it is",
    "a name with a backslash": "shown as it is",
    "a name with letters of Greek": "shown as it is",
    "a name with braces": "shown as it is",
    "a name with a blank": "shown as it is",
}


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
        if shutil.which("promtool") is None:
            raise NotRun("promtool is not installed")
        with urllib.request.urlopen(ground.broker.http_url + "/metrics/") as answer:
            done = subprocess.run(["promtool", "check", "metrics"], input=answer.read(), capture_output=True)
        remarks = done.returncode == 3      # about names, which are Pulsar's; 1: the text cannot be read
        yield "parsed", "true" if remarks or not done.returncode else done.stderr.decode()

    return Subject("promtool", "of Debian 12's prometheus 2.42", {"parsed": "true"}, ask, compared=True)


GO, PROMETHEUS = ("v0.18.0", "v0.19.0"), ("0.21.1", "0.26.0")


def subjects(newest: bool) -> list[Subject]:
    """Return the tools; with `newest` those of the newest versions."""
    if newest:
        go = registries.newest("go", "github.com/apache/pulsar-client-go")
        parser = registries.newest("pypi", "prometheus-client")
        return [dataclasses.replace(_admin(go), like=_admin(GO[-1]).name),
                dataclasses.replace(_metrics(parser), like=_metrics(PROMETHEUS[-1]).name)]
    return [*map(_admin, GO), *map(_metrics, PROMETHEUS), _promtool()]

"""A real Prometheus server, where installed (Debian: prometheus), scrapes the broker and loads the shipped rules."""
import json
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from ..harness import eventually, free_port, request

SHIPPED = Path(__file__).parents[2] / "systemd" / "prometheus"


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def test_promtool_takes_the_rules():
    checked = subprocess.run([program("promtool"), "check", "rules", str(SHIPPED / "geminga.rules.yml")],
                             capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.fixture(scope="module")
def server(broker, tmp_path_factory):
    """The server's address; it scrapes the broker each second."""
    command, folder = program("prometheus"), tmp_path_factory.mktemp("prometheus")
    (folder / "prometheus.yml").write_text(f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{SHIPPED}/geminga.rules.yml"]
scrape_configs:
  - job_name: broker
    static_configs: [{{targets: ["{urlsplit(broker.http_url).netloc}"]}}]
""")
    address = f"127.0.0.1:{free_port()}"
    with (folder / "log").open("w") as log, subprocess.Popen(
            [command, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address={address}"],
            stdout=log, stderr=log) as running:
        try:
            yield f"http://{address}"
        finally:
            running.kill()


def ask(server: str, path: str):
    with suppress(OSError):      # the server is not listening yet
        status, text = request("GET", f"{server}/api/v1/{path}")
        return json.loads(text)["data"] if status == 200 else None


@pytest.mark.slow
def test_it_scrapes_and_evaluates_what_is_shipped(server):
    """Every target is up, every rule is healthy, and every query of a dashboard is valid."""
    eventually(lambda: (ask(server, "query?query=up%7Bjob%3D%22broker%22%7D") or {}).get("result"))
    eventually(lambda: [one["health"] for one in ask(server, "targets")["activeTargets"]] == ["up"])
    rules = [rule for group in ask(server, "rules")["groups"] for rule in group["rules"]]
    assert rules
    eventually(lambda: {rule["health"] for group in ask(server, "rules")["groups"] for rule in group["rules"]}
               == {"ok"})
    questions = {json.loads(f'"{text}"') for path in SHIPPED.glob("*.json")
                 for text in re.findall(r'"expr": "((?:[^"\\]|\\.)*)"', path.read_text())}
    assert questions
    for question in questions:
        asked = re.sub(r"[$]\w+", ".*", question)      # the dashboard's variables
        assert ask(server, f"query?query={quote(asked)}") is not None, question

"""The OCI image and its compose file: what they name exists, and the image builds where the tools and a base are."""
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from geminga.supervisor.cli.operations import status
from geminga.supervisor.configuration import config
from geminga.supervisor.main import geminga

from .harness import HANG_SECONDS

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "systemd" / "container"
CONTAINERFILE = FOLDER / "Containerfile"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
BASE = os.environ.get("GEMINGA_TEST_BASE_IMAGE", "docker.io/library/debian:trixie-slim")


def instructions():
    """Return (name, words) of each instruction, continued lines joined."""
    text = re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", CONTAINERFILE.read_text(), flags=re.M))
    return [(line.split()[0], line.partition(" ")[2]) for line in text.splitlines() if line.strip()]


def of(name):
    return [text for word, text in instructions() if word == name]


def is_key(variable):
    names = {config.ENVIRONMENT_PREFIX + key.replace(".", "_").upper() for key in config.KEYS}
    return variable in names


def test_the_image_has_two_stages_and_the_second_has_the_package_alone():
    assert [text.partition(" ")[2] for text in of("FROM")] == ["AS build", ""]
    assert of("ARG") == ["BASE=docker.io/library/debian:trixie-slim"]
    second = instructions()[max(at for at, (name, _) in enumerate(instructions()) if name == "FROM"):]
    assert [text for name, text in second if name == "COPY"] == ["--from=build /packages /packages"]


def test_every_source_of_a_copy_is_there_and_nothing_of_the_program_is_forgotten():
    copied = [text.split() for text in of("COPY") if not text.startswith("--from")]
    sources = [source for words in copied for source in words[:-1]]
    assert all((ROOT / source).exists() for source in sources)
    assert {"proto", "storage", "workers", "supervisor", "systemd", "docs", "pyproject.toml"} <= set(sources)


def test_the_image_runs_as_a_user_of_its_own_and_keeps_data_in_a_volume():
    users = of("USER")
    assert users == ["geminga"] and of("VOLUME") == ["/var/lib/geminga"] and of("EXPOSE") == ["6650 8080"]
    assert of("STOPSIGNAL") == ["SIGTERM"]


def test_what_the_image_calls_is_a_command_with_such_options():
    """The entry, and the health check."""
    entry, call = json.loads(of("ENTRYPOINT")[0]), json.loads(of("CMD")[0])
    assert entry == ["geminga"] and call[0] == "serve"
    context = geminga.make_context("geminga", call.copy(), resilient_parsing=True)
    assert geminga.get_command(context, "serve") is not None
    [check] = of("HEALTHCHECK")
    words = json.loads(check.partition(" CMD ")[2])
    assert COMPOSE["services"]["geminga"]["healthcheck"]["test"] == ["CMD", *words]
    assert words[:2] == ["geminga", "status"]
    assert set(words[2:]) <= {option for one in status.params for option in one.opts}


def test_variables_of_image_and_compose_file_are_keys():
    """Those of the broker; Grafana's have its own prefix."""
    image = dict(word.split("=") for word in shlex.split(of("ENV")[0]))
    composed = COMPOSE["services"]["geminga"]["environment"]
    assert image and composed and all(map(is_key, [*image, *composed]))
    loaded, notes = config.load(None, image | composed, {})
    assert (loaded.worker.bind, loaded.http_bind, notes) == ("0.0.0.0", "0.0.0.0", []) and loaded.drain_s > 0
    assert loaded.http.hosts == (COMPOSE_TARGET.partition(":")[0],)
    assert all(name.startswith("GF_") for name in COMPOSE["services"]["grafana"]["environment"])


PROMETHEUS = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
COMPOSE_TARGET = PROMETHEUS["scrape_configs"][0]["static_configs"][0]["targets"][0]


def test_everything_that_is_mounted_exists_and_every_volume_is_declared():
    for name, service in COMPOSE["services"].items():
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            assert (FOLDER / source).exists() if source.startswith(".") else source in COMPOSE["volumes"], (name, mount)
    build = COMPOSE["services"]["geminga"]["build"]
    assert (FOLDER / build["context"]).resolve() == ROOT and (ROOT / build["dockerfile"]) == CONTAINERFILE


def test_ports_are_of_this_host_alone_and_are_the_brokers():
    """The compose file opens nothing to the network by itself."""
    ports = {port for service in COMPOSE["services"].values() for port in service["ports"]}
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert {"127.0.0.1:6650:6650", "127.0.0.1:8080:8080"} <= ports


def test_prometheus_has_our_rules_and_asks_the_broker_under_the_job_that_the_rules_know():
    rules = (ROOT / "systemd/prometheus/geminga.rules.yml").read_text()
    assert PROMETHEUS["rule_files"] == ["geminga.rules.yml"]
    mounted = {mount.split(":")[1] for mount in COMPOSE["services"]["prometheus"]["volumes"]}
    assert {"/etc/prometheus/prometheus.yml", "/etc/prometheus/geminga.rules.yml"} <= mounted
    [job] = PROMETHEUS["scrape_configs"]
    assert COMPOSE_TARGET == "geminga:8080" and f".*{job['job_name']}.*" in rules


def test_grafana_finds_its_source_and_our_dashboards():
    sources = yaml.safe_load((FOLDER / "grafana/datasources.yaml").read_text())["datasources"]
    assert [(one["type"], one["url"], one["isDefault"]) for one in sources] == [
        ("prometheus", "http://prometheus:9090", True)]
    [provider] = yaml.safe_load((FOLDER / "grafana/dashboards.yaml").read_text())["providers"]
    mounts = [mount.split(":") for mount in COMPOSE["services"]["grafana"]["volumes"]]
    [source] = [source for source, target, *_ in mounts if target == provider["options"]["path"]]
    shown = {path.name for path in (FOLDER / source).glob("*.json")}
    home = Path(COMPOSE["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert home.name in shown and str(home.parent) == provider["options"]["path"]


@pytest.mark.slow
def test_the_image_builds_and_its_command_answers():
    """Needs buildah or podman, root, and the base image, from a registry or as $GEMINGA_TEST_BASE_IMAGE."""
    tool = shutil.which("buildah") or shutil.which("podman")
    if tool is None or os.geteuid():
        pytest.skip("neither buildah nor podman is installed, or this is not root")
    base = subprocess.run([tool, "pull", BASE], capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    if base.returncode:
        pytest.skip(f"{BASE} cannot be fetched: {base.stderr.strip().splitlines()[-1]}")
    call = [tool, "build", "--format", "docker", "--isolation", "chroot", "--build-arg", f"BASE={BASE}",
            "-f", CONTAINERFILE, "-t", "geminga-test", ROOT]
    built = subprocess.run(call, capture_output=True, text=True, timeout=1200, check=False)
    assert built.returncode == 0, built.stderr[-2_000:]


def test_variables_that_the_page_shows_have_an_effect():
    """One of both bounds of retention alone retains nothing: the program warns of such a configuration."""
    page = (ROOT / "docs/operating.md").read_text()
    shown = dict(re.findall(r"-e (GEMINGA_\w+)=(\S+?)[ `]", page))
    assert {"GEMINGA_STORAGE_RETENTION_S", "GEMINGA_STORAGE_RETENTION_BYTES"} <= shown.keys()
    assert all(map(is_key, shown))
    assert config.load(None, shown, {})[1] == []

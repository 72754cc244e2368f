"""The recipe for a policy in docs/contributing.md, followed: one row and its fields, and everything else reads them.

The policy is added to a copy of the sources, which a real broker and the real command run.
"""
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..harness import COMMAND, HANG_SECONDS, Broker, request

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "contributing.md"
ROW = """
    Policy("orderLimit", "Orders of a topic that wait at a time; 0: no bound.", (
        Part("", INTEGER, field="order_limit", key="order_limit", least=0, most=100, option=Option("--orders -o")),),
        where="storage/topics/partition.py"),
))}
"""
ADDED = {      # file: (text behind which a line goes, the line)
    "storage/catalogue/policies.py": ("    deduplication: bool = False\n", "    order_limit: int = 0\n"),
    "storage/options.py": ("    # -- defaults of policies, [^\n]*\n", "    order_limit: int = 3\n"),
}
MADE = "systemd/reference.py", "systemd/geminga.toml.example", "docs/configuration.md", "docs/policies.md"
PATH, VERB = "orderLimit", "order-limit"


@pytest.fixture(scope="module")
def declared(tmp_path_factory):
    """Return a folder of sources in which the policy is declared, with which the command runs."""
    folder = tmp_path_factory.mktemp("sources")
    for package in ("proto", "storage", "supervisor", "workers"):
        shutil.copytree(ROOT / package, folder / "geminga" / package, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "geminga/__init__.py").touch()
    for page in MADE:
        (folder / page).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / page, folder / page)
    for name, (place, line) in ADDED.items():
        file = folder / "geminga" / name
        text, count = re.subn(f"({place})", lambda match, line=line: match[1] + line, file.read_text(), count=1)
        assert count == 1, name
        file.write_text(text)
    table = folder / "geminga/storage/catalogue/policy_table.py"
    text = table.read_text()
    assert text.endswith("\n))}\n")
    table.write_text(text.removesuffix("\n))}\n") + ROW)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        yield folder


@pytest.fixture(scope="module")
def broker(declared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("broker")
    (folder / "geminga.toml").write_text("[storage]\norder_limit = 5\n")
    made = Broker(folder / "data", "--config", str(folder / "geminga.toml"))
    try:
        broker = made.start()
        assert request("PUT", f"{broker.http_url}/admin/v2/persistent/public/default/orders")[0] == 204
        yield broker
    finally:
        made.close()


def command(broker, group, *words):
    """Run a verb of `geminga admin`; return what it prints."""
    done = subprocess.run([COMMAND[0], "admin", "--admin-url", broker.http_url, group, *words], text=True,
                          capture_output=True, timeout=HANG_SECONDS, check=True)
    return done.stdout


def url_of(broker, level):
    place = "persistent/public/default/orders" if level == "topic" else "namespaces/public/default"
    return f"{broker.http_url}/admin/v2/{place}/{PATH}"


def in_force(broker):
    rows = json.loads(request("GET", f"{broker.http_url}/ops/v1/policies/persistent/public/default/orders")[1])
    [row] = [row for row in rows if row["policy"] == "orderLimit"]
    return row["value"], row["origin"], row["broker"]


@pytest.mark.slow
def test_a_row_makes_routes_and_verbs_at_both_levels(broker):
    assert in_force(broker) == (5, "broker", 5)
    for level, group, place in (("namespace", "namespaces", "public/default"),
                                ("topic", "topicPolicies", "persistent://public/default/orders")):
        url = url_of(broker, level)
        assert request("GET", url) == (200, "")
        assert request("POST", url, b"7")[0] == 204
        assert json.loads(command(broker, group, f"get-{VERB}", place)) == 7
        command(broker, group, f"set-{VERB}", place, "--orders", "9")
        assert request("GET", url) == (200, "9")
        assert in_force(broker) == (9, level, 5)
    command(broker, "topicPolicies", f"remove-{VERB}", "persistent://public/default/orders")
    assert in_force(broker) == (9, "namespace", 5)


@pytest.mark.slow
def test_its_bounds_hold_over_rest_and_in_the_configuration(broker, tmp_path):
    for level in ("namespace", "topic"):
        url = url_of(broker, level)
        before = request("GET", url)
        assert [request("POST", url, sent)[0] for sent in (b"-1", b"101", b'"x"')] == [412, 412, 400]
        assert request("GET", url) == before
    (tmp_path / "bad.toml").write_text("[storage]\norder_limit = 101\n")
    done = subprocess.run([COMMAND[0], "config", "check", "--config", str(tmp_path / "bad.toml")], text=True,
                          capture_output=True, timeout=HANG_SECONDS)
    assert done.returncode == 2 and "storage.order_limit must be 0 to 100, not 101" in done.stdout + done.stderr


@pytest.mark.slow
def test_openapi_tells_its_body_and_its_right(broker):
    paths = json.loads(request("GET", f"{broker.http_url}/openapi.json")[1])["paths"]
    rights = {path: methods["post"]["x-geminga-right"] for path, methods in paths.items() if path.endswith(f"/{PATH}")}
    assert {right["of"] for right in rights.values()} == {"namespace", "topic"}
    assert {right["action"] for right in rights.values()} == {"administer"}


@pytest.mark.slow
def test_the_example_and_the_pages_are_made_from_it(declared):
    for _ in range(2):      # the second time changes nothing
        subprocess.run([sys.executable, declared / MADE[0]], timeout=HANG_SECONDS, check=True)
        example, configuration, policies = ((declared / page).read_text() for page in MADE[1:])
        explained = "\n# Orders of a topic that wait at a time; 0: no bound.\n#order_limit = 3\n"
        assert example.count(explained) == 1
        assert example.index("\n[storage]\n") < example.index(explained) < example.index("\n[network]\n")
        keys = re.findall(r"^#(\w+) = ", example, re.MULTILINE)
        assert keys[keys.index("order_limit") + 1] == "retention_s", "in the order of StorageOptions"
        assert re.search(r"\*\*`order_limit = 3`\*\*[^*]*Values: 0 to 100", configuration)
        assert "`geminga admin namespaces set-order-limit`, REST `POST .../orderLimit`" in policies


def test_the_recipe_names_what_these_tests_use():
    [recipe] = re.findall(r"^\*\*A policy\*\*.*?(?=^\*\*)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for name in ("storage/catalogue/policy_table.py", "TABLE", *ADDED, "systemd/reference.py",
                 "tests/supervisor/test_new_policy.py"):
        assert name in recipe

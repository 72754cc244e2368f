"""The programs in docs/examples do what their page says, run as their readers run them."""
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pulsar
import pytest

from ..harness import HANG_SECONDS, eventually, free_port, request
from .java import JavaTools, cache_dir, fetch_jars
from .test_go_client import BUILD, SETTINGS
from .test_go_client import SOURCES as GO_MODULE

EXAMPLES = Path(__file__).resolve().parents[2] / "docs/examples"
PROGRAMS = sorted(path for path in EXAMPLES.glob("*/*") if path.suffix in (".py", ".java", ".go", ".js"))
LINES_MAX = 39
RUN_SECONDS, SPARK_SECONDS = 90, 300

PUBLISHED = ["on disk: .*"] * 3 + [f"received: order {number} customer-7 north" for number in range(3)]
DEAD_LETTER = [*(f"failed: not a number after {count} redeliveries" for count in range(3)), "paid: 60",
               "dead letter: not a number"]
DELAYS = {"at once": 0, "after one second": 1, "after two seconds": 2}      # seconds
# Program: the lines that it prints, as expressions.
PRINTED = {
    "publish_and_consume": PUBLISHED, "PublishAndConsume": PUBLISHED,
    "shared_with_dead_letters": DEAD_LETTER, "SharedWithDeadLetters": DEAD_LETTER,
    "schemas": [f"{name}Schema {rest}" for name in ("Avro", "Json")
                for rest in ("alice 3", "incompatible schema refused")],
    "table_view": ["apple: 1.30 pear: 0.80", "pear is now 0.90"],
    "asyncio_client": ["on disk: 100", "last: event 99"],
    "Transactions": ["order 1 aborted", "order 1 committed", "received: invoice of order 1"],
    "exactly_once": [f"stored: line {number}" for number in range(5)],
}


def environment(broker):
    return {**os.environ, "PULSAR_URL": broker.service_url, "PULSAR_ADMIN_URL": broker.http_url}


def output_of(command, broker, seconds=RUN_SECONDS, **options):
    """Run a program, and return the lines that it prints itself; lines of the client's log are left out."""
    done = subprocess.run(command, env=environment(broker) | options.pop("env", {}), capture_output=True, text=True,
                          timeout=seconds, check=False, **options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return [line for line in done.stdout.splitlines() if not re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d|time=", line)]


def check_delays(lines):
    """No message comes early.  On a busy machine some come late, and then two at once in any order."""
    came = {text: float(seconds) for seconds, text in (line.split(" s: ") for line in lines)}
    assert came.keys() == DELAYS.keys() and all(came[text] >= DELAYS[text] for text in DELAYS), lines


def check(program, lines):
    if program.stem.lower().replace("_", "") == "keyshared":
        return check_key_order(lines)
    if program.stem.lower() == "delayed":
        return check_delays(lines)
    expected = PRINTED[program.stem]
    if program.suffix == ".go" and "dead" in program.stem:      # the Go program publishes the failing message only
        expected = [line for line in expected if "paid" not in line]
    assert len(lines) == len(expected) and all(map(re.fullmatch, expected, lines)), lines


def check_key_order(lines):
    """Every key's numbers come in order, and from one consumer."""
    text = "\n".join(lines)
    for key in range(4):
        mine = [line for line in lines if f"sensor-{key}" in line]
        numbers = [int(number) for line in mine for number in re.findall(r"\d+", line.partition(f"sensor-{key}")[2])]
        assert numbers == list(range(key, 20, 4)), text
        assert len(set(re.findall(r"by (one|two)", "".join(mine)))) == 1, text


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_a_program_is_short_and_named_on_the_page(program):
    assert len(program.read_text().splitlines()) <= LINES_MAX
    assert f"({program.parent.name}/{program.name})" in (EXAMPLES / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["publish_and_consume", "shared_with_dead_letters", "key_shared", "delayed", "schemas",
                                  "table_view", "asyncio_client", "exactly_once"])
def test_a_program_in_python(name, own):
    program = EXAMPLES / "python" / f"{name}.py"
    check(program, output_of([sys.executable, program], own))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "subscription", "printed"), [
    ("celery_like", "pool", "charged: 30"), ("dramatiq_like", "workers", "resized to 30")])
def test_a_pool_of_workers(own, name, subscription, printed):
    """A task that fails is tried again, later each time, and is a dead letter then; a schedule adds a task."""
    kind, topic = name.removesuffix("_like"), f"example-{name.removesuffix('_like')}"
    admin, place = f"{own.http_url}/admin/v2/persistent/public/default/{topic}", f"persistent/public/default/{topic}"
    about = {"celery": ("task", "charge"), "dramatiq": ("actor", "resize")}[kind]
    assert request("PUT", admin)[0] == 204
    assert request("POST", f"{admin}/messagePriority", b'{"active": true}')[0] == 204
    assert request("POST", f"{admin}/deadLetter", b'{"maxRedeliverCount": 1}')[0] == 204
    schedule = {"cron": "0 18 * * MON-FRI", "message": {"payload": '["30"]', "properties": dict([about])}}
    url = f"{own.http_url}/ops/v1/schedules/{place}/evening"
    assert request("PUT", url, json.dumps(schedule).encode())[0] in (200, 201, 204)
    client = pulsar.Client(own.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    letters = client.subscribe(f"{topic}-{subscription}-DLQ", "inspection")
    with subprocess.Popen([sys.executable, EXAMPLES / f"python/{name}.py"], env=environment(own), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as worker:
        try:
            letter = letters.receive(timeout_millis=1_000 * HANG_SECONDS)
            assert json.loads(letter.data()) == ["ten"] and letter.properties()["geminga.priority"] == "9"
            assert request("POST", f"{url}/run")[0] in (200, 204)
            lines = list(itertools.takewhile(lambda line: line != f"{printed}\n", worker.stdout))
        finally:
            worker.kill()
            client.close()
    failures = [line for line in lines if line.startswith("failed: ")]
    assert len(failures) == 4      # at once, after 0.3 s, after 0.9 s, and once more when it was given back


@pytest.mark.slow
def test_a_killed_publisher_is_run_once_more_without_duplicates(own):
    """The program of exactly-once publishing stores nothing when it is run again as a whole."""
    program = EXAMPLES / "python/exactly_once.py"
    output_of([sys.executable, program], own)
    assert output_of([sys.executable, program], own) == []


@pytest.mark.slow
def test_the_service_publishes_what_is_posted_and_counts_it(own):
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "fastapi_service:app", "--port", str(port), "--log-level", "warning"]
    service = subprocess.Popen(command, cwd=EXAMPLES / "python", env=environment(own), stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}/clicks"

    def answers():
        try:
            return urllib.request.urlopen(url, timeout=HANG_SECONDS).read() == b'{"counted":0}'
        except OSError:
            return False

    try:
        eventually(answers)
        with urllib.request.urlopen(urllib.request.Request(url, b"button", method="POST"),
                                    timeout=HANG_SECONDS) as answer:
            assert answer.status == 201
        eventually(lambda: urllib.request.urlopen(url, timeout=HANG_SECONDS).read() == b'{"counted":1}')
    finally:
        service.terminate()
        service.wait(HANG_SECONDS)


@pytest.mark.slow
@pytest.mark.spark
def test_a_query_in_spark(own):
    client = pulsar.Client(own.service_url)
    try:
        producer = client.create_producer("example-query")
        for number in range(6):
            producer.send(b"x", partition_key=f"shop-{number % 2}")
    finally:
        client.close()
    lines = output_of([sys.executable, EXAMPLES / "python/spark_query.py", "example-query"], own, SPARK_SECONDS,
                      env={"GEMINGA_DATA_DIR": str(own.data_dir)})
    assert [line.split()[:2] for line in lines] == [["shop-0", "3"], ["shop-1", "3"]]


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.parametrize("program", sorted(EXAMPLES.glob("java/*")), ids=lambda path: path.stem)
def test_a_program_in_java(program, own, tmp_path, monkeypatch):
    java = JavaTools(fetch_jars(), tmp_path, own.service_url, own.http_url)
    monkeypatch.setenv("PULSAR_URL", own.service_url)
    check(program, java.program(program).splitlines())


GO_SETTINGS = {**SETTINGS, "GOFLAGS": "-mod=mod"}


@pytest.fixture(scope="module")
def go_module(tmp_path_factory):
    """A folder with a Go module that has the Go client; the test is skipped if the client cannot be fetched."""
    if shutil.which("go") is None:
        pytest.skip("go is not installed")
    folder = tmp_path_factory.mktemp("go")
    for source in (*(GO_MODULE / name for name in ("go.mod", "go.sum")), EXAMPLES / "go/delayed.go"):
        shutil.copy(source, folder)
    fetched = subprocess.run(["go", "list", "-deps", "delayed.go"], cwd=folder, env=os.environ | GO_SETTINGS, text=True,
                             capture_output=True, timeout=600, check=False)
    if fetched.returncode:
        pytest.skip(f"Go's modules could not be fetched: {fetched.stderr[-500:]}")
    return folder


@pytest.mark.slow
@pytest.mark.go
@pytest.mark.parametrize("program", sorted(EXAMPLES.glob("go/*")), ids=lambda path: path.stem)
def test_a_program_in_go(program, own, go_module):
    shutil.copy(program, go_module)
    subprocess.run([*BUILD, "-o", program.stem, program.name], cwd=go_module, env=os.environ | GO_SETTINGS,
                   check=True, timeout=600)
    check(program, output_of([go_module / program.stem], own))


@pytest.fixture(scope="module")
def node_modules():
    """A folder with the Node client; the test is skipped if the client cannot be installed."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("node or npm is not installed")
    folder = cache_dir() / "node"
    if not (folder / "installed").exists():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            command = ["npm", "install", "--no-audit", "--no-fund", "--fetch-retries=0", "pulsar-client"]
            done = subprocess.run(command, cwd=folder, text=True, capture_output=True, timeout=300, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip("npm did not install the Node client within 300 s")
        if done.returncode:
            pytest.skip("npm cannot install the Node client, because its compiled part is not in npm's registry")
        (folder / "installed").touch()
    return folder / "node_modules"


@pytest.mark.parametrize("program", sorted(EXAMPLES.glob("node/*")), ids=lambda path: path.stem)
def test_a_program_in_node_can_be_parsed(program):
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    subprocess.run(["node", "--check", program], check=True, timeout=HANG_SECONDS)


@pytest.mark.slow
@pytest.mark.parametrize("program", sorted(EXAMPLES.glob("node/*")), ids=lambda path: path.stem)
def test_a_program_in_node(program, own, node_modules):
    check(program, output_of(["node", program], own, env={"NODE_PATH": str(node_modules)}))

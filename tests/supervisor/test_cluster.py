"""A nightly run on a Spark cluster: a master and two workers, processes that see the data folder under the same path.
"""
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pyarrow.parquet as pq
import pytest

from geminga.storage.jobs.compacting.engines import NoSpark, check_java

from ..harness import COMMAND, HANG_SECONDS, Broker, eventually, request, unique_topic
from ..spark_processes import started
from .test_compaction import compacted_values, fill

pytestmark = [pytest.mark.spark, pytest.mark.nightly]


@pytest.fixture
def client(broker) -> Iterator[pulsar.Client]:
    made = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield made
    made.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[Path]]]:
    """(the master's address, the workers' folders); each worker has a core."""
    try:
        check_java()
    except NoSpark as error:
        pytest.skip(str(error))
    with contextlib.ExitStack() as processes:
        master = processes.enter_context(master_alone(tmp_path / "master.log"))
        folders = [tmp_path / f"worker-{number}" for number in range(2)]
        for folder in folders:
            log = folder.with_suffix(".log")
            processes.enter_context(started(log, "worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir",
                                            str(folder), master))
            eventually(lambda log=log: "Successfully registered with master" in log.read_text())
        yield master, folders


@contextlib.contextmanager
def master_alone(log: Path) -> Iterator[str]:
    with started(log, "master.Master", "--port", "0"):
        yield eventually(lambda: re.search(r"Starting Spark master at (spark://\S+)", log.read_text()))[1]


def test_a_cluster_without_workers_is_not_waited_for_without_end(tmp_path):
    program = "import sys; from pathlib import Path; from geminga.storage.jobs.compacting import engines\n" \
              "engines._EXECUTORS_S = 2; engines.Spark(Path(sys.argv[1]), sys.argv[2])"
    with master_alone(tmp_path / "master.log") as master:
        done = subprocess.run([sys.executable, "-c", program, tmp_path / "scratch", master], capture_output=True,
                              text=True, timeout=HANG_SECONDS)
    assert f"NoSpark: {master}: no executor with 640m of memory has started within 2 s" in done.stderr, done.stderr
    assert not (tmp_path / "scratch").exists()


def test_a_cluster_of_two_workers_compacts_and_exports(broker, client: pulsar.Client, cluster, tmp_path):
    if not isinstance(broker, Broker):
        pytest.skip("needs the broker's data folder")
    (master, folders), topics = cluster, [unique_topic("cluster") for _ in range(3)]
    for topic in topics:
        fill(client, topic)
        place = f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/export"
        assert request("POST", place, b'"messages"')[0] == 204
    command = [*COMMAND[:-1], "nightly", "--data-dir", broker.data_dir, "--engine", "spark", "--master", master]
    done = subprocess.run([*command, *(word for topic in topics for word in ("--topic", topic))], capture_output=True,
                          text=True, timeout=2 * HANG_SECONDS,
                          env=os.environ | {"GEMINGA_NIGHTLY_TABLES_URL": str(tmp_path),
                                            "GEMINGA_NIGHTLY_NICENESS": "0"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert master in done.stdout
    assert all(any(folder.glob("app-*/*")) for folder in folders)      # each worker has run an executor
    for topic in topics:
        assert compacted_values(client, topic) == {f"key-{number % 5}": number for number in range(45, 50)}
        table = pq.read_table(tmp_path / topic.removeprefix("persistent://") / "messages")
        assert sorted(map(int, table["_payload"].to_pylist())) == list(range(50))

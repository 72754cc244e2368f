"""Processes of a Spark cluster on this host: a master, and workers."""
import contextlib
import os
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

SPARK = Path(find_spec("pyspark").submodule_search_locations[0])


@contextlib.contextmanager
def started(log: Path, role: str, *words: str, group: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the cluster, whose output goes to the log.

    role: "master.Master" or "worker.Worker".  group: the folder of a control group that the process and its children
    are in.
    """
    command = [SPARK / "bin" / "spark-class", f"org.apache.spark.deploy.{role}", "--host", "127.0.0.1", "--webui-port",
               "0", *words]
    if group is not None:
        command = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *command]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | {"SPARK_HOME": str(SPARK)})
    try:
        yield process
    finally:
        process.kill()
        process.wait()

"""Runs pulsar-admin commands against two brokers, in the same order, and prints where their answers differ.

    python tests/supervisor/sweep/run.py [--jars DIR] [--only TEXT] HTTP_URL HTTP_URL

The second broker is compared with the first.  commands.txt has the commands, and reasons.txt the reasons of known
differences, which are only counted.  Exit status, output and the reason of a refusal are compared; of measured numbers,
ids and times only the presence.  The run needs a Java runtime, and Maven unless DIR holds the tool's jars.

Exit status: 1 when there is a difference without a reason.
"""
import argparse
import base64
import fnmatch
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pulsar

HERE = Path(__file__).parent
# Only names and types are compared for these: their values are measured, or the broker's own.
MEASURED = ("tenants list", "topics stats*", "topics partitioned-stats*", "topics info-internal*",
            "topics last-message-id*",
            "topics get-message-id *", "topics terminate*", "topics partitioned-terminate*", "topics get-backlog-size*",
            "broker-stats *", "brokers get-runtime-config", "schemas metadata*")


class Outcome(NamedTuple):
    status: int
    out: Any        # parsed if it is JSON
    reason: str


Compared = tuple[str, Outcome | None, Outcome | None]      # (command, theirs, ours)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jars", type=Path, help="a folder with pulsar-client-tools and what it needs")
    parser.add_argument("--only", default="",
                        help="commands that contain this text; those that set the scene are run too")
    parser.add_argument("urls", nargs=2, metavar="HTTP_URL")
    options = parser.parse_args()
    compared = outcomes(options.jars or _fetched(), *options.urls)
    return _report([each for each in compared if options.only in each[0]])


def outcomes(jars: Path, *urls: str) -> list[Compared]:
    """Return each command with its outcomes at two brokers; jars: a folder with pulsar-client-tools."""
    commands = _lines_of("commands.txt")
    with ThreadPoolExecutor() as pool:
        theirs, ours = pool.map(lambda url: _all(jars, url.rstrip("/"), commands), urls)
    return list(zip(commands, theirs, ours, strict=True))


def _lines_of(name: str) -> list[str]:
    return [line.strip() for line in (HERE / name).read_text().splitlines() if line.strip() and line[0] != "#"]


def _fetched() -> Path:
    sys.path.insert(0, str(HERE.parents[2]))
    from tests.clients.java import fetch_jars
    return fetch_jars()


def _all(jars: Path, url: str, commands: list[str]) -> list[Outcome | None]:
    """Return the outcome of each command."""
    with tempfile.TemporaryDirectory() as folder:
        conf, logging = Path(folder) / "client.conf", Path(folder) / "log4j2.xml"
        conf.write_text(f"webServiceUrl={url}/\nbrokerServiceUrl={url}/\n")
        logging.write_text('<Configuration><Loggers><Root level="off"/></Loggers></Configuration>')
        opened = [word for package in ("java.base/sun.net", "java.base/java.nio")
                  for word in ("--add-opens", f"{package}=ALL-UNNAMED")]
        quick = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        java = ["java", *quick, *opened, f"-Dlog4j.configurationFile={logging}", "-cp", f"{jars}/*",
                HERE / "Admin.java", conf]
        with subprocess.Popen(
            java, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=HERE
        ) as tool:
            found = []
            for number, command in enumerate(commands):
                found.append(_publish(url, command) if command[0] == "!" else _run(tool, url, command))
                if number % 100 == 99:
                    print(f"{url}: {number + 1} of {len(commands)}", file=sys.stderr, flush=True)
            tool.stdin.close()
    return found


def _publish(url: str, command: str) -> None:
    _, topic, count = command.split()
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(int(count)):
        producer.send(f"message {number}".encode(), properties={"number": str(number)},
                      partition_key=f"key {number % 3}")
    client.close()


def _run(tool: subprocess.Popen, url: str, command: str) -> Outcome:
    tool.stdin.write("\x1f".join(shlex.split(command)) + "\n")
    tool.stdin.flush()
    status, out, err = (tool.stdout.readline().rstrip("\n").split(" ") + ["", ""])[:3]
    out, err = (base64.b64decode(text).decode() for text in (out, err))
    out = _neutral(re.sub(r"^Exit code is .*$", "", out, flags=re.MULTILINE).strip(), url)
    reason = re.search(r"Reason: (.*)", err, re.DOTALL)
    try:
        parsed = json.loads(out)
    except ValueError:
        parsed = out.splitlines()
    if any(fnmatch.fnmatchcase(command, pattern) for pattern in MEASURED):
        parsed = sorted(_shape(parsed))
    said = reason[1] if reason else err
    return Outcome(int(status), parsed, _neutral(" ".join(said.split()), url)[:300])


def _neutral(text: str, url: str) -> str:
    """Return an answer without what differs from broker to broker and from time to time."""
    port = url.rpartition(":")[2]
    for pattern, name in ((rf"(localhost|127\.0\.0\.1):{port}\b", "HOST:HTTP"),
                          (r"(localhost|127\.0\.0\.1):\d+", "HOST:PORT"),
                          (r"\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-][\d:]+)?", "TIME"),
                          (r"\b1[5-9]\d{11}\b", "1500000000000"),      # a number in JSON
                          (r"Message ID: \S+", "Message ID"), (r'"\d+:\d+"', '"ID"'),
                          (r"\b\w+Exception: ", ""), (r"\b(java|org)(\.\w+)+\$?(?=\W|$)", "")):
        text = re.sub(pattern, name, text)
    return text


def _shape(value: Any, path: str = "") -> set[str]:
    """Return paths and types of all values; names that are numbers count as one."""
    if isinstance(value, dict):
        return {
            each for name, item in value.items() for each in _shape(item, f"{path}.{re.sub('[0-9]+', '#', name)}")
        } or {path + " {}"}
    if isinstance(value, list):
        return {each for item in value for each in _shape(item, path + "[]")} or {path + " []"}
    kind = "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
    return {f"{path} {kind}"}


def differing(compared: list[Compared]) -> Iterator[tuple[str, Outcome, Outcome, str | None]]:
    """Yield the commands whose outcomes differ, with the known reason, None without one."""
    reasons = [tuple(part.strip() for part in line.split("|", 1)) for line in _lines_of("reasons.txt")]
    for command, theirs, ours in compared:
        if theirs is not None and ours is not None and theirs != ours:
            yield command, theirs, ours, next(
                (reason for pattern, reason in reasons if fnmatch.fnmatchcase(command, pattern)
                 and (theirs.status == ours.status or "in other words" not in reason)), None)


def _report(compared: list[Compared]) -> int:
    known = unknown = 0
    for command, theirs, ours, reason in differing(compared):
        known += reason is not None
        unknown += reason is None
        print(f"{command}\n    {reason or '?'}")
        for line in _differences(theirs, ours):
            print(f"        {line[:300]}")
    same = sum(theirs is not None for _, theirs, _ in compared) - known - unknown
    print(f"{same} the same, {known} differ for a known reason, {unknown} differ")
    return 1 if unknown else 0


def _differences(theirs: Outcome, ours: Outcome) -> list[str]:
    found = []
    if theirs.status != ours.status:
        found.append(f"status {theirs.status} and {ours.status}")
    if theirs.reason != ours.reason:
        found += [f"{mark} {reason}" for mark, reason in (("-", theirs.reason), ("+", ours.reason)) if reason]
    if theirs.out != ours.out:
        before, after = (_lines(outcome.out) for outcome in (theirs, ours))
        found += [f"- {line}" for line in before if line not in after][:8] + [
            f"+ {line}" for line in after if line not in before
        ][:8]
        if sorted(before) == sorted(after):
            found.append("another order")
    return found


def _lines(out: Any) -> list[str]:
    if isinstance(out, list):
        return [json.dumps(item) if not isinstance(item, str) else item for item in out]
    return [f"{name}: {json.dumps(item)}" for name, item in out.items()] if isinstance(out, dict) else [json.dumps(out)]


if __name__ == "__main__":
    sys.exit(main())

"""Bridges and frameworks with the same small job: each copies a topic, is stopped or killed, and goes on."""

import contextlib
import json
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from . import registries
from .clients import JVM
from .running import Ground
from .subject import Answers, NotRun, Subject

if TYPE_CHECKING:
    import pulsar

NAME = "bridges"
ABOUT = ("Each bridge copies a topic to another while 200 messages are published, and in the middle it or the broker "
         "is stopped or killed, and goes on. What matters is how many are lost, come twice, or come in another order. "
         "Messages that had come before may come again after; with Flink only after the broker's restart.")

COUNT, MIDDLE = 200, 150      # messages, and how many are published when something happens
START_SECONDS = 60            # longest wait for what has to come: a framework starts, or a broker does
SILENCE_SECONDS = 3           # shortest wait for what must not
STOP_SECONDS = 40
ONCE, AT_LEAST_ONCE = "200 of 200, in order, none twice", "200 of 200, in order, no later one twice"
JOB = {
    "copied": ONCE,
    "stopped and gone on with": AT_LEAST_ONCE,
    "killed and gone on with": AT_LEAST_ONCE,
    "broker started again": AT_LEAST_ONCE,
}

Command = Callable[[list[str]], list[str | Path]]      # (SERVICE, HTTP, INPUT, OUTPUT, FOLDER) -> command


def _said(got: list[int], expected: str) -> str:
    """Return what came of the published numbers; `expected` says whether some may come twice."""
    firsts = list(dict.fromkeys(got))
    twice = [number for number, times in Counter(got).items() if times > 1]
    if expected == AT_LEAST_ONCE:
        repeated = "later ones twice" if max(twice, default=0) > MIDDLE else "no later one twice"
    else:
        repeated = "some twice" if twice else "none twice"
    return f"{len(firsts)} of {COUNT}, {'in order' if firsts == sorted(firsts) else 'out of order'}, {repeated}"


class _Output:
    """The copies that have come."""

    def __init__(self, client: "pulsar.Client", topic: str) -> None:
        self._got: dict[str, int] = {}      # by the id: the broker's restart gives the lab some again
        self._consumer = client.subscribe(topic, "lab")

    @property
    def got(self) -> list[int]:
        return list(self._got.values())

    def wait(self, process: "subprocess.Popen[bytes]", seconds: float, count: int = COUNT) -> None:
        """Receive until so many different ones are there, nothing has come for some time, or the bridge has ended."""
        import pulsar

        until = time.monotonic() + seconds
        while len(set(self.got)) < count and time.monotonic() < until and process.poll() is None:
            with contextlib.suppress(pulsar.Timeout):
                message = self._consumer.receive(200)
                self._consumer.acknowledge(message)
                self._got[str(message.message_id())] = int(message.data())
                until = time.monotonic() + seconds


@contextlib.contextmanager
def _running(command: list[str | Path], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "bridge.log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _copy(ground: Ground, command: Command, what: str, expected: str) -> str:
    """Do the job with one thing that happens in its middle, and return what came."""
    import pulsar

    name = f"persistent://public/default/bridge-{uuid.uuid4().hex[:6]}"
    folder = ground.folder / name.rpartition("/")[2]
    folder.mkdir()
    line = command([ground.told["service"], ground.told["http"], f"{name}-in", f"{name}-out", str(folder)])
    with contextlib.ExitStack() as ends:
        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(folder / "lab.log"))
        client = pulsar.Client(ground.told["service"], logger=quiet)
        ends.callback(client.close)
        client.subscribe(f"{name}-in", "bridge").close()      # from here on
        output = _Output(client, f"{name}-out")
        producer = client.create_producer(f"{name}-in", send_timeout_millis=60_000)
        for number in range(MIDDLE // 2):
            producer.send(str(number).encode())
        process = ends.enter_context(_running(line, folder))
        output.wait(process, START_SECONDS, count=1)
        if not output.got:
            return "nothing came: " + (folder / "bridge.log").read_text()[-250:]
        for number in range(MIDDLE // 2, COUNT):
            if number == MIDDLE:
                if what == "broker started again":
                    ground.please({"please": "restart"})
                elif what != "copied":
                    (process.terminate if what.startswith("stopped") else process.kill)()
                    try:
                        process.wait(STOP_SECONDS)
                    except subprocess.TimeoutExpired:
                        return f"it did not stop within {STOP_SECONDS} s"
            producer.send(str(number).encode())
        if process.poll() is not None:
            process = ends.enter_context(_running(line, folder))
        output.wait(process, START_SECONDS)
        output.wait(process, SILENCE_SECONDS, count=COUNT + 1)
    return _said(output.got, expected)


def _bridge(name: str, versions: str, install: Callable[[], Command], job: dict[str, str] = JOB,
            decided: dict[str, str] | None = None) -> Subject:
    def ask(ground: Ground, asked: list[str]) -> Answers:
        command = install()
        for what in asked:
            yield what, _copy(ground, command, what, job[what])

    return Subject(name, versions, job, ask, compared=True, decided=decided or {})


def _java(program: str, packages: dict[str, str], managed: dict[str, str] | None = None,
          options: tuple[str, ...] = ()) -> Callable[[], Command]:
    def install() -> Command:
        jars = registries.jars(packages, managed or {})
        classes = registries.classes(jars, registries.PROGRAMS / f"{program}.java")
        return lambda said: ["java", *JVM, *options, "-cp", f"{classes}:{jars}/*", program, *said]

    return install


def _camel(version: str) -> Subject:
    packages = {f"org.apache.camel:camel-{name}": version for name in ("pulsar", "main")}
    return _bridge(f"Camel {version}", f"camel-pulsar {version}", _java("CopyCamel", packages))


def _spring(version: str, client: str, annotations: str) -> Subject:
    # what Spring Boot's parent sets
    managed = {f"org.apache.pulsar:pulsar-client-{name}": client for name in ("all", "api", "admin-api")}
    managed["com.fasterxml.jackson.core:jackson-annotations"] = annotations
    return _bridge(f"Spring Boot {version}", f"spring-boot-starter-pulsar {version}, pulsar-client {client}",
                   _java("CopySpring", {"org.springframework.boot:spring-boot-starter-pulsar": version}, managed))


def _quarkus(version: str) -> Subject:
    def install() -> Command:
        project = registries.maven_project(registries.PROGRAMS / "CopyQuarkus.java", f"""
<dependencyManagement><dependencies><dependency><groupId>io.quarkus.platform</groupId>
<artifactId>quarkus-bom</artifactId><version>{version}</version><type>pom</type><scope>import</scope></dependency>
</dependencies></dependencyManagement>
<dependencies><dependency><groupId>io.quarkus</groupId><artifactId>quarkus-messaging-pulsar</artifactId></dependency>
</dependencies>
<build><plugins><plugin><groupId>io.quarkus.platform</groupId><artifactId>quarkus-maven-plugin</artifactId>
<version>{version}</version><extensions>true</extensions>
<executions><execution><goals><goal>build</goal></goals></execution></executions></plugin></plugins></build>""")
        program = project / "target/quarkus-app/quarkus-run.jar"

        def command(said: list[str]) -> list[str | Path]:
            ways = {"incoming.in": said[2], "outgoing.out": said[3]}
            settings = [f"-Dmp.messaging.{way}.{setting}" for way, topic in ways.items() for setting in (
                "connector=smallrye-pulsar", f"serviceUrl={said[0]}", f"topic={topic}", "schema=BYTES")]
            settings.append("-Dmp.messaging.incoming.in.subscriptionName=bridge")
            return ["java", *JVM, *settings, "-Dquarkus.http.host-enabled=false", "-jar", program]

        return command

    return _bridge(f"Quarkus {version}", f"quarkus-messaging-pulsar {version}", install)


def _flink(version: str, flink: str) -> Subject:
    packages = {"org.apache.flink:flink-connector-pulsar": version} | {
        f"org.apache.flink:flink-{name}": flink for name in ("streaming-java", "clients", "connector-base")}
    opened = tuple(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.lang", "java.util", "java.time"))
    # what came before the broker's restart was there twice in two of three runs with Apache Pulsar as well
    job = dict.fromkeys(JOB, ONCE) | {"broker started again": AT_LEAST_ONCE}
    return _bridge(f"Flink {flink}", f"flink-connector-pulsar {version}, Flink {flink}",
                   _java("CopyFlink", packages, options=opened), job=job)


def _benthos(version: str) -> Subject:
    def install() -> Command:
        program = registries.go_program([registries.PROGRAMS / "benthos.go"],
                                        {"github.com/benthosdev/benthos/v4": version}, without=["inet.af/peercred"])

        def command(said: list[str]) -> list[str | Path]:
            pulsar = {"url": said[0]}
            settings = {
                "http": {"enabled": False},
                "input": {"pulsar": {**pulsar, "topics": [said[2]], "subscription_name": "bridge",
                                     "subscription_type": "exclusive"}},
                "pipeline": {"threads": 1},
                "output": {"pulsar": {**pulsar, "topic": said[3], "max_in_flight": 1}},
            }
            file = Path(said[4]) / "settings.yaml"
            file.write_text(json.dumps(settings))      # JSON is YAML
            return [program, "-c", file]

        return command

    return _bridge(f"Benthos {version.removeprefix('v')}", f"benthos {version}", install)


def _dapr(version: str) -> Subject:
    def install() -> Command:
        program = registries.go_program([registries.PROGRAMS / "dapr.go"],
                                        {"github.com/dapr/components-contrib": version})
        return lambda said: [program, *said]

    return _bridge(f"Dapr {version.removeprefix('v')}", f"components-contrib {version}", install)


def _spark(version: str, spark: str) -> Subject:
    packages = {"io.streamnative.connectors:pulsar-spark-connector_2.12": version,
                "org.apache.spark:spark-sql_2.12": spark}
    opened = tuple(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in (
        "java.lang", "java.lang.invoke", "java.net", "java.util", "java.util.concurrent", "sun.nio.ch",
        "sun.util.calendar"))
    return _bridge(f"Spark {spark}", f"pulsar-spark-connector {version}, Spark {spark}",
                   _java("CopySpark", packages, options=opened))


def _not_served(name: str, group: str, artifact: str, version: str) -> Subject:
    def install() -> Command:
        try:
            registries.jars({f"{group}:{artifact}": version}, {})
        except NotRun:
            raise NotRun(f"Maven's registry does not serve {artifact} {version}") from None
        raise NotRun(f"{artifact} {version} is served now: write its program")

    return _bridge(f"{name} {version}", f"{artifact} {version}", install)


def subjects(newest: bool) -> list[Subject]:
    """Return the bridges; there are none of newest versions, as Maven's registry tells none."""
    if newest:
        return []
    return [_camel("4.18.0"), _spring("3.5.7", "4.0.7", "2.19.2"), _spring("4.0.7", "4.1.3", "2.21"),
            _quarkus("3.33.2"), _flink("4.1.0-1.18", "1.18.1"), _benthos("v4.27.0"), _dapr("v1.18.0"),
            _spark("3.1.1.4", "3.2.4"),
            _not_served("Debezium server", "io.debezium", "debezium-server-pulsar", "3.0.0.Final")]

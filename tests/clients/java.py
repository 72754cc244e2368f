"""Apache Pulsar's own command line tools, as a Java user has them: fetched once with Maven, run as processes.

The jars go to $XDG_CACHE_HOME/geminga-tests (or ~/.cache/geminga-tests), in a folder named after what was asked for, so
that a change of version fetches anew and nothing is ever half there.
"""

import base64
import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from ..harness import HANG_SECONDS

PULSAR = "4.0.8"
LOG4J = "2.23.1"
DEPENDENCIES = {
    "org.apache.pulsar:pulsar-client-tools": PULSAR,
    "org.apache.pulsar:pulsar-testclient": PULSAR,
    "org.apache.logging.log4j:log4j-slf4j2-impl": LOG4J,
    "org.apache.logging.log4j:log4j-core": LOG4J,
}
# Asked for by the above in a version that was never released; the one before it will do.
MANAGED = {
    "org.apache.pulsar:jetcd-core-shaded": "4.0.7",
    "org.apache.pulsar:pulsar-opentelemetry": "4.0.7",
}

# The client of Pulsar 5, without netty's native code, which is fast only, and which some mirrors do not have.
V5_DEPENDENCIES = {
    "org.apache.pulsar:pulsar-client-v5": "5.0.1",
    "io.netty:netty-transport-classes-epoll": "4.2.19.Final",
    "org.apache.logging.log4j:log4j-slf4j2-impl": LOG4J,
    "org.apache.logging.log4j:log4j-core": LOG4J,
}
V5_EXCLUDED = {"io.netty": ["netty-resolver-dns-native-macos", "netty-transport-native-epoll",
                            "netty-transport-native-io_uring"]}
# Parents of the versions asked for by the above are not on every mirror.  Maven takes the nearest version that it
# meets of a library, which for some is not the one that the client was built with.
V5_MANAGED = {
    "org.apache.bookkeeper:bookkeeper-common-allocator": "4.18.0",
    "org.apache.bookkeeper:circe-checksum": "4.18.0",
    "org.apache.bookkeeper:cpu-affinity": "4.18.0",
    "org.asynchttpclient:async-http-client": "3.0.13",
    "com.typesafe.netty:netty-reactive-streams": "2.0.17",
    "com.fasterxml.jackson.module:jackson-module-jsonSchema": "2.21.6",
    "com.fasterxml.jackson.core:jackson-core": "2.21.7",
    "io.netty:netty-codec-compression": "4.2.19.Final",
    "io.netty:netty-codec-http2": "4.2.19.Final",
}

CLIENT = "org.apache.pulsar.client.cli.PulsarClientTool"
PERF = "org.apache.pulsar.testclient.PulsarPerfTestTool"
ADMIN = "org.apache.pulsar.admin.cli.PulsarAdminTool"

SOURCES = Path(__file__).parent / "java_sources"      # programs of the tests, no two of the same name
ADMIN_LINES = Path(__file__).parents[1] / "supervisor/sweep/Admin.java"      # runs a command of each line of its input

FETCH_SECONDS = 600
RUN_SECONDS = HANG_SECONDS
COMPILE_SECONDS = 300

OPENED = ["java.base/sun.net", "java.base/jdk.internal.platform", "java.base/java.nio", "java.base/jdk.internal.misc"]
# Each run lasts seconds: time spent on optimising code for later would be lost.
JVM_OPTIONS = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dio.netty.tryReflectionSetAccessible=true"]

LOGGING = """<Configuration>
  <Appenders>
    <Console name="stderr" target="SYSTEM_ERR"><PatternLayout pattern="%d %p %c{1} %m%n"/></Console>
  </Appenders>
  <Loggers>
    <Logger name="org.apache.pulsar.testclient" level="info"/>
    <Logger name="org.apache.pulsar.client.cli" level="info"/>
    <Root level="warn"><AppenderRef ref="stderr"/></Root>
  </Loggers>
</Configuration>
"""


def cache_dir() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "geminga-tests"


def _pom(dependencies: dict[str, str], managed: dict[str, str], excluded: dict[str, list[str]]) -> str:
    left_out = "".join(f"<exclusion><groupId>{group}</groupId><artifactId>{artifact}</artifactId></exclusion>"
                       for group, artifacts in excluded.items() for artifact in artifacts)

    def all_of(versions: dict[str, str], inside: str) -> str:
        named = ((*name.split(":"), version, inside) for name, version in versions.items())
        form = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>"
        return "<dependencies>" + "".join(form.format(*one) for one in named) + "</dependencies>"

    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>geminga.tests</groupId><artifactId>java-tools</artifactId><version>1</version>"
        f"<dependencyManagement>{all_of(managed, '')}</dependencyManagement>"
        f"{all_of(dependencies, f'<exclusions>{left_out}</exclusions>' if left_out else '')}</project>"
    )


def fetch_jars() -> Path:
    """Return the folder with the jars of Pulsar's Java tools; skip the test if they cannot be fetched."""
    return _fetched(_pom(DEPENDENCIES, MANAGED, {}), "the Java tools")


def fetch_v5_jars() -> Path:
    """Return the folder with the jars of the client of Pulsar 5; skip the test if they cannot be fetched."""
    return _fetched(_pom(V5_DEPENDENCIES, V5_MANAGED, V5_EXCLUDED), "the client of Pulsar 5")


def _fetched(pom: str, what: str) -> Path:
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    jars = cache_dir() / f"java-{hashlib.sha256(pom.encode()).hexdigest()[:12]}"
    if jars.exists():
        return jars
    cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir()) as scratch:
        (Path(scratch) / "pom.xml").write_text(pom)
        command = ["mvn", "-q", "-B", "-f", f"{scratch}/pom.xml", "dependency:copy-dependencies"]
        command += [f"-DoutputDirectory={scratch}/lib", "-DincludeScope=runtime"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS)
        except subprocess.TimeoutExpired:
            pytest.skip(f"Maven did not fetch {what} within {FETCH_SECONDS} s")
        if done.returncode != 0:
            pytest.skip(f"Maven could not fetch {what}: {(done.stdout + done.stderr)[-500:]}")
        (Path(scratch) / "lib").rename(jars)
    return jars


@cache
def _version_of_java() -> str:
    """Return a name of the installed Java, which other versions do not have."""
    said = subprocess.run(["java", "-version"], capture_output=True, timeout=RUN_SECONDS, check=True).stderr
    return hashlib.sha256(said).hexdigest()[:12]


def _compiled(jars: Path) -> Path:
    """Return a jar with all programs of SOURCES for these jars, compiled once per state of them.

    One run of the compiler costs little more for all of them than for one.
    """
    is_v5 = any(jars.glob("pulsar-client-v5-*.jar"))
    files = sorted(file for file in SOURCES.rglob("*.java") if ("client.api.v5" in file.read_text()) == is_v5)
    state = hashlib.sha256(b"".join(file.read_bytes() for file in files) + jars.name.encode()).hexdigest()[:12]
    programs = jars.with_name(f"programs-{state}-{_version_of_java()}.jar")
    if programs.exists():
        return programs
    compiler = ["java", *JVM_OPTIONS, "-m", "jdk.compiler/com.sun.tools.javac.Main", "-proc:none"]
    with tempfile.TemporaryDirectory(dir=cache_dir()) as scratch:
        path = ":".join(map(str, jars.glob("*.jar")))      # the compiler knows no wildcard
        compiled = subprocess.run([*compiler, "-d", f"{scratch}/classes", "-cp", path, *map(str, files)],
                                  capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
        assert compiled.returncode == 0, compiled.stderr[-3000:]
        shutil.make_archive(f"{scratch}/programs", "zip", f"{scratch}/classes")
        Path(scratch, "programs.zip").rename(programs)
    return programs


class JavaTools:
    """Runs Pulsar's Java tools against one broker; a tool that fails fails the test."""

    def __init__(self, jars: Path, folder: Path, service_url: str, http_url: str) -> None:
        self._service_url = service_url
        self._conf = folder / "client.conf"
        self._conf.write_text(f"webServiceUrl={http_url}/\nbrokerServiceUrl={service_url}/\n")
        logging = folder / "log4j2.xml"
        logging.write_text(LOGGING)
        opened = [option for package in OPENED for option in ("--add-opens", f"{package}=ALL-UNNAMED")]
        programs = _compiled(jars)
        self._java = ["java", *JVM_OPTIONS, *opened, f"-Dlog4j.configurationFile={logging}", "-cp",
                      f"{jars}/*:{programs}"]
        # Classes as a virtual machine of this version has loaded them from these jars.
        self._archive = programs.with_suffix(".jsa")

    @contextlib.contextmanager
    def _sharing(self) -> Iterator[list[str]]:
        """Yield options with which a run of the client library takes its classes from an archive, or else makes it.

        Loading and verifying classes is half of the processor's time of a run that lasts seconds.
        """
        if self._archive.exists():
            yield [f"-XX:SharedArchiveFile={self._archive}", "-Xlog:disable"]
            return
        scratch = self._archive.with_name(f"{self._archive.name}.{os.getpid()}-{threading.get_ident()}")
        yield [f"-XX:ArchiveClassesAtExit={scratch}", "-Xlog:disable"]
        with contextlib.suppress(FileNotFoundError):      # this virtual machine cannot make one
            scratch.rename(self._archive)

    def client(self, *arguments: str) -> str:
        return self._run(CLIENT, *arguments)

    def perf(self, *arguments: str) -> str:
        return self._run(PERF, *arguments)

    def admin(self, *arguments: str) -> str:
        return self._run(ADMIN, *arguments)

    def admin_all(self, commands: list[str]) -> list[tuple[int, str]]:
        """Run pulsar-admin commands in one virtual machine; return exit status and output of each."""
        said = "".join("\x1f".join(command.split()) + "\n" for command in commands)
        with self._sharing() as options:
            command = [self._java[0], *options, *self._java[1:], str(ADMIN_LINES), str(self._conf)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, input=said)
        assert done.returncode == 0, done.stderr[-3000:]
        lines = [line.split(" ") for line in done.stdout.splitlines()]
        return [(int(status), base64.b64decode(out).decode()) for status, out, _ in lines]

    def program(self, source: Path, *arguments: str, said: str = "") -> str:
        """Run a Java program of one source file with `said` on standard input; return its standard output.

        Programs of SOURCES are compiled already.  Others run as their users run them, from the file.
        """
        main = source.stem if source.is_relative_to(SOURCES) else str(source)
        with self._sharing() as options:
            command = [self._java[0], *options, *self._java[1:], main, self._service_url, *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, input=said)
        assert done.returncode == 0, (
            f"{source} {arguments}: status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
        return done.stdout

    def start(self, folder: Path, main: str, *arguments: str) -> "subprocess.Popen[str]":
        """Start the class `main` of SOURCES, with pipes for input and output; the log goes to the file `log` in a
        folder.
        """
        sharing = [f"-XX:SharedArchiveFile={self._archive}", "-Xlog:disable"] if self._archive.exists() else []
        with (folder / "log").open("w") as log:
            command = [self._java[0], *sharing, *self._java[1:], main, self._service_url, *arguments]
            return subprocess.Popen(
                command, bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)

    @contextlib.contextmanager
    def running(self, folder: Path, main: str, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
        """Start a program as `start` does, and kill it at the end, unless it has ended.  Lines are sent as written."""
        with self.start(folder, main, *arguments) as process:
            try:
                yield process
            finally:
                process.kill()

    def _run(self, tool: str, *arguments: str) -> str:
        words = [*self._java[1:], f"-Dpulsar.client.conf={self._conf}", tool, str(self._conf), *arguments]
        environment = {**os.environ, "PULSAR_CLIENT_CONF": str(self._conf)}
        with self._sharing() as options:
            command = [self._java[0], *options, *words]
            done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, env=environment)
        assert done.returncode == 0, (
            f"{tool} {arguments}: status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
        return done.stdout + done.stderr

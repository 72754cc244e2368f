"""Apache Pulsar's own command line tools, as a Java user has them: fetched once with Maven, run as processes.

The jars go to $XDG_CACHE_HOME/geminga-tests (or ~/.cache/geminga-tests), in a folder named after what was asked for, so
that a change of version fetches anew and nothing is ever half there.
"""

import base64
import hashlib
import os
import shutil
import subprocess
import tempfile
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

CLIENT = "org.apache.pulsar.client.cli.PulsarClientTool"
PERF = "org.apache.pulsar.testclient.PulsarPerfTestTool"
ADMIN = "org.apache.pulsar.admin.cli.PulsarAdminTool"

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


def _pom() -> str:
    def all_of(versions: dict[str, str]) -> str:
        named = ((*name.split(":"), version) for name, version in versions.items())
        form = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
        return "<dependencies>" + "".join(form.format(*one) for one in named) + "</dependencies>"

    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>geminga.tests</groupId><artifactId>java-tools</artifactId><version>1</version>"
        f"<dependencyManagement>{all_of(MANAGED)}</dependencyManagement>{all_of(DEPENDENCIES)}</project>"
    )


def fetch_jars() -> Path:
    """Return the folder with the jars of Pulsar's Java tools; skip the test if they cannot be fetched."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    pom = _pom()
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
            pytest.skip(f"Maven did not fetch the Java tools within {FETCH_SECONDS} s")
        if done.returncode != 0:
            pytest.skip(f"Maven could not fetch the Java tools: {(done.stdout + done.stderr)[-500:]}")
        (Path(scratch) / "lib").rename(jars)
    return jars


class JavaTools:
    """Runs Pulsar's Java tools against one broker; a tool that fails fails the test."""

    def __init__(self, jars: Path, folder: Path, service_url: str, http_url: str) -> None:
        self._service_url = service_url
        self._conf = folder / "client.conf"
        self._conf.write_text(f"webServiceUrl={http_url}/\nbrokerServiceUrl={service_url}/\n")
        logging = folder / "log4j2.xml"
        logging.write_text(LOGGING)
        opened = [option for package in OPENED for option in ("--add-opens", f"{package}=ALL-UNNAMED")]
        self._java = ["java", *JVM_OPTIONS, *opened, f"-Dlog4j.configurationFile={logging}", "-cp", f"{jars}/*"]

    def client(self, *arguments: str) -> str:
        return self._run(CLIENT, *arguments)

    def perf(self, *arguments: str) -> str:
        return self._run(PERF, *arguments)

    def admin(self, *arguments: str) -> str:
        return self._run(ADMIN, *arguments)

    def admin_all(self, commands: list[str]) -> list[tuple[int, str]]:
        """Run pulsar-admin commands in one virtual machine; return exit status and output of each."""
        said = "".join("\x1f".join(command.split()) + "\n" for command in commands)
        done = subprocess.run([*self._java, str(ADMIN_LINES), str(self._conf)], capture_output=True, text=True,
                              timeout=RUN_SECONDS, input=said)
        assert done.returncode == 0, done.stderr[-3000:]
        lines = [line.split(" ") for line in done.stdout.splitlines()]
        return [(int(status), base64.b64decode(out).decode()) for status, out, _ in lines]

    def program(self, source: Path, *arguments: str, said: str = "") -> str:
        """Run a Java program of one source file with `said` on standard input; return its standard output."""
        done = subprocess.run([*self._java, str(source), self._service_url, *arguments], capture_output=True, text=True,
                              timeout=RUN_SECONDS, input=said)
        assert done.returncode == 0, (
            f"{source} {arguments}: status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
        return done.stdout

    def start(self, folder: Path, sources: Path, main: str, *arguments: str) -> "subprocess.Popen[str]":
        """Compile all Java programs of a folder into another folder, and start the class `main` with pipes for input
        and output; the log goes to the file `log` in that folder.
        """
        compiler = ["java", *JVM_OPTIONS, "-m", "jdk.compiler/com.sun.tools.javac.Main", "-proc:none"]
        jars = ":".join(map(str, Path(self._java[-1]).parent.glob("*.jar")))      # the compiler knows no wildcard
        command = [*compiler, "-d", str(folder), "-cp", jars, *map(str, sorted(sources.glob("*.java")))]
        compiled = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
        assert compiled.returncode == 0, compiled.stderr[-3000:]
        with (folder / "log").open("w") as log:
            command = [*self._java[:-1], f"{folder}:{self._java[-1]}", main, self._service_url, *arguments]
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)

    def _run(self, tool: str, *arguments: str) -> str:
        command = [*self._java, f"-Dpulsar.client.conf={self._conf}", tool, str(self._conf), *arguments]
        environment = {**os.environ, "PULSAR_CLIENT_CONF": str(self._conf)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, env=environment)
        assert done.returncode == 0, (
            f"{tool} {arguments}: status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
        return done.stdout + done.stderr

"""Pulsar's client libraries, in many versions, each asked the same things (THINGS)."""

import dataclasses
import re
import uuid
from collections.abc import Callable
from pathlib import Path

from ..clients.java import V5_DEPENDENCIES, V5_EXCLUDED, V5_MANAGED
from . import registries
from .running import Ground
from .subject import Answers, NotRun, Subject

NAME = "clients"
ABOUT = "Each client does the same things by a small program in its language, `tests/lab/programs/`."

# What is asked, with the answer of a client and broker that keep their promises.
THINGS = {
    "exclusive": "20 in order, second refused",
    "failover": "20 in order",
    "shared": "60 of 60, both have some",
    "key shared": "60, each key at one, in order",
    "batches of mixed keys": "30 in order, keys kept",
    "batches by key": "60, each key at one",
    "part of a batch acknowledged": "others come again: 5 in order",
    "cumulative acknowledgement": "others come again: 4 in order",
    "chunks": "12000000 bytes, the same",
    "compression LZ4": "20 in order",
    "compression zlib": "20 in order",
    "compression zstd": "20 in order",
    "compression Snappy": "20 in order",
    "schema JSON": "n0=0 n1=1 n2=2",
    "schema Avro": "n0=0 n1=1 n2=2",
    "schema evolved": "old new",
    "schema refused": "refused",
    "schema string": "text",
    "encryption": "10 in order",
    "dead letters": "3 deliveries, then bad",
    "retry topic": "3 deliveries, then bad",
    "seek by id": "from there: 5 in order",
    "seek by time": "from there: 5 in order",
    "seek to the begin": "10 in order",
    "reader from the begin": "20 in order",
    "reader from an id": "from there: in order",
    "last message id": "the last one",
    "table view": "k0=9 k1=7 k2=8",
    "pattern": "3, and of a later topic",
    "several topics": "12 of 3 topics",
    "partitions": "30, each key in one",
    "partitions added": "10 of 3 partitions",
    "negative acknowledgement": "again, count 1",
    "acknowledgement timeout": "again, count 1",
    "delayed": "now, later, in time",
    "transaction committed": "nothing before, then 5 in order",
    "transaction aborted": "nothing, and the input again",
    "deduplication": "3 in order",
    "closed in the middle": "20 in order",
    "broker started again": "20 of 20, in order",
    "topic deleted": "only after",
    "unsubscribe": "3 in order",
    "properties and times": "[('a', '1'), ('empty', '')] 12345 k o",
    "exclusive producer": "second refused",
    "non-persistent": "10 in order",
    "without a queue": "5 in order",
    "forged token": "refused",
    "expired token": "refused",
    "token over TLS": "10 in order",
    "TLS of a stranger": "refused",
    "lookup over HTTP": "5 in order",
}

Install = Callable[[], tuple[list[str | Path], dict[str, str]]]      # -> (command, environment)


def _client(name: str, versions: str, install: Install, things: dict[str, str] = THINGS) -> Subject:
    def ask(ground: Ground, asked: list[str]) -> Answers:
        command, environment = install()
        prefix = f"{re.sub('[^a-z0-9]+', '-', name.lower())}-{uuid.uuid4().hex[:6]}"
        yield from ground.ask(command, asked, prefix, environment)

    return Subject(name, versions, things, ask, compared=True)



def _with_python(packages: list[str], program: str) -> Install:
    def install() -> tuple[list[str | Path], dict[str, str]]:
        return [registries.python(*packages), registries.PROGRAMS / program], {}

    return install


def _python(version: str) -> Subject:
    return _client(f"Python {version}", f"pulsar-client {version}",
                   _with_python([f"pulsar-client=={version}", "fastavro==1.13.1"], "things.py"))


OF_ASYNCIO = ("exclusive", "failover", "cumulative acknowledgement", "schema JSON", "schema Avro", "seek by id",
              "negative acknowledgement", "closed in the middle", "broker started again", "unsubscribe",
              "expired token", "token over TLS")


def _asyncio(version: str) -> Subject:
    return _client(f"asyncio {version}", f"pulsar-client {version}",
                   _with_python([f"pulsar-client=={version}", "fastavro==1.13.1"], "things_asyncio.py"),
                   things={thing: THINGS[thing] for thing in OF_ASYNCIO})


def _aiopulsar(version: str) -> Subject:
    packages = [f"aiopulsar-py=={version}", "pulsar-client==3.13.0", "fastavro==1.13.1"]
    return _client(f"aiopulsar-py {version}", f"aiopulsar-py {version}, pulsar-client 3.13.0",
                   _with_python(packages, "things_asyncio.py"), things={thing: THINGS[thing] for thing in OF_ASYNCIO})


OF_MQ = ("shared", "negative acknowledgement", "closed in the middle", "broker started again", "forged token",
         "expired token")


def _mqclient(version: str) -> Subject:
    return _client(f"oms-mqclient {version}", f"oms-mqclient {version}, pulsar-client 3.13.0",
                   _with_python([f"oms-mqclient=={version}", "pulsar-client==3.13.0"], "things_mq.py"),
                   things={thing: THINGS[thing] for thing in OF_MQ})


# Options of a Java that runs for seconds.
JVM = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dio.netty.tryReflectionSetAccessible=true",
       "--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
       "--add-opens=java.base/sun.net=ALL-UNNAMED"]


def _with_jars(jars: Callable[[], Path], program: str) -> Install:
    """Return what installs a program of Java, which may use the helpers of Things.java."""
    def install() -> tuple[list[str | Path], dict[str, str]]:
        folder = jars()
        sources = dict.fromkeys((registries.PROGRAMS / "Things.java", registries.PROGRAMS / f"{program}.java"))
        return ["java", *JVM, "-cp", f"{registries.classes(folder, *sources)}:{folder}/*", program], {}

    return install


def _jars_of_5(version: str) -> Path:
    """Return the jars of the client of Pulsar 5, which has the interfaces of both Pulsar 4 and 5."""
    own = {f"org.apache.pulsar:pulsar-client-{name}": version for name in ("v5", "messagecrypto-bc")}
    return registries.jars(V5_DEPENDENCIES | own, V5_MANAGED, V5_EXCLUDED)


def _java(version: str) -> Subject:
    if version.startswith("5"):
        return _client(f"Java {version}", f"pulsar-client-original {version}",
                       _with_jars(lambda: _jars_of_5(version), "Things"))
    return _client(f"Java {version}", f"pulsar-client {version}", _with_jars(
        lambda: registries.jars({"org.apache.pulsar:pulsar-client": version}, {}), "Things"))


# What the interface of Pulsar 5 lacks is not asked: exclusive consumers, keys at one of several, seeks, patterns.
OF_V5 = ("failover", "shared", "batches of mixed keys", "cumulative acknowledgement", "chunks", "compression LZ4",
         "compression zlib", "compression zstd", "compression Snappy", "schema JSON", "schema Avro", "schema refused",
         "schema string", "encryption", "dead letters", "reader from the begin", "reader from an id", "partitions",
         "negative acknowledgement", "acknowledgement timeout", "delayed", "transaction committed",
         "transaction aborted", "deduplication", "closed in the middle", "broker started again", "exclusive producer",
         "forged token", "expired token", "token over TLS", "TLS of a stranger")


def _v5(version: str) -> Subject:
    things = {thing: THINGS[thing] for thing in OF_V5} | {"properties and times": "[('a', '1'), ('empty', '')] 12345 k"}
    return _client(f"Java V5 {version}", f"pulsar-client-v5 {version}",
                   _with_jars(lambda: _jars_of_5(version), "ThingsV5"), things=things)


OF_REACTIVE = ("exclusive", "shared", "batches of mixed keys", "batches by key", "chunks", "compression LZ4",
               "compression zlib", "compression zstd", "compression Snappy", "schema JSON", "schema Avro",
               "dead letters", "reader from the begin", "reader from an id", "partitions", "negative acknowledgement",
               "delayed", "closed in the middle", "broker started again", "properties and times", "exclusive producer",
               "non-persistent", "forged token", "expired token", "token over TLS")


def _reactive(version: str) -> Subject:
    return _client(f"reactive Java {version}", f"pulsar-client-reactive-adapter {version}", _with_jars(
        lambda: registries.jars({"org.apache.pulsar:pulsar-client-reactive-adapter": version}, {}), "ThingsReactive"),
        things={thing: THINGS[thing] for thing in OF_REACTIVE})


def _go(version: str) -> Subject:
    def install() -> tuple[list[str | Path], dict[str, str]]:
        modules = {"github.com/apache/pulsar-client-go": version}
        return [registries.go_program([registries.PROGRAMS / "things.go"], modules)], {}

    things = {thing: answer for thing, answer in THINGS.items()
              if thing != "compression Snappy" or version >= "v0.17"}
    return _client(f"Go {version.removeprefix('v')}", f"pulsar-client-go {version}", install, things=things)


# What pulsar-flex can be asked: it has no keys, codecs, schemas and readers.
OF_FLEX = ("exclusive", "shared", "batches of mixed keys", "cumulative acknowledgement", "negative acknowledgement",
           "broker started again", "unsubscribe", "exclusive producer", "forged token", "expired token")


def _flex(version: str) -> Subject:
    def install() -> tuple[list[str | Path], dict[str, str]]:
        modules = registries.node_modules({"pulsar-flex": version}) / "node_modules"
        return ["node", registries.PROGRAMS / "flex.js"], {"NODE_PATH": str(modules)}

    return _client(f"pulsar-flex {version}", f"pulsar-flex {version}", install,
                   things={thing: THINGS[thing] for thing in OF_FLEX})


def _node(version: str) -> Subject:
    def install() -> tuple[list[str | Path], dict[str, str]]:
        registries.node_modules({"pulsar-client": version})
        raise NotRun("its binary is served now: write its program")      # npm's package compiles against C++ headers

    return _client(f"Node {version}", f"pulsar-client {version} of npm", install,
                   things={"exclusive": THINGS["exclusive"]})


OF_RUST = ("exclusive", "failover", "batches of mixed keys", "cumulative acknowledgement", "compression LZ4",
           "compression zlib", "compression zstd", "compression Snappy", "several topics", "partitions",
           "negative acknowledgement", "closed in the middle", "broker started again", "unsubscribe", "non-persistent",
           "forged token", "expired token")


def _rust(version: str) -> Subject:
    crates = {"pulsar": f'{{ version = "={version}", default-features = false, '
                        'features = ["tokio-runtime", "compression"] }',
              "tokio": '{ version = "1", features = ["full"] }', "futures": '"0.3"', "serde_json": '"1"',
              "serde": '{ version = "1", features = ["derive"] }'}

    def install() -> tuple[list[str | Path], dict[str, str]]:
        return [registries.rust_program(registries.PROGRAMS / "things.rs", crates)], {}

    return _client(f"Rust {version}", f"pulsar {version} of crates.io", install,
                   things={thing: THINGS[thing] for thing in OF_RUST})


PYTHON, ASYNCIO, JAVA = ("3.5.0", "3.9.0", "3.12.0", "3.13.0"), ("3.9.0", "3.12.0", "3.13.0"), (
    "2.10.6", "3.0.2", "3.3.9", "4.0.8", "4.1.3", "4.2.4", "5.0.1")
GO, RUST, FLEX, V5, REACTIVE = ("v0.14.0", "v0.16.0", "v0.19.0"), ("6.9.1",), ("1.1.1",), ("5.0.1",), ("0.7.0",)


def subjects(newest: bool) -> list[Subject]:
    """Return the clients; with `newest` those of the newest versions, of registries that tell them."""
    if newest:
        asked = ((_python, PYTHON, "pypi", "pulsar-client"), (_asyncio, ASYNCIO, "pypi", "pulsar-client"),
                 (_go, GO, "go", "github.com/apache/pulsar-client-go"), (_rust, RUST, "crates", "pulsar"),
                 (_flex, FLEX, "npm", "pulsar-flex"))
        return [dataclasses.replace(make(registries.newest(registry, package)), like=make(versions[-1]).name)
                for make, versions, registry, package in asked]
    made = ((_python, PYTHON), (_asyncio, ASYNCIO), (_java, JAVA), (_go, GO), (_rust, RUST), (_flex, FLEX),
            (_v5, V5), (_reactive, REACTIVE), (_aiopulsar, ("0.1.0a0",)), (_mqclient, ("2.7.1",)), (_node, ("1.18.0",)))
    return [make(version) for make, versions in made for version in versions]

"""Apache Pulsar's own administration for Java, the command line tool and the library, with Geminga and Pulsar at once.

The tool runs the commands of `tests/supervisor/sweep`, of which each row has those of one kind.  The library is asked
everything that it can get of a topic with an odd name and of its namespace, and every policy that it can set to a
number or a word, by `programs/Administration.java`.  A row names what differs for no known reason.
"""

import json
import uuid
from collections.abc import Callable
from pathlib import Path

from ..clients.java import V5_DEPENDENCIES, V5_EXCLUDED, V5_MANAGED
from ..supervisor.sweep import run as sweep
from . import registries
from .clients import JVM
from .running import PULSAR, Ground
from .subject import Answers, Subject

SAME = f"as Pulsar {PULSAR}"
KINDS = ("bookies", "broker-stats", "brokers", "clusters", "namespaces", "ns-isolation-policy", "resource-quotas",
         "resourcegroups", "schemas", "tenants", "topicPolicies", "topics")
GETS = ("brokers", "clusters", "tenants", "namespaces", "topics", "topicPolicies", "schemas")


def _jars_of_tool(version: str) -> Path:
    tool = {"org.apache.pulsar:pulsar-client-tools": version}
    if not version.startswith("5"):
        return registries.jars(tool)
    # one of its jars has a classifier that not every mirror has, and one without will do
    return registries.jars(V5_DEPENDENCIES | tool | {"org.jline:jline": "4.4.6"}, V5_MANAGED,
                           V5_EXCLUDED | {"org.jline": ["jline"]})


def tool(version: str) -> Subject:
    """Return the command line tool `pulsar-admin`."""
    def ask(ground: Ground, asked: list[str]) -> Answers:
        jars = _jars_of_tool(version)
        with Ground("pulsar") as theirs, Ground(ground.against) as ours:
            compared = sweep.outcomes(jars, theirs.broker.http_url, ours.broker.http_url)
        differs = [command for command, _, _, reason in sweep.differing(compared) if reason is None]
        for kind in asked:
            yield kind, "; ".join(command for command in differs if command.split()[0] == kind) or SAME

    return Subject(f"pulsar-admin {version}", f"pulsar-client-tools {version}", dict.fromkeys(KINDS, SAME), ask)


def library(version: str) -> Subject:
    """Return the library `PulsarAdmin`."""
    def ask(ground: Ground, asked: list[str]) -> Answers:
        jars = registries.jars({"org.apache.pulsar:pulsar-client-admin": version}, {})
        made = registries.classes(jars, registries.PROGRAMS / "Administration.java")
        command = ["java", *JVM, "-cp", f"{made}:{jars}/*", "Administration"]
        prefix = f"library-{uuid.uuid4().hex[:6]}"
        with Ground("pulsar") as theirs, Ground(ground.against) as ours:
            answers = [dict(one.ask(command, asked, prefix)) for one in (theirs, ours)]
        for kind in asked:
            yield kind, _difference(*(answer.get(kind, "no answer") for answer in answers))

    return Subject(f"PulsarAdmin {version}", f"pulsar-client-admin {version}", dict.fromkeys(GETS, SAME), ask,
                   decided={"topicPolicies": f"policies of newer versions, which Pulsar {PULSAR} does not have"})


def _difference(theirs: str, ours: str) -> str:
    """Return the calls whose answers differ, of two texts of JSON {call: answer}."""
    try:
        there, here = json.loads(theirs), json.loads(ours)
    except ValueError:
        return f"{ours}; Pulsar: {theirs}"
    return "; ".join(f"{call}: {here.get(call)}, Pulsar: {there.get(call)}"
                     for call in sorted({*there, *here} - {*DECIDED}) if there.get(call) != here.get(call)) or SAME


# Calls of the library whose answers differ: docs/compatibility.md
DECIDED = {
    "getNamespaces(String String)": "of version 1 of the API",
    "getShadowTopics(String)": "there are none",
    "getSubscriptions(String)": "a threshold of compaction makes __compaction there at once",
    "getSubscriptionTypesEnabled(String)": "not set, it is empty there and null here",
}
SUBJECTS: list[tuple[Callable[[str], Subject], tuple[str, ...]]] = [
    (tool, ("4.0.8", "5.0.1")), (library, ("2.10.6", "3.0.2", "4.2.4"))]

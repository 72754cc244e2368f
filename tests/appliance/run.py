"""The appliance on a fresh Debian, as its administrator meets it: installed, reloaded, hung, upgraded, removed.

    python -m tests.appliance.run                              the package is built in the box, from this checkout
    python -m tests.appliance.run --suite trixie --package FILE --package FILE
    python -m tests.appliance.run --only watchdog              only checks with this word, and the installation
    python -m tests.appliance.run --brief                      without Spark: a start, a stop, a night, a removal
    python -m tests.appliance.run --keep DIR                   leaves the packages that the box built in a folder

Each check prints a line with its seconds.  Exit status: 1 when a check fails, 77 when nothing can be tried on this
machine.
"""
import argparse
import contextlib
import json
import os
import random
import re
import shutil
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import psutil

from .. import test_runbook as runbook
from ..crash.traffic import Publisher, Subscriber, read, topic_of_owner
from ..harness import eventually, request, unique_topic
from ..proto.client_frames import T, entry_of, message_metadata, send
from ..workers.peer import Peer
from . import plugs
from .box import Box, NoBox, comm
from .installed import INSTALL, add_options, begin, bring, not_here

SERVICE, HTTP = plugs.Appliance.service_url, plugs.Appliance.http_url
CONFIGURATION = "/etc/geminga/geminga.toml"
MINUTE = 60
SERVICES = "geminga.service", "geminga-nightly.service", "geminga-nightly-failed.service"
UNITS = *SERVICES, "geminga-nightly.timer", "geminga-nightly.slice"
BASIC = 'data_dir = "/var/lib/geminga"\nworkers = 2\nowners = 2\n'

Shown = Callable[[Box], str | None]       # raises if the check fails; the returned text is printed
ALL: list[Shown] = []
BRIEF: list[Shown] = []                   # those of ALL that show whether the program works on a release at all


def shown(function: Shown) -> Shown:
    ALL.append(function)
    return function


def shown_in_brief(function: Shown) -> Shown:
    BRIEF.append(function)
    return shown(function)


# -- what several need

def configure(box: Box, text: str) -> None:
    box.path(CONFIGURATION).write_text(BASIC + text)


def drop_in(box: Box, unit: str, text: str) -> None:
    """Write a drop-in, as `systemctl edit` does."""
    folder = box.path(f"/etc/systemd/system/{unit}.d")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "override.conf").write_text(text)
    box.run("systemctl", "daemon-reload")


def take_back(box: Box, unit: str) -> None:
    box.path(f"/etc/systemd/system/{unit}.d/override.conf").unlink()
    box.run("systemctl", "daemon-reload")


def journal(box: Box, *words: str) -> list[dict[str, str]]:
    """Return lines of the journal, with their fields."""
    return [json.loads(line) for line in box.say("journalctl", "--no-pager", "--output=json", *words).splitlines()]


def from_now(box: Box) -> Callable[..., str]:
    """Return a function that gives the journal's lines for these words since now."""
    at = f"--since=@{time.time():.6f}"
    return lambda *words: "\n".join(line.get("MESSAGE", "") for line in journal(box, at, *words))


def main_pid(box: Box) -> str:
    return box.show("geminga", "MainPID")


def child(box: Box, name: str) -> int:
    """Return the process id, as seen from here, of the process with this name."""
    return eventually(lambda: next((pid for pid in box.processes() if comm(pid) == name), 0), what=f"a process {name}")


def publish(topic: str, data: bytes = b"hello") -> tuple[int, int]:
    """Publish a message; return its position when the receipt has come."""
    with Peer(SERVICE) as peer:
        peer.open_producer(topic)
        peer.say(send(entry_of(message_metadata(), data)))
        receipt = peer.hear()
        assert receipt.type == T.SEND_RECEIPT, receipt
        return receipt.send_receipt.message_id.ledgerId, receipt.send_receipt.message_id.entryId


def serves() -> bool:
    try:
        return request("GET", f"{HTTP}/admin/v2/brokers/health")[1] == "ok"
    except OSError:
        return False


def settings() -> dict[str, str]:
    status, text = request("GET", f"{HTTP}/admin/v2/brokers/configuration/runtime")
    assert status == 200, text
    return json.loads(text)


# -- the checks

@shown
def units_are_valid(box: Box) -> None:
    box.run("systemd-analyze", "verify", "--man=no", *UNITS)


@shown
def services_are_exposed_as_little_as_they_can_be(box: Box) -> str:
    rated = {
        unit: float(
            re.search(r"exposure level.*: ([\d.]+)", box.say("systemd-analyze", "security", "--no-pager", unit))[1]
        )
        for unit in SERVICES
    }
    assert rated["geminga.service"] <= 2.0, rated
    return ", ".join(f"{unit} {figure}" for unit, figure in rated.items())


@shown_in_brief
def it_starts_by_itself_and_a_start_returns_when_it_serves(box: Box) -> None:
    assert box.say("systemctl", "is-enabled", "geminga", "geminga-nightly.timer").split() == ["enabled"] * 2
    box.run("systemctl", "stop", "geminga")
    assert not serves()
    box.run("systemctl", "start", "geminga")
    assert serves()      # it serves at the first question


@shown
def its_status_tells_how_far_a_recovery_is(box: Box) -> str:
    with Publisher(SERVICE, unique_topic("recovered"), batch=10) as publisher:
        publisher.wait_for_more(20_000)
        before = main_pid(box)
        box.run("systemctl", "kill", "--signal=KILL", "geminga")
    texts = []

    def is_back() -> bool:
        text = box.show("geminga", "StatusText")
        if text not in texts[-1:]:
            texts.append(text)
        return (
            "serving" in text and main_pid(box) not in (before, "0") and box.show("geminga", "ActiveState") == "active"
        )

    eventually(is_back, MINUTE, f"a recovery; its status was {texts}")
    assert any("recovering" in text for text in texts), texts
    return " | ".join(filter(None, texts))


@shown
def a_reload_takes_what_has_changed(box: Box) -> str:
    topic, before = unique_topic("reloaded"), main_pid(box)
    configure(box, "[storage]\nmax_producers_per_topic = 1\n")
    since = from_now(box)
    box.run("systemctl", "reload", "geminga")
    said = eventually(lambda: (text := since("--unit=geminga")) and "max_producers_per_topic" in text and text,
                      what="what has changed")
    assert main_pid(box) == before
    with Peer(SERVICE) as one, Peer(SERVICE) as other:
        one.open_producer(topic)
        assert other.ask(T.PRODUCER, topic=topic, producer_id=1, request_id=1).type == T.ERROR
    configure(box, "")
    box.run("systemctl", "reload", "geminga")
    return next(line for line in said.splitlines() if "max_producers_per_topic" in line)


@shown
def a_reload_of_a_bad_configuration_fails_and_changes_nothing(box: Box) -> str:
    configure(box, "[storage]\nmax_producers_per_topic = 1\n")
    box.run("systemctl", "reload", "geminga")
    before = main_pid(box), {comm(pid): pid for pid in box.processes() if comm(pid).startswith("geminga")}
    configure(box, '[storage]\nmax_producers_per_topic = 7\nmax_consumers_per_topic = "many"\n')
    since = from_now(box)
    refused = box.run("systemctl", "reload", "geminga", is_checked=False)
    assert refused.returncode, refused
    said = eventually(lambda: (text := since("--unit=geminga")) and "max_consumers_per_topic" in text and text,
                      what="what is wrong")
    assert (main_pid(box), {comm(pid): pid for pid in box.processes() if comm(pid).startswith("geminga")}) == before
    topic = unique_topic("not-reloaded")
    with Peer(SERVICE) as one, Peer(SERVICE) as other:
        one.open_producer(topic)
        # the former configuration is in force
        assert other.ask(T.PRODUCER, topic=topic, producer_id=1, request_id=1).type == T.ERROR
    configure(box, "")
    box.run("systemctl", "reload", "geminga")
    return next(line for line in said.splitlines() if "max_consumers_per_topic" in line)


def replaced(box: Box, name: str, topic: str) -> str:
    """Stop a process, and wait for its successor; all messages to `topic` get their receipts meanwhile."""
    old = child(box, name)
    with Publisher(SERVICE, topic, pause=0.05) as publisher:
        publisher.wait_for_more(100)
        begun = time.monotonic()
        os.kill(old, 19)
        eventually(lambda: not Path(f"/proc/{old}").exists(), what=f"the end of {name}")
        child(box, name)
        took, slowest = time.monotonic() - begun, 0.0
        while time.monotonic() - begun < 12:
            asked = time.monotonic()
            publisher.wait_for_more(1)
            slowest = max(slowest, time.monotonic() - asked)
        assert not publisher.unexpected, publisher.unexpected
    assert took <= 10, took
    return f"{name} after {took:.1f} s; others went on, {slowest:.1f} s at most between two receipts"


@shown
def a_hung_owner_is_replaced_while_others_go_on(box: Box) -> str:
    publish(topic := topic_of_owner(0))
    told = replaced(box, "geminga-o0", topic_of_owner(1))
    publish(topic)
    return told


@shown
def a_hung_worker_is_replaced(box: Box) -> str:
    """Connections to the other worker go on; the kernel decides which worker a connection is at."""
    before = box.show("geminga", "NRestarts")
    with contextlib.ExitStack() as stack:
        publishers = [stack.enter_context(Publisher(SERVICE, unique_topic("other"), pause=0.05)) for _ in range(16)]
        for publisher in publishers:
            publisher.wait_for_more(5)
        begun, old = time.monotonic(), child(box, "geminga-w0")
        os.kill(old, 19)
        held = {one.raddr.port for one in psutil.Process(old).net_connections("tcp") if one.raddr}
        others = [publisher for publisher in publishers if publisher.peer.socket.getsockname()[1] not in held]
        assert others
        eventually(lambda: not Path(f"/proc/{old}").exists(), what="the end of it")
        took = time.monotonic() - begun
        assert took <= 10, took
        for publisher in others:
            publisher.wait_for_more(100)
            assert not publisher.has_ended
        assert box.show("geminga", "NRestarts") == before
    return f"geminga-w0 after {took:.1f} s; connections at the other one went on"


@shown
def a_hung_supervisor_ends_by_systemds_watchdog(box: Box) -> str:
    place, before = publish(topic := unique_topic("watchdog")), box.show("geminga", "NRestarts")
    since, begun = from_now(box), time.monotonic()
    os.kill(next(pid for pid in box.processes() if inner(pid) == main_pid(box)), 19)
    eventually(lambda: box.show("geminga", "NRestarts") != before and serves(), 2 * MINUTE, "a new one")
    took = time.monotonic() - begun
    assert place < publish(topic)
    assert "watchdog" in since("UNIT=geminga.service").lower()
    return f"served again after {took:.1f} s"


def inner(pid: int) -> str:
    """Return the process id inside the box."""
    return re.search(r"^NSpid:.*\s(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.M)[1]


@shown
def the_journal_is_searched_by_topic(box: Box) -> str:
    topic = unique_topic("told-of")
    publish(topic)
    status, text = request("DELETE", f"{HTTP}/admin/v2/{topic.replace('://', '/')}?force=true")
    assert status == 204, text
    lines = eventually(lambda: journal(box, "--unit=geminga", f"TOPIC={topic}"), what="lines about a topic")
    assert all(line["TOPIC"] == topic for line in lines)
    return f"{len(lines)} lines, the first: {lines[0]['MESSAGE']}"


@shown
def keys_are_credentials_that_only_root_can_read(box: Box) -> None:
    secrets = box.path("/etc/geminga/secrets")
    secrets.mkdir(mode=0o700)
    box.run("geminga", "admin", "tokens", "create-secret-key", "--output", "/etc/geminga/secrets/token.key")
    box.run("chmod", "600", "/etc/geminga/secrets/token.key")
    token = box.say("geminga", "admin", "tokens", "create", "--secret-key", "/etc/geminga/secrets/token.key",
                    "--subject", "somebody")
    drop_in(box, "geminga.service", "[Service]\nLoadCredential=token.key:/etc/geminga/secrets/token.key\n")
    configure(box, '[authentication]\nmethods = ["token"]\nsecret_keys = ["credential:token.key"]\n')
    box.run("systemctl", "restart", "geminga")
    # Only a named address asks for a token: by the socket in the data folder root needs none.
    named = "geminga", "publish", "--url", "pulsar://127.0.0.1:6650", "my-topic", "hello"
    assert box.run(*named, is_checked=False).returncode == 1
    authenticated = *named, "--auth-plugin", "AuthenticationToken", "--auth-params", f"token:{token}"
    box.run(*authenticated)
    box.run("systemctl", "reload", "geminga")
    box.run(*authenticated)
    take_back(box, "geminga.service")
    configure(box, "")
    shutil.rmtree(secrets)
    box.run("systemctl", "restart", "geminga")


@shown
def every_command_of_the_runbook_runs_as_root(box: Box) -> str:
    """Each is understood, and finds the installed broker; none needs an address, a token or another user."""
    topic, commands = unique_topic("runbook"), sorted(set(runbook.commands()))
    publish(topic)
    box.run("install", "-d", "-o", "geminga", "-g", "geminga", "/mnt/OTHER")
    token = box.say("sh", "-c", "geminga admin tokens create-secret-key -o /tmp/key && "
                    "geminga admin tokens create -sk /tmp/key -s joe")
    ledger = box.say("sh", "-c", "ls /var/lib/geminga/partitions/*/*.ledger | head -n 1")
    places = {"TOPIC": topic, "SUBSCRIPTION": "billing", "NAMESPACE": "public/default", "ROLE": "joe",
              "ACTION": "produce", "TOKEN": token, "FILE": ledger, "BACKUP": "/mnt/OTHER/none"}
    for words in commands:
        box.run("geminga", "admin", "topics", "create-subscription", topic, "-s", "billing", is_checked=False)
        scalable = {"TOPIC": "topic://public/default/runbook"} if "scalable-topics" in words else {}
        done = box.run("geminga", *((places | scalable).get(word, word) for word in words), is_checked=False)
        assert done.returncode != 2 and "Traceback" not in done.stderr, (words, done.stdout, done.stderr)
    strangers = box.run("find", "/var/lib/geminga", "/mnt/OTHER", "!", "-user", "geminga")
    assert not strangers.stdout, strangers.stdout
    asked = box.run("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "geminga", "nightly", "report",
                    is_checked=False)
    assert asked.returncode == 1 and "sudo -u geminga geminga nightly report" in asked.stderr, asked.stderr
    return f"{len(commands)} commands"


@shown
def it_is_secured_in_one_step_and_this_is_taken_back(box: Box) -> None:
    before = box.path(CONFIGURATION).read_bytes()
    box.run("geminga", "secure", "--host", "broker.example.com", "--restart")
    assert not serves()      # by the port without TLS
    assert "ready" in box.say("geminga", "status")
    box.run("geminga", "admin", "--admin-url", "https://localhost:8443", "--tls-trust-cert-path",
            "/etc/geminga/secure/ca.pem", "--auth-plugin", "AuthenticationToken", "--auth-params",
            "file:/etc/geminga/secure/admin.token", "tenants", "list")
    box.run("geminga", "secure", "--undo", "--restart")
    assert serves() and box.path(CONFIGURATION).read_bytes() == before
    assert not box.path("/etc/geminga/secure").exists()


@shown_in_brief
def a_stop_is_graceful_and_takes_less_than_five_seconds(box: Box) -> str:
    publisher = Publisher(SERVICE, unique_topic("stop"), pause=0.01)
    with publisher:
        publisher.wait_for_more(2_000)
        begun = time.monotonic()
        box.run("systemctl", "stop", "geminga")
        took = time.monotonic() - begun
        eventually(lambda: publisher.has_ended, what="the end of the connection")
    assert took < 5 and box.show("geminga", "Result") == "success", (took, box.show("geminga", "Result"))
    since = from_now(box)
    box.run("systemctl", "start", "geminga")
    assert "of its journal in place" not in since("--unit=geminga")      # there was nothing to recover
    missing = set(publisher.receipted) - plugs.Seen(SERVICE, publisher.promises.topic).read_on()
    assert not missing, missing
    return f"{took:.1f} s, with {len(publisher.receipted)} messages receipted, all of which are there"


@shown
def before_a_stop_consumers_acknowledge_what_they_have(box: Box) -> str:
    topic = unique_topic("drain")
    with (
        Publisher(SERVICE, topic, pause=0.01) as publisher,
        Subscriber(SERVICE, topic, lambda number: True) as subscriber,
    ):
        publisher.wait_for_more(2_000)
        subscriber.wait_for_more(1_000)
        begun = time.monotonic()
        box.run("systemctl", "stop", "geminga")
        took = time.monotonic() - begun
        eventually(lambda: subscriber.has_ended, what="the end of the connection")
    promises = subscriber.promises
    assert promises.acked == promises.asked.keys() and len(promises.acked) == len(subscriber.received), (
        len(promises.acked),
        promises,
    )
    box.run("systemctl", "start", "geminga")
    left, had = {number for _, number in read(SERVICE, topic, "sub")}, set(subscriber.received)
    assert took < 5 and left.isdisjoint(had) and left | had >= set(publisher.receipted), (took, left & had)
    return f"{took:.1f} s; {len(had)} were acknowledged, and come to nobody again, the other {len(left)} do"


@shown_in_brief
def a_night_has_its_own_slice_and_bounds(box: Box) -> str:
    slice_ = {name: box.show("geminga-nightly.slice", name)
              for name in ("CPUWeight", "CPUQuotaPerSecUSec", "IOWeight", "MemoryMax")}
    assert "infinity" not in slice_.values() and "[not set]" not in slice_.values(), slice_
    service = {name: box.show("geminga-nightly", name) for name in ("Slice", "Nice", "IOSchedulingClass", "OnFailure")}
    assert service == {"Slice": "geminga-nightly.slice", "Nice": "10", "IOSchedulingClass": "3",
                       "OnFailure": "geminga-nightly-failed.service"}, service
    topic = unique_topic("night")
    for number in range(20):
        publish(topic, b"%d" % number)
    status, text = request("POST", f"{HTTP}/admin/v2/{topic.replace('://', '/')}/compactionThreshold", b"1000000000")
    assert status == 204, text
    box.run("systemctl", "start", "--no-block", "geminga-nightly")
    pid = eventually(lambda: int(main_of(box, "geminga-nightly")), what="the job")
    group = eventually(lambda: box.show("geminga-nightly", "ControlGroup"), what="its control group")
    assert group == "/geminga.slice/geminga-nightly.slice/geminga-nightly.service", (pid, group)
    eventually(lambda: box.show("geminga-nightly", "ActiveState") in ("inactive", "failed"), 5 * MINUTE, "its end")
    said = box.say("journalctl", "--no-pager", "--unit=geminga-nightly", "--output=cat")
    assert box.show("geminga-nightly", "Result") == "success", said
    engine = re.search(r"Compacted 1 of 1 partitions \((.*)\)", said)
    assert engine, said
    return f"{', '.join(f'{name}={value}' for name, value in slice_.items())}; computed by {engine[1]}"


@shown
def a_large_night_is_computed_by_spark_and_makes_tables(box: Box) -> str:
    """Java, Spark's workers and the process beside each of them run under the unit's filter, without its network.

    A bound of 0 bytes makes any night a large one.
    """
    topics = [unique_topic("large") for _ in range(2)]
    for topic in topics:
        for number in range(20):
            publish(topic, b"%d" % number)
        box.run("geminga", "admin", "topicPolicies", "set-compaction-threshold", topic, "-t", "1G")
        box.run("geminga", "admin", "topicPolicies", "set-export", topic, "--content", "messages")
    box.run("install", "-d", "-o", "geminga", "-g", "geminga", "/srv/tables")
    drop_in(box, "geminga-nightly.service", "[Service]\nReadWritePaths=/srv/tables\n")
    configure(box, '[nightly]\nin_process_bytes = 0\n[nightly.tables]\nurl = "/srv/tables"\n')
    box.run("systemctl", "start", "geminga-nightly", seconds=5 * MINUTE)
    report = json.loads(box.say("geminga", "nightly", "report", "-o", "json"))
    rows = {one["topic"]: (one["outcome"], one["rows"]) for one in report["tables"]}
    assert report["engine"].startswith("Spark") and rows == dict.fromkeys(topics, ("exported", 20)), report
    assert len(list(box.path("/srv/tables").rglob("messages/day=*/*.parquet"))) == len(topics)
    take_back(box, "geminga-nightly.service")
    configure(box, "")
    return f"{report['engine']}, {report['seconds']} s"


def main_of(box: Box, unit: str) -> str:
    return box.show(unit, "ExecMainPID")


@shown
def a_night_that_fails_is_told_of(box: Box) -> str:
    since = from_now(box)
    box.run("systemctl", "start", "--no-block", "geminga-nightly")
    eventually(lambda: box.show("geminga-nightly", "ActiveState") == "activating", what="the job")
    box.run("systemctl", "kill", "--signal=KILL", "geminga-nightly")
    line = eventually(lambda: since("CODE=G514"), what="the notice")
    told = box.run("geminga", "nightly", "report", "--data-dir", "/var/lib/geminga").stdout
    assert told.startswith("failed") and "it ended with signal" in told, told
    box.run("systemctl", "reset-failed")
    return line


@shown
def a_night_that_was_missed_is_made_up_for(box: Box) -> None:
    """The box was off for two days; the timer's random delay is removed, so that nobody waits for it."""
    drop_in(box, "geminga-nightly.timer", "[Timer]\nRandomizedDelaySec=0\nAccuracySec=1s\n")
    box.run("systemctl", "restart", "geminga-nightly.timer")
    stamp = box.path("/var/lib/systemd/timers/stamp-geminga-nightly.timer")
    assert stamp.exists()
    box.power_off()
    os.utime(stamp, times=(time.time() - 2 * 24 * 3600,) * 2)
    box.boot()
    eventually(lambda: box.show("geminga-nightly", "ExecMainStartTimestamp"), MINUTE, "a night")
    eventually(lambda: box.show("geminga-nightly", "ActiveState") in ("inactive", "failed"), 5 * MINUTE, "its end")
    assert box.show("geminga-nightly", "Result") == "success"
    take_back(box, "geminga-nightly.timer")


@shown
def it_is_upgraded_with_its_data_and_configuration(box: Box) -> str:
    """The new package is the same program under a higher version."""
    configure(box, "# ours\n")
    place = publish(topic := unique_topic("upgraded"))
    old = box.say("dpkg-query", "-W", "-f", "${Version}", "geminga")
    box.run(*INSTALL, renumbered(box, f"9+{old}"), seconds=5 * MINUTE)
    new = box.say("dpkg-query", "-W", "-f", "${Version}", "geminga")
    assert new == f"9+{old}" and "# ours" in box.path(CONFIGURATION).read_text()
    eventually(serves, MINUTE, "the new one")
    assert box.say("geminga", "read", topic) == "hello" and place < publish(topic)
    return f"{old} -> {new}"


@shown
def a_downgrade_is_refused_when_the_format_moved(box: Box) -> str:
    old, pid = box.say("dpkg-query", "-W", "-f", "${Version}", "geminga"), main_pid(box)
    number = box.path("/var/lib/geminga/format")
    was = number.read_text()
    number.write_text("99\n")
    refused = box.run(*INSTALL, renumbered(box, "0.0.1"), is_checked=False, seconds=5 * MINUTE)
    number.write_text(was)
    assert refused.returncode == 1 and "format 99" in refused.stdout + refused.stderr, refused
    assert box.say("dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", "geminga") == f"installed {old}"
    assert main_pid(box) == pid and serves()
    return re.search(r"geminga: .*format 99.*", refused.stdout + refused.stderr)[0]


def renumbered(box: Box, version: str) -> str:
    """Build the installed package under another version; return its path in the box."""
    package = next(box.path("/root/geminga").rglob("geminga_*.deb"))
    with tempfile.TemporaryDirectory(dir=box.folder) as folder:
        subprocess.run(["dpkg-deb", "--raw-extract", package, folder], check=True)
        control = Path(folder) / "DEBIAN/control"
        control.write_text(re.sub(r"^Version: .*", f"Version: {version}", control.read_text(), flags=re.M))
        subprocess.run(["dpkg-deb", "-Znone", "--build", folder, str(box.path("/root/other.deb"))], check=True,
                       stdout=subprocess.DEVNULL)
    return "/root/other.deb"


@shown_in_brief
def its_removal_keeps_data_and_a_purge_does_not(box: Box) -> None:
    place = publish(topic := unique_topic("kept"))
    box.run(*INSTALL, "--remove", seconds=5 * MINUTE)
    assert not box.path("/usr/bin/geminga").exists() and not serves()
    assert box.path("/var/lib/geminga/catalogue.sqlite").exists() and box.path(CONFIGURATION).exists()
    box.run(*INSTALL, renumbered(box, "9.1"), seconds=5 * MINUTE)
    assert box.say("geminga", "read", topic) == "hello" and place < publish(topic)
    box.run(*INSTALL, "--remove", "--purge", seconds=5 * MINUTE)
    left = [path for path in ("/var/lib/geminga", "/etc/geminga", "/usr/lib/geminga", "/run/geminga")
            if box.path(path).exists()]
    assert not left, left


# -- the run

def from_nothing(box: Box, packages: list[Path], *, has_spark: bool) -> str:
    """One command, then a client publishes: within a minute from packages, or as long as building and the network take.
    """
    command = [*bring(box, packages), *["--without-spark"][has_spark:]]
    begun = time.monotonic()
    said = box.say(*command, seconds=20 * MINUTE)
    box.run("geminga", "publish", "my-topic", "Hello")
    took = time.monotonic() - begun
    assert took < MINUTE or not packages, f"{took:.1f} s: {said}"
    return f"{took:.1f} s from nothing to the first message, {'from packages' if packages else 'building included'}"


def plugs_are_pulled(folder: Path, layers: list[Path]) -> str:
    figures = plugs.Round(folder, random.SystemRandom().randrange(1 << 32), layers).run(3)
    assert figures.is_good, figures.table()
    return figures.line()


def tell(name: str, show: Callable[[], str | None]) -> bool:
    """Run a check, print its outcome, and return whether it succeeded."""
    begun, text = time.monotonic(), name.replace("_", " ")
    try:
        more, how = show(), "ok"
    except Exception:
        more, how = traceback.format_exc(), "NOT SO"
    print(f"{how:6} {time.monotonic() - begun:5.1f} s  {text}{f': {more}' if more else ''}", flush=True)
    return how == "ok"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--only", default="", help="only what has this in its name")
    parser.add_argument("--brief", action="store_true",
                        help="only what shows whether the program works on this release at all, and without Spark")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="copy the packages that were built to this folder")
    options = parser.parse_args()
    debian, begun, results = begin(options), time.monotonic(), []
    with tempfile.TemporaryDirectory(dir=options.cache, prefix="run-") as folder:
        try:
            with Box(Path(folder) / "installed", [debian]) as box:
                box.boot()
                if not options.package and box.run("apt-get", "update", is_checked=False).returncode:
                    raise NoBox("Debian's packages are not to be had")
                results.append(tell("it is installed by one command", lambda: from_nothing(
                    box, options.package, has_spark=not options.brief)))
                if options.keep is not None:
                    for package in box.path("/root/geminga/dist").glob("*.deb"):
                        shutil.copy(package, options.keep)
                box.power_off()
        except (NoBox, TimeoutError, subprocess.TimeoutExpired) as why:
            raise not_here(why) from None
        layers = box.layers
        with Box(Path(folder) / "box", layers) as box:
            configure(box, "")
            box.boot()
            for function in BRIEF if options.brief else ALL:
                if options.only.replace(" ", "_") in function.__name__:
                    results.append(tell(function.__name__, lambda: function(box)))      # noqa: B023 - asked here only
                    if not results[-1]:
                        configure(box, "")
                        box.run("systemctl", "restart", "geminga", is_checked=False)
        if options.only in "plugs are pulled" and not options.brief:
            results.append(tell("plugs are pulled", lambda: plugs_are_pulled(Path(folder) / "plugs", layers)))
    print(f"{sum(results)} of {len(results)} are so, in {time.monotonic() - begun:.0f} s")
    return not all(results)


if __name__ == "__main__":
    raise SystemExit(main())

"""Alarms: when each is raised and cleared, and where it is shown."""
import asyncio
import json
import re
from pathlib import Path

import pytest

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.admin.table_questions import Listing, ListUnexported, ListUnreplicated
from geminga.storage.runtime.counters import make_counters
from geminga.storage.runtime.log import log
from geminga.storage.runtime.routing import owner_of
from geminga.supervisor.admin.monitoring import alarms, hanging_transactions
from geminga.supervisor.admin.monitoring.alarms import ALARMS, Alarms, Late
from geminga.supervisor.admin.resources.retries import STUCK_SECONDS
from geminga.supervisor.configuration.config import AlarmOptions, Config

from ..harness import eventually, request, unique_topic
from .test_serve import run

MIB = 1 << 20
DAY = 24 * 3600.0


class Host:
    """One owner and the admin process on a host whose memory and clocks are the test's."""

    def __init__(self, folder, monkeypatch):
        self.root, self.data_dir, self.said = folder / "root", folder / "data", []
        self.data_dir.mkdir()
        monkeypatch.setattr(alarms, "_TIMER", folder / "timer")
        monkeypatch.setattr(log, "_write", lambda level, text, code, fields: self.said.append((code, text)))
        self.wall, self.steady = 1_800_000_000.0, 1000.0
        self.memory(1000, 900)
        self.owner, self.worker, self.admin = make_counters(3)
        self.config = Config(data_dir=self.data_dir, alarms=AlarmOptions(85, 95))
        self.start()

    def start(self):
        """Start a process that has the alarms, perhaps after an earlier one."""
        rows = {("owner", 0): self.owner, ("worker", 0): self.worker, ("admin", 0): self.admin}
        self.alarms = Alarms(self.config, rows, self.root, lambda: self.wall, lambda: self.steady)

    def memory(self, total_mib, available_mib, limit_mib=None, stat=""):
        group = self.root / "sys/fs/cgroup/system.slice/geminga.service"
        group.mkdir(parents=True, exist_ok=True)
        (self.root / "proc/self").mkdir(parents=True, exist_ok=True)
        (self.root / "proc/meminfo").write_text(f"MemTotal: {total_mib << 10} kB\nMemFree: 1 kB\nMemAvailable: "
                                                f"{available_mib << 10} kB\n")
        (self.root / "proc/self/cgroup").write_text("0::/system.slice/geminga.service\n")
        (group / "memory.max").write_text("max\n" if limit_mib is None else f"{limit_mib << 20}\n")
        (group / "memory.stat").write_text(stat)

    def passes(self, seconds=1.0, put=0.0):
        self.steady += seconds
        self.wall += seconds + put
        self.alarms.look()

    def night(self, status="success", error=None, ended=None, succeeded=None):
        (self.data_dir / "nightly").mkdir(exist_ok=True)
        ended = self.wall if ended is None else ended
        succeeded = ended if succeeded is None else succeeded
        report = {"status": status, "error": error, "ended_ms": ended * 1000, "last_success_ms": succeeded * 1000}
        path = self.data_dir / "nightly" / "new"
        path.write_text(json.dumps(report))
        path.replace(self.data_dir / "nightly" / "report.json")

    def raised(self):
        return {name: one.reason.text for name, one in self.alarms.raised.items()}


@pytest.fixture
def host(tmp_path, monkeypatch):
    return Host(tmp_path, monkeypatch)


def test_all_is_quiet_on_a_host_where_all_is_well(host):
    for _ in range(5):
        host.passes()
    assert host.raised() == {} and host.said == []


def test_every_alarm_is_looked_for():
    assert ALARMS
    assert [name for name in ALARMS if not callable(getattr(Alarms, f"_{name}", None))] == []


# -- disk ---------------------------------------------------------------------------------------------------------

def test_an_owner_that_refuses_what_is_published_or_cannot_begin_is_an_alarm_whose_lines_it_writes_itself(host):
    host.owner.set("publishing_refused", 1)
    host.owner.set("disk_free_bytes", 100 * MIB)
    host.passes()
    assert host.raised() == {"disk": "100 MiB are free: nobody may publish"}
    host.owner.set("is_waiting", 1)
    host.passes()
    assert "owner 0 cannot read or write" in host.raised()["disk"]
    host.owner.set("is_waiting", 0)
    host.owner.set("publishing_refused", 0)
    host.passes()
    assert host.raised() == {} and host.said == []


# -- memory -------------------------------------------------------------------------------------------------------

def test_memory_of_the_host_is_an_alarm_and_near_its_end_nobody_may_publish_until_some_is_free_again(host):
    host.memory(1000, 140)
    host.passes()
    assert host.raised() == {"memory": "860 of 1000 MiB of the host's memory are used"} and not host.admin.total(
        "memory_refuses"
    )
    host.memory(1000, 40)
    host.passes()
    assert host.raised()["memory"].endswith("nobody may publish") and host.owner.total("memory_refuses") == 1
    assert list(host.alarms.obstacles()) == [host.raised()["memory"]]
    host.memory(1000, 90)
    host.passes()
    assert host.owner.total("memory_refuses") == 1      # a little room is used up at once
    host.memory(1000, 110)
    host.passes()
    assert host.owner.total("memory_refuses") == 0 and "memory" in host.raised() and not list(host.alarms.obstacles())
    host.memory(1000, 190)
    host.passes()
    assert "memory" in host.raised()
    host.memory(1000, 210)
    host.passes()
    assert host.raised() == {}
    assert [code for code, _ in host.said] == ["G310"] * 4 and host.said[-1][1] == "alarm memory is over"


def test_pages_of_files_are_no_use_of_a_control_groups_memory(host):
    host.memory(64_000, 60_000, 1000,
                f"anon {500 * MIB}\nfile {480 * MIB}\nshmem {100 * MIB}\nslab_reclaimable {200 * MIB}\n")
    host.passes()
    assert host.raised() == {} and host.alarms.memory[:2] == (600 * MIB, 1000 * MIB)
    host.memory(64_000, 60_000, 1000, f"anon {700 * MIB}\nfile {10 * MIB}\nshmem {100 * MIB}\nsock {60 * MIB}\n")
    host.passes()
    assert host.raised() == {"memory": "860 of 1000 MiB of what the control group geminga.service may have are used"}


@pytest.mark.parametrize(("own", "group"), [("/docker/a", "docker/a"), ("/docker/a", ""), ("/", "")],
                         ids=["of the host", "as a container sees it", "the root"])
def test_control_groups_of_version_1_bound_memory_too(host, own, group):
    """The kernel killed owners without a warning, as only version 2 was looked at.  The root of a host has no bound."""
    folder = host.root / "sys/fs/cgroup/memory" / group
    folder.mkdir(parents=True)
    (host.root / "proc/self/cgroup").write_text(f"9:name=systemd:/x\n4:cpu,memory:{own}\n0::/\n")
    (folder / "memory.limit_in_bytes").write_text(f"{1000 * MIB}\n")
    (folder / "memory.stat").write_text(f"rss 1\ntotal_cache {300 * MIB}\ntotal_rss {760 * MIB}\n"
                                        f"total_shmem {100 * MIB}\n")
    host.passes()
    assert host.raised() == {"memory": f"860 of 1000 MiB of what the control group {folder.name} may have are used"}
    (folder / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    host.passes()
    assert host.raised() == {}


def test_what_is_refused_stays_so_when_this_process_is_replaced(host):
    host.memory(1000, 40)
    host.passes()
    host.start()
    host.passes()
    assert host.owner.total("memory_refuses") == 1 and "memory" in host.raised()


def test_zero_percent_refuses_nobody(host):
    host.alarms.configure(Config(data_dir=host.data_dir, alarms=AlarmOptions(85, 0)))
    host.memory(1000, 0)
    host.passes()
    assert "memory" in host.raised() and not host.owner.total("memory_refuses")


# -- certificates -------------------------------------------------------------------------------------------------

class Certificates:
    def __init__(self, **expires):
        self.expires = expires

    def expiries(self):
        return self.expires


def test_a_certificate_that_expires_is_told_of_at_thirty_and_seven_days_and_one_and_when_it_has(host):
    host.alarms.certificates = Certificates(certificate=host.wall + 40 * DAY, trusted=host.wall + 400 * DAY)
    for day in range(42):
        assert ("certificate" in host.raised()) == (day >= 10)
        host.passes(DAY)
    assert [code for code, _ in host.said] == ["G401"] * 4
    assert "has expired" in host.said[-1][1] and all("certificate" in text for _, text in host.said)
    host.alarms.certificates = Certificates(certificate=host.wall + 90 * DAY)
    host.passes()
    assert host.said[-1][1] == "alarm certificate is over" and host.raised() == {}


# -- clock --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("put", "said"), [(3.0, "forward by 3.0 s"), (-3600.0, "back by 3600.0 s")])
def test_a_clock_that_is_put_is_an_alarm_for_an_hour(host, put, said):
    host.passes()
    host.passes(put=put)
    assert said in host.raised()["clock"]
    assert [code for code, _ in host.said] == ["G311"]
    host.passes(3500)
    assert "clock" in host.raised()
    host.passes(200)
    assert host.raised() == {}


def test_a_clock_that_is_made_to_go_faster_or_slower_and_a_host_that_sleeps_are_none(host):
    for put in (0.0005, 0.05, -0.05, 0.083):
        for _ in range(100):
            host.passes(put=put)
    host.passes(8 * 3600.0)
    host.passes(60.0, put=4.0)      # the clock was not read for a minute, in which it was corrected as fast as before
    assert host.raised() == {} and not host.said


def test_a_jump_is_noticed_also_while_this_process_is_replaced_and_can_be_seen_to(host):
    host.passes()
    host.wall += 60
    host.start()
    host.passes()
    assert "forward by 60.0 s" in host.raised()["clock"]
    assert host.alarms.seen_to("clock") and host.raised() == {}


# -- nights -------------------------------------------------------------------------------------------------------

def test_a_night_that_failed_is_an_alarm_until_one_succeeds(host):
    host.night()
    host.passes()
    assert host.raised() == {}
    host.night("failed", "the disk is full", succeeded=host.wall - DAY)
    host.passes()
    assert "the disk is full" in host.raised()["nightly"]
    host.night()
    host.passes()
    assert host.raised() == {} and [code for code, _ in host.said] == ["G510", "G510"]


def test_nights_that_are_wanted_and_do_not_succeed_for_two_days_are_an_alarm(host):
    host.night()
    host.passes(1.9 * DAY)
    assert host.raised() == {}
    host.passes(0.2 * DAY)
    assert "no night has succeeded since 2027-01-15 08:00:00 UTC" in host.raised()["nightly"]


def test_where_nobody_wants_nights_none_are_missed_and_a_timer_wants_them(host):
    host.passes(10 * DAY)
    assert host.raised() == {}
    alarms._TIMER.symlink_to(host.data_dir / "absent")
    host.wall = alarms._TIMER.lstat().st_mtime + 1.9 * DAY
    host.start()
    host.passes()
    assert "nightly" not in host.raised()
    host.passes(0.2 * DAY)
    assert "no night has succeeded since" in host.raised()["nightly"]


# -- damage, syncs, processes -------------------------------------------------------------------------------------

@pytest.mark.parametrize(("alarm", "counter", "code"),
                         [("damage", "damage_found", "G125"), ("damage", "acks_of_damaged", "G125"),
                                                        ("sync", "syncs_failed", "G111")])
def test_what_was_found_stays_an_alarm_until_somebody_has_seen_to_it(host, alarm, counter, code):
    host.owner.add(counter)
    host.passes()
    host.passes(DAY * 30)
    assert list(host.raised()) == [alarm]
    host.owner.add(counter, 2)
    host.passes()
    host.start()
    host.passes()
    assert list(host.raised()) == [alarm]
    assert host.alarms.seen_to(alarm) and host.raised() == {}
    host.start()
    host.passes()
    assert host.raised() == {}
    host.owner.add(counter)
    host.passes()
    assert list(host.raised()) == [alarm] and {said for said, _ in host.said} == {code}


def test_others_are_over_when_they_are(host):
    assert not host.alarms.seen_to("memory") and not host.alarms.seen_to("nonsense")


def test_a_process_that_is_started_three_times_within_ten_minutes_is_an_alarm(host, monkeypatch):
    monkeypatch.setattr("geminga.storage.runtime.counters.time.clock_gettime", lambda _: host.steady)
    for _ in range(10):
        host.owner.process_began(17, is_wanted=False)
        host.passes(400)
        host.owner.process_began(17, is_wanted=True)
        host.owner.process_began(17, is_wanted=True)
    assert host.raised() == {} and host.owner.read()["starts"] == 10
    for _ in range(3):
        host.owner.process_began(17, is_wanted=False)
        host.passes(10)
    assert host.raised() == {"processes": "owner 0 had to be started again and again in the last ten minutes"}
    host.passes(600)
    assert host.raised() == {} and [code for code, _ in host.said] == ["G206", "G206"]


# -- transactions -------------------------------------------------------------------------------------------------

def row(**more):
    return {"transaction": "(0,17)", "state": "open", "open_seconds": 601, "left_seconds": 60, "ending_seconds": None,
            "role": None, "waiting": [{"topic": "persistent://a/b/c", "subscription": "s"}], "unfinished": []} | more


class OwnersUp:
    """The owners that serve, of two."""

    def __init__(self, *up):
        self.up, self.count = up, 2

    def is_up(self, index):
        return index in self.up


def test_an_open_transaction_hangs_once_consumers_have_waited_for_long():
    def told(open_seconds=600, **more):
        return hanging_transactions.sentence(row(**more), OwnersUp(0, 1), open_seconds)

    assert told() == ("transaction (0,17) has been open for 10 min, and subscription s of persistent://a/b/c waits "
                      "for its end: look at the application that began it, or give it up by geminga transactions abort "
                      "0,17")
    assert "look at the application of shop that began it" in told(role="shop")
    assert "s of persistent://a/b/c and 1 more wait for its end" in told(waiting=2 * row()["waiting"])
    assert told(open_seconds=601) == told(waiting=[]) == told(open_seconds=0) == ""


@pytest.mark.parametrize("state", ["committing", "aborting"])
def test_a_decided_transaction_hangs_once_it_has_not_ended_for_a_minute(state):
    topic = "persistent://a/b/c"
    its = owner_of(topic, 2)

    def told(up, ending_seconds=61, unfinished=(topic,)):
        return hanging_transactions.sentence(
            row(state=state, ending_seconds=ending_seconds, unfinished=list(unfinished)), OwnersUp(*up), 600)

    assert told([1 - its]).startswith(f"transaction (0,17) has been {state} for 61 s, because owner {its}, which "
                                      f"has {topic}, is down: journalctl -u geminga PROCESS=owner-{its}")
    assert f"because it cannot end in {topic}: journalctl -u geminga CODE=G120" in told([0, 1])
    assert told([], ending_seconds=60) == told([], unfinished=()) == ""


def test_transactions_still_hang_while_their_coordinator_does_not_answer():
    def told(before, rows=(), missing=()):
        return hanging_transactions.sentences(before, list(rows), list(missing), OwnersUp(0, 1), 600)

    before = {"(0,17)": "first", "(1,4)": "second", "(2,9)": "third"}
    assert told(before) == {}
    assert told(before, missing=[1]) == {"(1,4)": "second"}
    assert told(before, missing=[0]) == {"(0,17)": "first", "(2,9)": "third"}, "coordinator 2 is owner 0's"
    assert told(before, [row()], [1]).keys() == {"(0,17)", "(1,4)"}


def test_transactions_that_hang_are_an_alarm_that_names_three_of_them(host):
    host.alarms.transactions.sentences = {f"(0,{number})": f"transaction {number} hangs" for number in range(5)}
    host.passes()
    host.passes()
    assert host.raised() == {
        "transactions": "transaction 0 hangs; transaction 1 hangs; transaction 2 hangs; and 2 others"}
    assert [code for code, _ in host.said] == ["G520"]
    host.alarms.transactions.sentences = {}
    host.passes()
    assert host.raised() == {} and host.said[-1] == ("G520", "alarm transactions is over")


# -- exports ------------------------------------------------------------------------------------------------------

def test_late_exports_are_an_alarm_with_the_oldest_topic_and_its_age(host):
    host.alarms.exports.oldest = {"topic": "persistent://a/b/c", "since_ms": round((host.wall - 50.2 * 3600) * 1000)}
    host.alarms.exports.count = 1
    host.passes()
    assert host.raised() == {"exports": "a message of persistent://a/b/c is 2 d 2 h old and not exported yet; "
                                        "geminga nightly report tells how the last night went"}
    host.alarms.exports.count = 1_235
    host.passes(3600.0)
    assert "c is 2 d 3 h old and not exported yet; topics like that: 1,235; geminga" in host.raised()["exports"]
    assert [code for code, _ in host.said] == ["G530"]      # it is not logged again for every hour
    host.alarms.exports.oldest = None
    host.passes()
    assert host.raised() == {} and host.said[-1] == ("G530", "alarm exports is over")


# -- replication ---------------------------------------------------------------------------------------------------

def test_changes_of_scalable_topics_that_fail_for_long_are_an_alarm_with_their_errors(host):
    retries, topics = host.alarms.retries, [names.parse(f"topic://a/b/{letter}") for letter in "abcd"]
    retries.failed(topics[0], "split", OSError("the disk is full"))
    host.passes()
    assert host.raised() == {}
    retries.failed(topics[0], "split", OSError("the files of x cannot be used"))
    host.passes(STUCK_SECONDS)
    assert host.raised() == {"segments": "the split of topic://a/b/a has failed for 31 s and is tried again: "
                                         "the files of x cannot be used"}
    for topic in topics[1:]:
        retries.failed(topic, "deletion", OSError("no"))
    host.passes(STUCK_SECONDS)
    assert host.raised()["segments"].endswith("; and 1 others")
    retries.keep("deletion", topics[:2])
    host.passes(STUCK_SECONDS)
    assert [code for code, _ in host.said] == ["G560"] * 3
    for topic in topics[:2]:
        retries.ended(topic)
    host.passes()
    assert host.raised() == {} and host.said[-1] == ("G560", "alarm segments is over")


def test_late_replication_is_an_alarm_with_the_oldest_topic_its_cluster_and_its_age(host):
    late = host.alarms.replication
    late.oldest = {"topic": "persistent://a/b/c", "remote": "far", "since_ms": round((host.wall - 699.2) * 1000),
                   "is_connected": False}
    late.count = 1
    host.passes()
    assert host.raised() == {"replication": "a message of persistent://a/b/c is 11 min 40 s old and not at cluster far "
                                            "yet, to which nothing is connected; geminga why persistent://a/b/c tells "
                                            "more"}
    late.oldest, late.count = late.oldest | {"is_connected": True}, 20
    host.passes()
    assert "far yet, which does not confirm it; topics and clusters like that: 20;" in host.raised()["replication"]
    assert [code for code, _ in host.said] == ["G540", "G540"]
    late.oldest = None
    host.passes()
    assert host.raised() == {} and host.said[-1] == ("G540", "alarm replication is over")


def test_late_replication_is_asked_for_at_all_owners_and_the_oldest_is_told():
    def row(topic, since_ms):
        return {"topic": topic, "remote": "far", "since_ms": since_ms, "is_connected": True}

    late = Late(ListUnreplicated, 30)
    late.bound_s = 60
    owners = PlayedOwners([Listing(3, 0, []), Listing(0, 2, [row("b", 20)])], [Listing(0, 1, [row("a", 10)])])
    asyncio.run(late.look(owners))
    assert (late.oldest, late.count) == (row("a", 10), 3)
    late.bound_s = 0
    asyncio.run(late.look(owners))
    assert (late.oldest, late.count) == (None, 0)


# -- late exports, as owners tell of them --------------------------------------------------------------------------

class PlayedOwners:
    """Owners that answer the question for late exports with these listings, one after the other."""

    def __init__(self, *by_owner):
        self.count, self.asked, self._by_owner = len(by_owner), [], [list(some) for some in by_owner]

    async def ask_owner(self, index, question):
        self.asked.append(question)
        answer = self._by_owner[index].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def listing(total, *rows):
    return Listing(0, total, [{"topic": topic, "since_ms": since_ms} for topic, since_ms in rows])


def test_the_oldest_message_of_all_owners_is_looked_for_and_all_topics_are_counted():
    """An owner that has rows to make is asked again.  While one does not answer, what was seen before still holds."""
    late, down = Late(ListUnexported, 60), Refusal(api.ServiceNotReady, "it is being started")
    late.bound_s = 3600
    asyncio.run(late.look(PlayedOwners([listing(0)], [listing(0)])))
    assert (late.oldest, late.count) == (None, 0)
    owners = PlayedOwners([Listing(7, 0, []), listing(3, ("a", 20))], [listing(2, ("b", 10))])
    asyncio.run(late.look(owners))
    assert (late.oldest, late.count) == ({"topic": "b", "since_ms": 10}, 5)
    assert [type(question) for question in owners.asked] == [ListUnexported] * 3
    asyncio.run(late.look(PlayedOwners([listing(0)], [down])))
    assert (late.oldest, late.count) == ({"topic": "b", "since_ms": 10}, 5)
    late.bound_s = 0
    owners = PlayedOwners([], [])
    asyncio.run(late.look(owners))
    assert (late.oldest, late.count, owners.asked) == (None, 0, [])


# -- pages about alarms

SHIPPED = Path(__file__).parents[2] / "systemd"


def test_every_alarm_has_a_page_and_a_rule_that_names_it():
    rules = (SHIPPED / "prometheus" / "geminga.rules.yml").read_text()
    assert ALARMS
    for name in ALARMS:
        page = (SHIPPED / "runbook" / f"{name}.md").read_text()
        assert f"**Alarm** `{name}`" in page
        assert f'geminga_alarm{{alarm="{name}"}} == 1' in rules and f"runbook: {name}.md" in rules


def test_every_rule_names_a_page_of_the_runbook_that_there_is():
    rules = (SHIPPED / "prometheus" / "geminga.rules.yml").read_text()
    alerts = rules.split("- alert: ")[1:]
    assert len(alerts) >= len(ALARMS)
    for alert in alerts:
        page = re.search(r"runbook: ([\w-]+\.md)", alert)
        assert page and (SHIPPED / "runbook" / page[1]).exists(), alert


# -- files that are removed ---------------------------------------------------------------------------------------

def test_files_that_are_removed_while_they_are_used_are_an_alarm(fresh_broker):
    """The alarm is in the log by each file's name, in the status and in /metrics; the broker goes on, as its files are
    open.
    """
    topic = unique_topic("removed")
    place = fresh_broker.http_url + topic.replace("://", "/").join(("/admin/v2/", "/subscription/s"))
    assert request("PUT", place, b'"earliest"')[0] == 204      # without a subscription the message would be deleted
    assert run("publish", "--url", fresh_broker.service_url, topic, "before")[0] == 0
    [ledger] = fresh_broker.data_dir.glob("partitions/*/*.ledger")
    paths = [ledger, ledger.with_suffix(".index"), *(fresh_broker.data_dir / name for name in (
        "catalogue.sqlite", "catalogue.sqlite-wal", "lock", "format"))]
    assert "damage" not in run("status", "--admin-url", fresh_broker.http_url)[1]
    for path in paths:
        path.unlink()
    eventually(lambda: all(f"{path.name}: it was removed" in fresh_broker.log() for path in paths), what="their lines")
    status, printed, _ = run("status", "--admin-url", fresh_broker.http_url)
    assert status == 1 and "ALARM damage" in printed and "damage.md" in printed
    assert 'geminga_alarm{alarm="damage"} 1.0' in request("GET", fresh_broker.http_url + "/metrics")[1]
    assert [fresh_broker.log().count(f"{path.name}: it was removed") for path in paths] == [1] * len(paths)
    assert run("read", "--url", fresh_broker.service_url, unique_topic("other"))[0] == 1      # the broker still answers
    assert run("status", "--admin-url", fresh_broker.http_url, "--seen", "damage")[0] == 0

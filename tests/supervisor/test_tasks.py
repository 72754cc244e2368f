"""Nights and backups with a broker that is played: what they ask of it, and what they make of its refusals."""
import os

import pytest

from geminga.proto import names
from geminga.storage import format
from geminga.storage.catalogue.catalogue import open_catalogue
from geminga.storage.disk import locks
from geminga.storage.jobs.compacting import nightly
from geminga.supervisor.configuration.config import Config
from geminga.supervisor.tasks import backups, night_engines, nights
from geminga.supervisor.tasks.job_socket import CannotRun, Gone, JobRefused
from geminga.supervisor.tasks.night_progress import NightProgress

TOPICS = {1: "persistent://public/default/one", 2: "persistent://public/default/two"}
ROW = {"topic": TOPICS[2], "freed": 7, "expired": 0, "names_forgotten": 0}


class PlayedBroker:
    """Serves the folder, and refuses `enforce` for topics in `refusals`."""

    def __init__(self):
        self.refusals, self.enforced, self.ended_reports = {}, [], []
        self.is_there = True

    def ask(self, question, topic=""):
        if question == "leftovers":
            return {"folders": 0, "freed": 0}
        self.enforced.append(topic)
        if topic in self.refusals:
            raise self.refusals[topic]
        return ROW

    def is_served(self):
        return self.is_there

    def began(self, partitions):
        pass

    def ended(self, report):
        self.ended_reports.append(report)

    def adopt(self, partition_id, topic, view):
        raise AssertionError("nothing is compacted")

    def close(self):
        pass


@pytest.fixture
def broker(monkeypatch, tmp_path):
    """The catalogue has TOPICS, whose folders a test makes."""
    played, catalogue = PlayedBroker(), open_catalogue(tmp_path / "catalogue.sqlite")
    for partition_id, name in TOPICS.items():
        assert catalogue.partitions.create(names.parse(name)) == partition_id
    catalogue.commit()
    catalogue.close()
    for module in (nights, backups):
        monkeypatch.setattr(module, "BrokerSocket", lambda data_dir: played)
    return played


@pytest.fixture
def config(tmp_path):
    return Config(data_dir=tmp_path)


def run_night(config):
    return nights.run(config, [], [], NightProgress())


def test_a_night_gives_back_every_partitions_space(broker, config):
    report = run_night(config)
    assert (report["status"], report["last_success_ms"]) == ("success", report["ended_ms"])
    assert broker.enforced == list(TOPICS.values()) and report["totals"]["given_back"] == 14


def test_a_partition_that_could_not_give_back_fails_the_night_and_others_are_asked(broker, config):
    broker.refusals = {TOPICS[1]: JobRefused("the disk hangs")}
    report = run_night(config)
    assert (report["status"], report["last_success_ms"]) == ("failed", 0)
    assert broker.enforced == list(TOPICS.values())
    assert report["retention"]["errors"] == [{"topic": TOPICS[1], "error": "the disk hangs"}]
    assert report["retention"]["topics"] == [ROW]


def test_after_the_brokers_end_no_further_partition_is_asked(broker, config):
    """Each question to a broker that has ended could wait a minute for another one."""
    broker.refusals = {topic: Gone("The broker has ended") for topic in TOPICS.values()}
    report = run_night(config)
    assert report["status"] == "failed" and broker.enforced == [TOPICS[1]]


@pytest.mark.parametrize("outcome", [nightly.NOT_ADOPTED, nightly.FAILED])
def test_a_view_that_is_not_in_force_fails_the_night(broker, config, monkeypatch, outcome):
    refused = nightly.PartitionReport(1, TOPICS[1], outcome, "the topic is fenced")
    monkeypatch.setattr(nights, "compact", lambda *_: nightly.Night(0, 0.0, "played", (refused,)))
    report = run_night(config)
    assert (report["status"], report["totals"]["failed"]) == ("failed", 1)


def test_a_compaction_on_demand_fails_with_any_of_its_partitions(broker, config):
    """Partition 1 was deleted meanwhile, and has no folder; partition 2 is empty."""
    format.partition_folder(config.data_dir, 2).mkdir(parents=True)
    assert nights.on_demand(config, [2])
    assert not nights.on_demand(config, [1, 2])
    assert [bool(report["error"]) for report in broker.ended_reports] == [False, True, False]


def test_scratch_files_of_running_processes_stay(config):
    """Only ended ones leave garbage; process ids on Linux end at 2^22."""
    running, ended = (config.data_dir / "nightly" / f"scratch-{pid}" for pid in (os.getpid(), (1 << 22) + 1))
    for folder in (running, ended):
        folder.mkdir(parents=True)
    with night_engines.Engines(config, is_night=True):
        assert running.exists() and not ended.exists()


def test_a_broker_that_starts_while_a_backup_looks_for_one_ends_the_backup(broker, config):
    """A copy of files that the new broker writes to would be torn."""
    broker.is_there = False
    with locks.lock(config.data_dir / locks.LOCK) as is_ours, pytest.raises(CannotRun, match="has just been started"):
        assert is_ours
        backups.make(config.data_dir, config.data_dir / "backups")
    assert not (config.data_dir / "backups").exists()

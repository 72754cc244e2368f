"""Resources that an idle broker uses, and the cores that it runs on."""
import os

import psutil
import pytest


@pytest.fixture
def children(start_broker, monkeypatch):
    """{name: process} of a broker whose processes are spread over cores."""
    monkeypatch.setenv("GEMINGA_AFFINITY", "spread")
    broker = start_broker("--workers", "2", "--owners", "2")
    return {process.name(): process for process in [psutil.Process(broker.pid), *psutil.Process(broker.pid).children()]}


def test_an_idle_broker_takes_less_than_200_mb_and_its_workers_and_owners_keep_to_their_cores(children):
    assert len(children) == 6
    assert sum(process.memory_full_info().pss for process in children.values()) < 200e6
    cores = sorted(os.sched_getaffinity(0))
    for role in "wo":
        assert [children[f"geminga-{role}{n}"].cpu_affinity() for n in (0, 1)] == [[cores[0]], [cores[1 % len(cores)]]]
    assert children["geminga-admin"].cpu_affinity() == cores

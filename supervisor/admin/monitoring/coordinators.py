"""Metrics of the coordinators of transactions, under Pulsar's names.

Every owner is a coordinator, and counts since its start.
"""
import asyncio
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from geminga.proto.errors import Refusal
from geminga.storage.admin.transactions import CoordinatorFigures, GetCoordinators
from geminga.storage.transactions.coordinator import DURATIONS_MS
from geminga.supervisor.admin.requests.owners import Owners

Coordinators = dict[int, CoordinatorFigures]      # by number

_LABELS = ["cluster", "coordinator_id"]
_SECONDS = 2.0      # limit for an owner's answer
_COUNTERS = {"created": "Transactions begun", "committed": "Transactions committed", "aborted": "Transactions aborted",
             "timeout": "Transactions aborted because their time was over",
             "append_log": "Changes of transactions that the coordinator noted in its journal"}


async def coordinators(owners: Owners) -> Coordinators:
    """Return figures of all coordinators whose owners answer in time."""
    async def ask(index: int) -> CoordinatorFigures | None:
        try:
            async with asyncio.timeout(_SECONDS):
                return await owners.ask_owner(index, GetCoordinators())
        except (Refusal, TimeoutError):
            return None

    answers = await asyncio.gather(*map(ask, range(owners.count)))
    return {number: figures for number, figures in enumerate(answers) if figures is not None}


def families(cluster: str, told: Coordinators) -> Iterator[Metric]:
    """Yield metrics with a value for each coordinator."""
    active = GaugeMetricFamily("pulsar_txn_active_count", "Transactions that have not ended", labels=_LABELS)
    for number, figures in told.items():
        active.add_metric([cluster, str(number)], figures.active)
    yield active
    for name, text in _COUNTERS.items():
        counter = CounterMetricFamily(f"pulsar_txn_{name}", f"{text} since the owner started", labels=_LABELS)
        for number, figures in told.items():
            counts = {"created": figures.created, "committed": figures.committed, "aborted": figures.aborted,
                      "timeout": figures.timed_out, "append_log": figures.appended}
            counter.add_metric([cluster, str(number)], counts[name])
        yield counter
    unanswered = GaugeMetricFamily("pulsar_txn_tb_client_pending_requests",
                                   "Decided ends of transactions that topics have not carried out", labels=["cluster"])
    unanswered.add_metric([cluster], sum(figures.unanswered for figures in told.values()))
    yield unanswered
    bounds = [*map(str, DURATIONS_MS), "overflow"]
    for at, (before, bound) in enumerate(zip(["0", *bounds], bounds, strict=False)):
        text = (f"Transactions that took longer than {before} ms" if bound == "overflow" else
                f"Transactions that took longer than {before} ms and at most {bound} ms")
        bucket = GaugeMetricFamily(
            f"pulsar_txn_execution_latency_le_{bound}", f"{text}, since the owner started", labels=_LABELS)
        for number, figures in told.items():
            bucket.add_metric([cluster, str(number)], figures.durations[at])
        yield bucket

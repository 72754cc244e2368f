"""Metrics of the coordinators of transactions, under Pulsar's names.

Every owner is a coordinator, and counts since its start.
"""
import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from geminga.proto.errors import Refusal
from geminga.storage.admin.transactions import CoordinatorFigures, GetCoordinators
from geminga.storage.transactions.coordinator import DURATIONS_MS
from geminga.supervisor.admin.monitoring.broker_families import metric
from geminga.supervisor.admin.requests.owners import Owners

Coordinators = dict[int, CoordinatorFigures]      # by number

_LABELS = ["cluster", "coordinator_id"]
_SECONDS = 2.0      # limit for an owner's answer
_COUNTERS = {      # name behind pulsar_txn_ -> (field of the figures, HELP text)
    "created": ("created", "Transactions begun"), "committed": ("committed", "Transactions committed"),
    "aborted": ("aborted", "Transactions aborted"),
    "timeout": ("timed_out", "Transactions aborted because their time was over"),
    "append_log": ("appended", "Changes of transactions that the coordinator noted in its journal")}


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
    def each(kind: Callable[..., Metric], name: str, text: str, value: Callable[[CoordinatorFigures], int]) -> Metric:
        values = [((cluster, str(number)), value(figures)) for number, figures in told.items()]
        return metric(kind, f"pulsar_txn_{name}", text, _LABELS, values)

    yield each(GaugeMetricFamily, "active_count", "Transactions that have not ended", attrgetter("active"))
    for name, (field, text) in _COUNTERS.items():
        yield each(CounterMetricFamily, name, f"{text} since the owner started", attrgetter(field))
    yield metric(GaugeMetricFamily, "pulsar_txn_tb_client_pending_requests",
                 "Decided ends of transactions that topics have not carried out", ["cluster"],
                 [((cluster,), sum(figures.unanswered for figures in told.values()))])
    bounds = [*map(str, DURATIONS_MS), "overflow"]
    for bucket, (before, bound) in enumerate(zip(["0", *bounds], bounds, strict=False)):
        at_most = "" if bound == "overflow" else f" and at most {bound} ms"
        yield each(GaugeMetricFamily, f"execution_latency_le_{bound}",
                   f"Transactions that took longer than {before} ms{at_most}, since the owner started",
                   partial(_duration, bucket))


def _duration(bucket: int, figures: CoordinatorFigures) -> int:
    return figures.durations[bucket]

"""The nightly job: compaction of topics that are due, tables, release of disk space by each partition, and a report."""
import contextlib
import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psutil

from geminga.proto import names
from geminga.proto.layouts import Layout
from geminga.proto.names import TopicName
from geminga.storage import format
from geminga.storage.catalogue.catalogue import Catalogue, CatalogueError
from geminga.storage.catalogue.policies import Policies, policies_of
from geminga.storage.catalogue.policy_values import BY_EVENT_TIME, EXPORTS_COMPACTED
from geminga.storage.disk import data_folder
from geminga.storage.disk.files import write_anew
from geminga.storage.errors import CorruptFile, text_of
from geminga.storage.jobs import confirmed
from geminga.storage.jobs.compacting import nightly
from geminga.storage.jobs.compacting.engines import READING, WRITING, LocalEngine, Tell
from geminga.storage.jobs.compacting.nightly import Night, Planned, Target
from geminga.storage.ledgers import compacted_ledgers
from geminga.storage.tables import exports
from geminga.storage.tables.exports import TableReport, Wanted
from geminga.supervisor.configuration.config import Config
from geminga.supervisor.tasks import tables
from geminga.supervisor.tasks.idle_cores import use_idle_cores
from geminga.supervisor.tasks.job_socket import (
    REPORT,
    BrokerSocket,
    CannotRun,
    GivenBack,
    Gone,
    JobRefused,
    NightReport,
    last_report,
)
from geminga.supervisor.tasks.night_engines import Engines, needs_spark
from geminga.supervisor.tasks.night_progress import GIVING_BACK, TOPICS, NightProgress, announced

SUCCESS, FAILED = "success", "failed"
_OOM_SCORE = 500             # when memory runs out, the kernel kills this process before the broker


# -- partitions to compact

def targets(config: Config, topics: tuple[str, ...] = (), pattern: str = "") -> list[Target]:
    """Return the partitions that a nightly job considers.

    Named topics and topics that match the pattern are considered with all their partitions. Without names and pattern,
    all partitions with a compaction threshold or a compacted view are, and those whose compacted view is exported.
    Raises LookupError, Refusal, re.error, CatalogueError.
    """
    with contextlib.closing(confirmed.open_catalogue(config.data_dir)) as catalogue:
        options = catalogue.options.applied_to(config.storage)
        if topics or pattern:
            wanted = set(confirmed.partitions(config.data_dir, topics)) if topics else set()
            wanted |= set(confirmed.partitions(config.data_dir, re.compile(pattern))) if pattern else set()
        else:
            wanted = {(partition_id, names.parse(name)) for partition_id, name in catalogue.partitions.all()
                      if _is_compacted(policies_of(catalogue, names.parse(name), options))
                      or compacted_ledgers.numbers(format.partition_folder(config.data_dir, partition_id))}
        return [_target(config, catalogue, policies_of(catalogue, name, options), partition_id, name)
                for partition_id, name in _with_parents(catalogue, wanted)]


def _is_compacted(policies: Policies) -> bool:
    return policies.compaction_threshold > 0 or policies.export == EXPORTS_COMPACTED


def _target(config: Config, catalogue: Catalogue, policies: Policies, partition_id: int, name: TopicName) -> Target:
    return Target(partition_id, str(name), config.nightly.retain_keyless,
                  by_event_time=policies.compaction_order == BY_EVENT_TIME, later=_later(catalogue, name),
                  earlier=tuple(partition_id for partition_id, _ in _earlier(catalogue, name)))


def _later(catalogue: Catalogue, name: TopicName) -> tuple[int, ...]:
    """Return the ids of the partitions of all segments behind one; () for any other topic."""
    layout = _layout_with(catalogue, name)
    behind = layout.behind(name.segment_number) if layout is not None else []
    stored = [catalogue.partitions.find(names.parse(segment.topic)) for segment in behind]
    return tuple(sorted(found[0] for found in stored if found is not None))


def _earlier(catalogue: Catalogue, name: TopicName) -> list[tuple[int, TopicName]]:
    """Return the partitions (id, name) of all segments before one; [] for any other topic."""
    layout, stored = _layout_with(catalogue, name), []
    if layout is None:
        return []
    for segment in layout.segments:
        if any(other.number == name.segment_number for other in layout.behind(segment.number)):
            topic = names.parse(segment.topic)
            if (partition := catalogue.partitions.find(topic)) is not None:
                stored.append((partition[0], topic))
    return stored


def _layout_with(catalogue: Catalogue, name: TopicName) -> Layout | None:
    """Return the layout of the scalable topic that has a segment of that name, None if there is none."""
    layout = catalogue.scalable_topics.layout(name.base.scalable) if name.is_persistent else None
    its = layout.numbered(name.segment_number) if layout is not None else None
    return layout if its is not None and its.topic == str(name) else None


def _with_parents(catalogue: Catalogue, wanted: Iterable[tuple[int, TopicName]]) -> list[tuple[int, TopicName]]:
    """Return partitions (id, name), parents of segments before these, with all segments that are before others."""
    topics = dict(wanted)
    for name in list(topics.values()):
        topics.update(_earlier(catalogue, name))
    return sorted(topics.items())


def chosen(config: Config, partition_ids: Iterable[int]) -> list[Target]:
    """Return the partitions with these ids that exist, as targets of a compaction.  Raises CatalogueError."""
    wanted = set(partition_ids)
    with contextlib.closing(confirmed.open_catalogue(config.data_dir)) as catalogue:
        options = catalogue.options.applied_to(config.storage)
        partitions = _with_parents(catalogue, [(partition_id, names.parse(name)) for partition_id, name
                                               in catalogue.partitions.all() if partition_id in wanted])
        return [_target(config, catalogue, policies_of(catalogue, name, options), partition_id, name)
                for partition_id, name in partitions]


def settle(broker: BrokerSocket, config: Config, partitions: Iterable[Target]) -> None:
    """Have owners write down how transactions have ended, for partitions where the files do not say it yet.

    Without an answer, a compaction reads less.
    """
    for target in partitions:
        try:
            is_settled = confirmed.is_settled(config.data_dir, target.partition_id)
        except (CorruptFile, OSError):      # the plan has the error
            continue
        if not is_settled:
            broker.settle(target.topic)


def planned(config: Config, partitions: list[Target]) -> list[Planned]:
    return nightly.plan(config.data_dir, partitions)


def size_of(plan: Iterable[Planned]) -> int:
    """Return the bytes that the due compactions of a plan read."""
    return sum(one.size_read for one in plan if one.is_due)


# -- the night

def be_polite(niceness: int) -> None:
    """Put this process behind all others: for cores, for the disk, and when memory runs out.

    niceness: its share of cores that others want all the time; with 0 it wants them like any other process.
    """
    with contextlib.suppress(OSError):
        os.nice(max(0, niceness - os.nice(0)))
    if niceness:
        use_idle_cores()
    with contextlib.suppress(OSError, psutil.Error):
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))


def on_demand(config: Config, partition_ids: Iterable[int]) -> bool:
    """Compact partitions one after the other, for the broker that started this process.

    Return whether all compactions succeeded. Raises CannotRun.
    """
    partitions, is_well, taken = chosen(config, partition_ids), True, nightly.Taken()
    with contextlib.closing(BrokerSocket(config.data_dir)) as broker, Engines(config, is_night=False) as engines:
        broker.began({target.partition_id: target.topic for target in partitions})
        for target in partitions:
            settle(broker, config, [target])
            engine = engines.for_bytes(size_of(nightly.plan(config.data_dir, [target])))
            report = nightly.compact(config.data_dir, target, broker.adopt, engine, taken=taken)
            broker.ended(asdict(report))
            is_well &= not report.error
    return is_well


def ends_at(until: str, now: datetime) -> float:
    """Return the seconds from a local time to the next HH:MM; infinity for an empty text."""
    if not until:
        return math.inf
    hour, minute = map(int, until.split(":"))
    end = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    return (end if end > now else end + timedelta(days=1)).timestamp() - now.timestamp()


def compact(broker: BrokerSocket, config: Config, engines: Engines, plan: list[Planned], tell: Tell,
            ends: float = math.inf) -> Night:
    """Compact the partitions that are due according to a plan, until `ends` by time.monotonic().  Raises CannotRun."""
    engine = engines.for_bytes(size_of(plan))
    begun = {one.target.partition_id: one.target.topic for one in plan if one.is_due}
    broker.began(begun)
    try:
        given_up = {one["partition_id"] for one in last_report(config.data_dir).get("compaction", ())
                    if one.get("given_up")}
        night = nightly.run(config.data_dir, plan, broker.adopt, engine, tell, ends, given_up)
    except nightly.AlreadyRunning as error:
        raise CannotRun(str(error)) from None
    for report in night.reports:
        if report.outcome != nightly.NOTHING_NEW or report.partition_id in begun:
            broker.ended(asdict(report))
    return night


def export(broker: BrokerSocket, config: Config, engines: Engines, topics: list[Wanted], tell: Tell,
           ends: float = math.inf) -> tuple[list[TableReport], str]:
    """Export topics as tables; return (a report for each table, why tables cannot be made)."""
    try:
        return tables.export(broker, config, engines, topics, tell, ends), ""
    except (CannotRun, CatalogueError, OSError) as error:
        return [], text_of(error) if isinstance(error, OSError) else str(error)
def _topics(config: Config) -> list[str]:
    """Return the names of all partitions."""
    with contextlib.closing(confirmed.open_catalogue(config.data_dir)) as catalogue:
        return [name for _, name in catalogue.partitions.all()]


def give_back(broker: BrokerSocket, config: Config, tell: Tell) -> GivenBack:
    """Have owners enforce retention in every partition and remove folders of deleted ones; return the report."""
    began, rows, errors, topics = time.monotonic(), [], [], _topics(config)
    for done, topic in enumerate(topics):
        tell(GIVING_BACK, done, len(topics))
        try:
            row = broker.ask("enforce", topic=topic)
            rows += [row] if row else []
        except JobRefused as refused:
            errors.append({"topic": topic, "error": str(refused)})
            if isinstance(refused, Gone):
                break
    removed = {"folders": 0, "freed": 0}
    with contextlib.suppress(JobRefused):
        while (some := broker.ask("leftovers"))["folders"]:
            removed = {name: removed[name] + some[name] for name in removed}
    return {"partitions": len(topics), "topics": rows, "errors": errors, "deleted": removed,
            "seconds": round(time.monotonic() - began, 3)}


def check(config: Config) -> None:
    """Raise CannotRun if this program must not write into the data folder, for example one of a newer format."""
    try:
        data_folder.check(config.data_dir)
    except data_folder.CannotUse as error:
        raise CannotRun(str(error)) from None


def run(config: Config, partitions: list[Target], topics: list[Wanted], progress: NightProgress) -> NightReport:
    """Run the nightly job, write its report, and return the report.  Raises CannotRun.

    topics: to be exported.  progress: told what is done, and passed on to the broker.
    """
    began, started_ms = time.monotonic(), time.time_ns() // 1_000_000
    ends = began + ends_at(config.nightly.until, datetime.now())
    with contextlib.closing(BrokerSocket(config.data_dir)) as broker, announced(config.data_dir, progress.look):
        settle(broker, config, partitions)
        plan = planned(config, partitions)
        _expect(progress, config, plan, topics, ends, is_served=broker.is_served())
        with Engines(config, is_night=True) as engines:
            night = compact(broker, config, engines, plan, progress, ends)
            progress.finish(READING, WRITING)
            exported, why_not = export(broker, config, engines, topics, progress, ends) if topics else ([], "")
            progress.finish(exports.EXPORTING)
        is_served = broker.is_served()
        given = give_back(broker, config, progress) if is_served else None
    compaction = [asdict(report) for report in night.reports if report.outcome != nightly.NOTHING_NEW]
    wrong = [report for report in night.reports if report.outcome in (nightly.FAILED, nightly.NOT_ADOPTED)]
    wrong_tables = [table for table in exported if table["outcome"] == exports.FAILED]
    error = night.error or why_not
    is_well = not (wrong or wrong_tables or error or (given and given["errors"]))
    ended_ms = time.time_ns() // 1_000_000
    report: NightReport = {
        "status": SUCCESS if is_well else FAILED, "error": error, "started_ms": started_ms, "ended_ms": ended_ms,
        "seconds": round(time.monotonic() - began, 3),
        "last_success_ms": ended_ms if is_well else last_report(config.data_dir).get("last_success_ms", 0),
        "engine": night.engine, "served": is_served, "partitions": len(plan), "not_due": _why_not(plan),
        "totals": _totals(compaction, exported, given), "compaction": compaction, "tables": exported,
        "retention": given}
    try:
        keep(config, report)
    except OSError as failure:      # the night's work is done; only its report is lost
        report["status"] = FAILED
        report["error"] = report["error"] or f"its report cannot be written: {text_of(failure)}"
    return report


def _expect(progress: NightProgress, config: Config, plan: list[Planned], topics: list[Wanted], ends: float, *,
            is_served: bool) -> None:
    """Tell a night's progress what is to be done.  Topics are expected to give back space as fast as last time."""
    messages = sum(one.messages + one.view_messages for one in plan if one.is_due)
    progress.expect(READING, messages)
    progress.expect(WRITING, messages)
    if topics and not needs_spark(config):      # else the tables are looked at when Spark has started
        planned = tables.plan(config, topics, LocalEngine())
        progress.expect(exports.EXPORTING, sum(one.messages for one in planned if not one.error))
    progress.end_compaction(ends)
    if is_served:
        before = last_report(config.data_dir).get("retention") or {"partitions": 0}
        pace = before["seconds"] / before["partitions"] if before["partitions"] else None
        progress.expect(GIVING_BACK, len(_topics(config)), TOPICS, pace)


def _why_not(plan: list[Planned]) -> dict[str, int]:
    """Return {reason: number of partitions} for the partitions that needed no compaction."""
    return dict(Counter(re.sub(r"since view \d+", "since its last compaction", one.why)
                        for one in plan if not one.is_due and not one.error))


def _totals(compaction: list[dict[str, Any]], exported: list[TableReport],
            given: GivenBack | None) -> dict[str, int]:
    names = "messages_in", "messages_out", "bytes_in", "bytes_read", "bytes_out", "keys", "tombstones"
    done = [report for report in compaction if report["outcome"] == nightly.COMPACTED]
    late = sum(report["outcome"] == nightly.LATE for report in compaction)
    totals = {name: sum(report[name] for report in done) for name in names} | {
        "compacted": len(done), "failed": len(compaction) - len(done) - late, "late": late, "given_back": 0,
        "expired": 0, "names_forgotten": 0,
        "exported": sum(table["rows"] for table in exported),
        "rejected": sum(table["rejected"] for table in exported),
        "damaged": sum(table["damaged"] for table in exported),
        "tables_failed": sum(table["outcome"] == exports.FAILED for table in exported)}
    if given:
        totals["given_back"] = sum(row["freed"] for row in given["topics"]) + given["deleted"]["freed"]
        totals |= {name: sum(row[name] for row in given["topics"]) for name in ("expired", "names_forgotten")}
    return totals


def failed(config: Config, environ: Mapping[str, str]) -> str:
    """Return the reason why a nightly job failed, from the variables MONITOR_... of systemd (systemd.exec(5)).

    A job that was killed left no report.  A report is written for it, so that the alarm is raised.
    """
    result, status = environ.get("MONITOR_SERVICE_RESULT", ""), environ.get("MONITOR_EXIT_STATUS", "")
    why = f"it ended with {f'exit status {status}' if result == 'exit-code' else result or 'an unknown result'}"
    if (result, status) == ("exit-code", "1"):
        return last_report(config.data_dir).get("error") or "some partitions could not be compacted or trimmed"
    now_ms = time.time_ns() // 1_000_000
    given: GivenBack = {"partitions": 0, "topics": [], "errors": [], "deleted": {"folders": 0, "freed": 0},
                        "seconds": 0.0}
    keep(config, {
        "status": FAILED, "error": why, "started_ms": now_ms, "ended_ms": now_ms, "seconds": 0.0,
        "last_success_ms": last_report(config.data_dir).get("last_success_ms", 0), "engine": "not known",
        "served": True, "partitions": 0, "not_due": {}, "totals": _totals([], [], given), "compaction": [],
        "tables": [], "retention": given})
    return why


def keep(config: Config, report: NightReport) -> None:
    """Write the report of a nightly job into the data folder.  Raises OSError."""
    path = config.data_dir / REPORT
    path.parent.mkdir(exist_ok=True)
    write_anew(path, json.dumps(report).encode())

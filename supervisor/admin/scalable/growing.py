"""Scalable topics that grow and shrink by themselves: what segments carry is asked of owners, and layouts are changed.

Once a second owners are asked for topics that several stream consumers share, as a consumer may wait for a segment or
for a bucket.  What segments carry is an average over a minute, so it is asked once a minute.
"""
import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping

import psutil
from aiohttp import web

from geminga.proto import layout_changes, names
from geminga.proto.errors import Refusal
from geminga.proto.layout_changes import MERGE, REBUCKET, SPLIT, CannotChange, LayoutChange
from geminga.proto.layouts import Layout
from geminga.proto.names import TopicName
from geminga.storage.admin.segment_questions import GetSegmentLoads, SegmentLoads
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.database import now_ms
from geminga.storage.catalogue.policies import applied
from geminga.storage.errors import NotDurable, StorageFull
from geminga.storage.options import StorageOptions
from geminga.storage.runtime.log import log
from geminga.storage.scalable.auto_scaling import (
    DECLARATION,
    Changes,
    Decision,
    Load,
    Merge,
    ScalePolicy,
    Split,
    decide,
    for_consumers,
    is_quiet,
    owner_fillers,
    policy_of,
)
from geminga.supervisor.admin.requests.owners import Owners
from geminga.supervisor.admin.scalable.layout_changes import LayoutChanges, wait_for

_CONSUMERS_SECONDS = 1       # between looks for consumers without a segment or bucket
_FIELDS = {SPLIT: "split_ms", MERGE: "merge_ms", REBUCKET: "rebucket_ms"}      # of Changes


class Cores:
    """How busy owners are, from look to look."""

    def __init__(self, pids: Callable[[], Mapping[int, int]], clock: Callable[[], float] = time.monotonic) -> None:
        """pids: returns the process of each owner.  clock: in seconds."""
        self._pids, self._clock = pids, clock
        self._before: dict[int, tuple[float, float]] = {}      # process -> (when it was looked at, its CPU time)

    def __repr__(self) -> str:
        return f"<Cores of {len(self._before)} owners>"

    def used(self) -> dict[int, float]:
        """Return the part of a core that each owner has used since the last call, without those that are new."""
        before, self._before, used = self._before, {}, {}
        for index, pid in self._pids().items():
            with contextlib.suppress(psutil.Error):      # it has just ended
                now, seconds = self._clock(), sum(psutil.Process(pid).cpu_times()[:2])
                self._before[pid] = now, seconds
                if pid in before and now > before[pid][0]:
                    used[index] = (seconds - before[pid][1]) / (now - before[pid][0])
        return used


class Growing:
    """The automatic changes of all scalable topics."""

    def __init__(self, catalogue: Catalogue, owners: Owners, changes: LayoutChanges,
                 options: Callable[[], StorageOptions], cores: Cores):
        """options: returns those in force."""
        self._catalogue, self._owners, self._changes, self._options = catalogue, owners, changes, options
        self._cores, self._fillers = cores, set[str]()
        self._rates: dict[str, tuple[float, float, float, float]] = {}      # of segments, as the last look found them
        self._quiet_since_ms: dict[str, int] = {}                           # segments that carry little
        self._changed: defaultdict[TopicName, Changes] = defaultdict(Changes)

    def __repr__(self) -> str:
        return f"<Growing by the rates of {len(self._rates)} segments>"

    async def serve(self, app: web.Application) -> AsyncIterator[None]:
        """Look while the application runs, for `cleanup_ctx`."""
        tasks = [asyncio.create_task(self._look_always(False)), asyncio.create_task(self._look_always(True))]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look_always(self, with_rates: bool) -> None:
        while True:
            await asyncio.sleep(self._options().scale_interval_s if with_rates else _CONSUMERS_SECONDS)
            with contextlib.suppress(Refusal):      # an owner is being started
                try:
                    if self._catalogue.scalable_topics.are_any():
                        loads = await self._owners.ask_all(GetSegmentLoads(with_rates=with_rates))
                        await (self.look if with_rates else self.look_at_consumers)(loads, now_ms())
                except (StorageFull, NotDurable) as error:
                    self._catalogue.undo()
                    log.debug("scalable topics grow later", why=str(error))

    async def look_at_consumers(self, answers: list[SegmentLoads], now: int) -> None:
        """Change topics with more stream consumers than segments or buckets.

        answers: of all owners.  now: in ms since 1970.  Raises StorageFull, NotDurable.
        """
        for text, count in _consumers(answers).items():
            topic = names.parse(text)
            layout = self._catalogue.scalable_topics.layout(topic)
            if layout is not None:
                policy, loads = self._policy(topic), self._loads(layout, now)
                await self._change(topic, for_consumers(layout, loads, count, policy, self._last(topic), now))

    async def look(self, answers: list[SegmentLoads], now: int) -> None:
        """Change topics by what their segments carry.

        answers: of all owners, with rates.  now: in ms since 1970.  Raises StorageFull, NotDurable.
        """
        self._rates = {segment: rates for answer in answers for segment, rates in answer.rates.items()}
        self._fillers = owner_fillers([{segment: rates[0] + rates[2] for segment, rates in answer.rates.items()}
                                       for answer in answers], self._cores.used())
        consumers, topics = _consumers(answers), self._catalogue.scalable_topics.layouts()
        segments = {segment.topic for _, layout in topics for segment in layout.active}
        self._quiet_since_ms = {name: since for name, since in self._quiet_since_ms.items() if name in segments}
        self._changed = defaultdict(Changes, {topic: self._changed[topic] for topic, _ in topics
                                              if topic in self._changed})
        for topic, layout in topics:
            policy = self._policy(topic)
            for segment in layout.active:
                if is_quiet(Load(*self._rates.get(segment.topic, ())), policy):
                    self._quiet_since_ms.setdefault(segment.topic, now)
                else:
                    self._quiet_since_ms.pop(segment.topic, None)
            await self._change(topic, decide(layout, self._loads(layout, now), consumers.get(str(topic), 0), policy,
                                             self._last(topic), now))

    def _loads(self, layout: Layout, now: int) -> Mapping[int, Load]:
        return {segment.number: Load(*self._rates.get(segment.topic, (0.0,) * 4),
                                     quiet_ms=now - self._quiet_since_ms.get(segment.topic, now),
                                     fills_owner=segment.topic in self._fillers)
                for segment in layout.active}

    def _policy(self, topic: TopicName) -> ScalePolicy:
        return policy_of(applied(self._catalogue, topic, DECLARATION, self._options()))

    def _last(self, topic: TopicName) -> Changes:
        """Return when the topic was changed last; after a start only its very last change is known."""
        change, _ = self._catalogue.scalable_topics.last_change(topic)
        if change is not None and change.operation in _FIELDS:
            self._changed[topic] = self._changed[topic]._replace(**{_FIELDS[change.operation]: change.began_ms})
        return self._changed[topic]

    async def _change(self, topic: TopicName, decision: Decision | None) -> None:
        """Make the changes that were decided, and wait for them; none while the topic is being changed anyway."""
        if decision is None:
            return
        numbers = decision.segments if not isinstance(decision, Split | Merge) else (decision.segment,)
        for number in numbers:
            layout = self._catalogue.scalable_topics.layout(topic)
            if layout is None:
                return
            try:
                change = _change_of(topic, layout, number, decision)._replace(trigger="auto")
            except CannotChange:      # it was changed by hand meanwhile
                return
            task = self._changes.begin(topic, change)
            if task is None:
                return
            log.info("a scalable topic changes by itself", topic=topic, change=change.operation, segment=number,
                     why=decision.reason)
            if not await wait_for(task):
                return      # what is left is decided anew


def _change_of(topic: TopicName, layout: Layout, number: int, decision: Decision) -> LayoutChange:
    """Return the change of a layout that carries out a decision about one segment.  Raises CannotChange."""
    if isinstance(decision, Split):
        return layout_changes.split(topic, layout, number, now_ms())
    if isinstance(decision, Merge):
        return layout_changes.merge(topic, layout, (number, decision.other), now_ms())
    return layout_changes.rebucket(topic, layout, number, decision.buckets, now_ms())


def _consumers(answers: list[SegmentLoads]) -> dict[str, int]:
    """Return {topic: consumers of its largest stream subscription}; each topic has one owner."""
    return {topic: count for answer in answers for topic, count in answer.consumers.items()}

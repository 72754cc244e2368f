"""Changes of layouts, which are finished later if a kill or an owner's end interrupts them.

A change is written into the catalogue first.  Then its steps are carried out, whether the client that has asked for it
waits or not.  When a step fails, because an owner is being started or there is no room, all steps are repeated.  What
fails for long is told by an alarm, and no other topic waits for it.
"""
import asyncio
import bisect
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from aiohttp import web

from geminga.proto import names
from geminga.proto.errors import Refusal
from geminga.proto.layout_changes import LayoutChange, prune
from geminga.proto.layouts import Layout
from geminga.proto.names import TopicName
from geminga.storage.admin.layout_change_steps import steps_of
from geminga.storage.admin.segment_questions import IsSpent, LayoutsChanged
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.database import now_ms
from geminga.storage.errors import NotDurable, StorageFull
from geminga.storage.runtime.log import log
from geminga.supervisor.admin.requests.owners import Owners
from geminga.supervisor.admin.resources.retries import Retries

_AGAIN_SECONDS = 0.2         # between the first tries to finish a change that was cut short, ...
_AGAIN_SECONDS_MAX = 2.0     # ... and between later ones, each of which waits a little longer
_OTHERS_SECONDS = 10         # for which changes of other topics wait for one that the broker makes by itself
_PRUNE_SECONDS = 10          # between looks for segments that nobody needs
# A sealed segment stays so long at least: a client whose layout is older has to be told that the segment is sealed, not
# that there is none, else it gives up instead of sending elsewhere.
_SEALED_MS = 60_000
BOUNDS_S = 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0      # of durations, as Pulsar has them


@dataclass
class Durations:
    """How long changes took: how many up to each of BOUNDS_S and beyond the one before, and their sum in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    total_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect.bisect_left(BOUNDS_S, seconds)] += 1
        self.total_s += seconds


class LayoutChanges:
    """The changes of layouts that are under way."""

    def __init__(self, catalogue: Catalogue, owners: Owners, retries: Retries):
        self._catalogue, self._owners, self._retries = catalogue, owners, retries
        self._tasks: dict[TopicName, asyncio.Task[None]] = {}
        self.done: Counter[tuple[str, str]] = Counter()      # changes that are in force, by operation and trigger
        self.durations: dict[str, Durations] = {}            # by operation

    def __repr__(self) -> str:
        return f"<LayoutChanges {len(self._tasks)} under way>"

    def begin(self, topic: TopicName, change: LayoutChange) -> asyncio.Task[None] | None:
        """Write down a change, and begin to carry it out.  The task ends when the new layout is in force.

        Returns None if another change of the topic is under way, or has come in between.  Raises StorageFull,
        NotDurable.
        """
        return self._begin(topic, lambda: self._catalogue.scalable_topics.begin_change(topic, change))

    def migrate(self, topic: TopicName, partitions: int) -> asyncio.Task[None] | None:
        """Write down that a regular topic is to be made scalable, and begin it; see `begin`.

        partitions: its number of partitions.  Raises CannotChange, Refusal.
        """
        return self._begin(topic, lambda: self._catalogue.scalable_topics.begin_migration(topic, partitions))

    def _begin(self, topic: TopicName, write: Callable[[], bool]) -> asyncio.Task[None] | None:
        if topic in self._tasks or not write():
            self._catalogue.undo()
            return None
        self._catalogue.commit()
        return self._start(topic)

    def _start(self, topic: TopicName) -> "asyncio.Task[None]":
        task = self._tasks[topic] = asyncio.create_task(self._finish(topic))
        task.add_done_callback(lambda _: self._tasks.pop(topic, None))
        return task

    async def _finish(self, topic: TopicName) -> None:
        """Carry out the steps of a topic's change until it is in force, or the topic is deleted."""
        what = "change"
        for tries in itertools.count(1):
            try:
                if (change := self._catalogue.scalable_topics.change_of(topic)) is None:
                    break
                what = change.operation
                await self._carry_out(topic)
                self._count(topic, change)
            except (Refusal, StorageFull, NotDurable) as error:
                self._catalogue.undo()
                self._retries.failed(topic, what, error)
                log.debug("a change of a layout is tried again", topic=topic, why=str(error))
                await asyncio.sleep(min(tries * _AGAIN_SECONDS, _AGAIN_SECONDS_MAX))
        self._retries.ended(topic)

    def why_it_takes_long(self, topic: TopicName) -> str:
        """Return the reason why the change of a topic failed last; "": it has not failed."""
        return self._retries.why(topic)

    def _count(self, topic: TopicName, change: LayoutChange) -> None:
        last, is_done = self._catalogue.scalable_topics.last_change(topic)
        if is_done and last is not None and last.layout.epoch == change.layout.epoch:
            self.done[change.operation, change.trigger] += 1
            self.durations.setdefault(change.operation, Durations()).add(max(0, now_ms() - change.began_ms) / 1000)

    async def _carry_out(self, topic: TopicName) -> None:
        """Ask the steps of a change.  Raises Refusal, StorageFull, NotDurable."""
        steps = steps_of(self._catalogue, topic)
        with contextlib.suppress(StopIteration):
            question = next(steps)
            while True:
                question = steps.send(await self._owners.ask(question))
        # Each owner knows clients and stream consumers of its own.
        await asyncio.gather(*(self._tell(index) for index in range(self._owners.count)))

    async def _look_always(self) -> None:
        """Finish changes that a killed process has begun, or that a topic has brought back; prune segments."""
        for seconds in itertools.count():
            try:
                for topic in set(self._catalogue.scalable_topics.changing()) - self._tasks.keys():
                    self._start(topic)
                if seconds % _PRUNE_SECONDS == _PRUNE_SECONDS - 1:
                    await self.prune(now_ms())
            except (StorageFull, NotDurable) as error:
                self._catalogue.undo()
                log.debug("segments are pruned later", why=str(error))
            await asyncio.sleep(1)

    # -- segments that nobody needs

    async def prune(self, now: int) -> None:
        """Remove sealed segments that nobody needs from their layouts, and delete them.

        now: in ms since 1970.  Raises StorageFull, NotDurable.
        """
        for topic, layout in self._catalogue.scalable_topics.layouts(changed=True):
            if topic not in self._tasks and (spent := await self._spent(layout, now)):
                task = self.begin(topic, prune(layout, spent, now))
                if task is not None and await wait_for(task):
                    log.info("segments that nobody needs were deleted", topic=topic, segments=len(spent))

    async def _spent(self, layout: Layout, now: int) -> set[int]:
        """Return the numbers of a layout's segments that are to be pruned, parents before their children.

        A child that was sealed before it got a message is needed as long as its parent: segments behind it wait for
        that one.  Former partitions go together: a client of Pulsar 4 subscribes to all of them, or to none.
        """
        spent: set[int] = set()
        for segment in layout.segments:
            if segment.sealed_ms is not None and now - segment.sealed_ms >= _SEALED_MS and spent.issuperset(
                    segment.parents):
                with contextlib.suppress(Refusal):      # its owner is being started
                    if await self._owners.ask(IsSpent(names.parse(segment.topic))):
                        spent.add(segment.number)
        legacy = {segment.number for segment in layout.segments if segment.is_legacy}
        return spent if spent >= legacy else set()      # what is behind partitions has them all as parents

    async def _tell(self, index: int) -> None:
        with contextlib.suppress(Refusal):      # an owner that starts reads the layouts that there are
            await self._owners.ask_owner(index, LayoutsChanged())

    async def serve(self, app: web.Application) -> AsyncIterator[None]:
        """Look for changes to finish and segments to prune while the application runs, for `cleanup_ctx`."""
        looking = asyncio.create_task(self._look_always())
        yield
        tasks = [looking, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def wait_for(task: asyncio.Task[None]) -> bool:
    """Wait for a change that the broker makes by itself; return False if it takes so long that others go first."""
    return bool((await asyncio.wait([task], timeout=_OTHERS_SECONDS))[0])


CHANGES = web.AppKey("layout_changes", LayoutChanges)

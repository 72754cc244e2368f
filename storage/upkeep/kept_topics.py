"""The end of deleted topics and cleared backlogs that are kept: what only they need is deleted for good.

catalogue/kept_topics.py has the steps of keeping and taking back.  What is kept is given up when its time is over, when
an administrator discards it, and when the disk is so full that publishing is refused: the longest deleted one first.
"""
import contextlib
from collections.abc import Callable

from geminga.proto import names
from geminga.proto.errors import Refusal
from geminga.storage.catalogue.kept_topics import KeptCursor, KeptTopic, former_name
from geminga.storage.catalogue.partitions import PREFIX
from geminga.storage.commands import commands
from geminga.storage.errors import CorruptFile, StorageFull
from geminga.storage.ledgers.position import NOWHERE
from geminga.storage.open_topics import cleared_backlogs
from geminga.storage.open_topics.clients import Clients
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.disk_space import DiskSpace
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.open_topics.watcher import Watcher
from geminga.storage.runtime.log import log

_EACH_TICK = 10      # partitions that are deleted for good in a second: each costs syncs


class KeptTopicsUpkeep(Watcher):
    """One owner's part in giving up what is kept: it frees its own partitions, and gives up topics of its names."""

    def __init__(self, decisions: Decisions, clients: Clients, topics: TopicTable, space: DiskSpace,
                 is_mine: Callable[[str], bool]):
        """is_mine: whether a partition's name belongs to this owner."""
        self._decisions, self._clients, self._topics, self._space = decisions, clients, topics, space
        self._is_mine = is_mine
        self._version, self._kept = -1, list[KeptTopic]()

    def __repr__(self) -> str:
        return f"<KeptTopicsUpkeep kept={len(self._kept)}>"

    def tick(self, now_ms: int) -> None:
        """Give up what is over, or for which there is no room, and delete some partitions for good."""
        catalogue = self._topics.catalogue
        version = catalogue.kept_topics.version()
        if version == self._version and not self._kept:      # nearly always
            return
        try:
            if version != self._version:
                self._look(version)
            self._give_up(now_ms)
            self._delete()
        except StorageFull as error:
            catalogue.undo()
            log.info(f"what is kept of deleted topics and cleared backlogs cannot be given up now: {error}")

    def _look(self, version: int) -> None:
        """Note what is kept as of a version of the catalogue.  After an error the next tick looks again.

        Raises StorageFull, NotDurable.
        """
        kept = self._topics.catalogue.kept_topics.all()
        self._close(set(kept) - set(self._kept))
        self._version, self._kept = version, kept
        mine = [one for one in kept if not one.is_given_up and self._is_mine(one.topic)]
        self._decisions.counters.set("kept_topics", sum(not one.subscription for one in mine))
        self._decisions.counters.set("kept_backlogs", sum(bool(one.subscription) for one in mine))
        self._decisions.counters.set("kept_bytes", sum(one.bytes for one in mine))

    def _close(self, kept: set[KeptTopic]) -> None:
        """Close open partitions of topics that have just been kept.  Raises StorageFull, NotDurable.

        Administration asks for that when it has deleted the topic, and may be killed in between.
        """
        for one in kept if self._topics.by_name else ():
            for partition_id, name in self._topics.catalogue.kept_topics.stored(one.id) if not one.subscription else ():
                partition = self._topics.by_name.get(names.parse(name))
                if partition is not None and partition.partition_id == partition_id:
                    commands.expel_all(self._decisions, self._clients, partition)
                    self._topics.unload(partition)

    def _give_up(self, now_ms: int) -> None:
        """Mark what is over, and the longest deleted one while the disk is full.  Raises StorageFull."""
        waiting = [one for one in self._kept if not one.is_given_up]
        over = [one for one in waiting if one.until_ms <= now_ms and self._is_mine(one.topic)]
        is_freeing = len(waiting) < len(self._kept)
        if not over and waiting and self._space.is_full and not is_freeing and self._is_mine(waiting[0].topic):
            over = waiting[:1]
            one = over[0]
            what = f": the backlog of {one.subscription}, which was cleared," if one.subscription else \
                ", which was deleted,"
            log.warning(f"{one.topic}{what} is given up, because the disk is nearly full", code="G106",
                        topic=one.topic)
        for one in over:
            self._topics.catalogue.kept_topics.give_up(one.id)
            log.info(f"a {'cleared backlog' if one.subscription else 'deleted topic'} is not kept any more",
                     topic=one.topic)
        if over:
            self._topics.catalogue.commit()

    def _delete(self) -> None:
        """Delete partitions of this owner whose topic is given up, and cursors whose backlog is.

        Raises StorageFull, NotDurable.
        """
        catalogue, left = self._topics.catalogue, _EACH_TICK
        for one in self._kept:
            for cursor_id, name in catalogue.kept_topics.places(one.id) if one.is_given_up else ():
                if left and self._is_mine(former_name(name)):
                    self._free(name, KeptCursor(cursor_id, one.id, one.subscription, NOWHERE))
                    left -= 1
            for partition_id, name in catalogue.kept_topics.stored(one.id) if one.is_given_up else ():
                opened = self._topics.by_name.get(names.parse(name))      # it is about to be closed, or another one
                if left and self._is_mine(name) and (opened is None or opened.partition_id != partition_id):
                    self._topics.delete_kept(partition_id)
                    left -= 1
            if one.is_given_up:
                catalogue.kept_topics.forget_if_gone(one.id)
                catalogue.commit()

    def _free(self, name: str, row: KeptCursor) -> None:
        """Drop a cursor, and open its partition for that: ledgers are trimmed that only the cursor needed."""
        if not name.startswith(PREFIX):
            with contextlib.suppress(Refusal, CorruptFile):      # what cannot be opened, cannot be trimmed either
                partition = self._topics.find(names.parse(name))
                for backlog in list(partition.cleared) if partition is not None else ():
                    if backlog.row.id == row.id:
                        assert partition is not None
                        cleared_backlogs.give_up(self._decisions, partition, backlog)
        self._topics.catalogue.kept_topics.forget_cursor(row)

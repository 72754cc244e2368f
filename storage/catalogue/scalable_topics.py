"""Scalable topics: one row for each, with the layout of its segments.

The topic itself is a row of the table of topics, as any other, so lists, limits, rights, policies and schemas need
nothing of their own.  A segment is a stored partition under its own name, which its owner creates at its first use.

A change of a layout, such as a split, is written down before anything else happens, and comes into force in one
transaction.  So a change that a kill interrupts is finished later.  The row of a change stays as the topic's last one.

A regular topic is made scalable by a change too.  Until this is in force there is no scalable topic.  Then it takes
over the regular one's row, policies, properties, schemas, schedules and cleared backlogs.  Partitions keep their names,
and are in the layout.

A deletion takes the topic at once and marks the row, which stays until the last segment is deleted.  So a deletion that
a kill interrupts is finished later, and a topic of that name is created again only behind it.  If a policy keeps the
topic, owners close its segments instead of deleting them.
"""
import json
from functools import lru_cache

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.layout_changes import MIGRATE, PRUNE, LayoutChange, change_from_row, migrate
from geminga.proto.layouts import Layout, from_row, of_segments
from geminga.proto.names import TopicName
from geminga.storage.catalogue.database import Database, now_ms
from geminga.storage.catalogue.ids import Counters
from geminga.storage.catalogue.partitions import MOVE_BACKLOGS
from geminga.storage.catalogue.stored_policies import Properties, names_between
from geminga.storage.catalogue.stored_schedules import StoredSchedules
from geminga.storage.catalogue.topics import Topics


class ScalableTopics:
    """Scalable topics in the catalogue, by their names topic://..."""

    def __init__(self, database: Database, topics: Topics, properties: Properties, schedules: StoredSchedules,
                 counters: Counters):
        self._database, self._topics, self._properties = database, topics, properties
        self._schedules, self._counters = schedules, counters

    def layout(self, topic: TopicName) -> Layout | None:
        """Return the layout of a scalable topic, None if there is no such topic.  Raises StorageFull."""
        rows = self._database.read(
            "SELECT epoch, next_segment, segments FROM layouts WHERE name = ? AND NOT is_deleted", (str(topic),))
        return next((from_row(topic, epoch, number, json.loads(text)) for epoch, number, text in rows), None)

    def are_any(self) -> bool:
        """Whether there is any scalable topic.  Raises StorageFull."""
        return bool(self._database.value("SELECT 1 FROM layouts WHERE NOT is_deleted LIMIT 1"))

    def names(self, namespace: str) -> list[str]:
        """Return the names of a namespace's scalable topics, sorted.  Raises StorageFull."""
        return self._database.column(
            "SELECT name FROM layouts WHERE name > ? AND name < ? AND NOT is_deleted ORDER BY name",
            names_between(names.SCALABLE, namespace))

    def listed(self, namespace: str) -> dict[str, dict[str, str]]:
        """Return {name: properties} of a namespace's scalable topics, sorted.

        Raises StorageFull.
        """
        rows = self._database.read(
            "SELECT name, value FROM topics LEFT JOIN properties ON scope = name "
            "WHERE name > ? AND name < ? ORDER BY name", names_between(names.SCALABLE, namespace))
        return {name: json.loads(value or "{}") for name, value in rows}

    # -- changes

    def create(self, topic: TopicName, segments: int, properties: dict[str, str] | None = None) -> bool:
        """Create a scalable topic with as many segments of equal size.  Returns False if it exists already.

        A topic persistent://... of its name is hidden from then on.  Raises Refusal when the namespace has just been
        deleted or a topic of that name is still being deleted, and for a system topic's name, StorageFull, NotDurable.
        """
        with self._topics.transaction():
            if self.layout(topic) is not None:
                return False
            if names.is_system(str(topic)):      # it would hide the broker's own topic of its name
                raise Refusal(api.NotAllowedError, f"Can not create system topic {topic}")
            self._topics.refuse_migrating(topic.regular)
            self.refuse_being_deleted(topic)
            layout = of_segments(topic, segments, now_ms(), self._counters.value(_epochs_of(topic)))
            self._topics.create(topic, 0)
            self._add(topic, layout)
            self._properties.set(str(topic), properties or {})
        return True

    def _add(self, topic: TopicName, layout: Layout) -> None:
        self._database.write("INSERT INTO layouts VALUES (?, ?, ?, ?, 0)", (
            str(topic), layout.epoch, layout.next_number, json.dumps(layout.to_row())))

    def refuse_being_deleted(self, topic: TopicName) -> None:
        """Raise Refusal while segments of a deleted topic of that name may still be open.  Raises StorageFull."""
        if self.is_being_deleted(topic):
            raise Refusal(api.ServiceNotReady, f"Topic {topic} is being deleted; try again")

    # -- changes of layouts

    def begin_change(self, topic: TopicName, change: LayoutChange) -> bool:
        """Write down a change that is to be carried out.  Returns False if there is another one, or no such topic.

        Raises StorageFull, NotDurable.
        """
        with self._topics.transaction():
            layout = self.layout(topic)
            if layout is None or layout.epoch + 1 != change.layout.epoch or self.change_of(topic) is not None:
                return False
            self._write_down(topic, change)
        return True

    def begin_migration(self, topic: TopicName, partitions: int) -> bool:
        """Write down that a regular topic is to be made scalable.

        partitions: its number of partitions.  Returns False if it is being made scalable already, or has another number
        of partitions.  Raises CannotChange: it has too many.  Raises Refusal: a topic of that name is being deleted.
        Raises StorageFull, NotDurable.
        """
        change = migrate(topic, partitions, now_ms(), self._counters.value(_epochs_of(topic)))
        with self._topics.transaction():
            self.refuse_being_deleted(topic)
            count = self._topics.partition_count(topic.regular)
            if self.layout(topic) is not None or self.change_of(topic) is not None or count != partitions:
                return False
            self._write_down(topic, change)
        return True

    def _write_down(self, topic: TopicName, change: LayoutChange) -> None:
        # REPLACE would fire no trigger for the former row, and the table's checksum would be wrong.
        self._database.write("INSERT INTO layout_changes VALUES (?, ?, 0) ON CONFLICT (name) DO UPDATE SET "
                             "change = excluded.change, is_done = 0", (str(topic), json.dumps(change.to_row())))

    def is_sealed_for(self, name: TopicName) -> bool:
        """Whether a terminated partition is a segment of a scalable topic, or is to be one.  Raises StorageFull."""
        if name.is_segment or name.domain != "persistent":
            return name.is_segment
        topic = name.base.scalable
        change = self.change_of(topic)
        parents = change.layout.segments if change is not None and change.operation == MIGRATE else ()
        return name in self._topics.legacy(topic) or str(name) in [parent.topic for parent in parents]

    def change_of(self, topic: TopicName) -> LayoutChange | None:
        """Return the change that is under way, None if there is none.  Raises StorageFull."""
        change, is_done = self.last_change(topic)
        return None if is_done else change

    def last_change(self, topic: TopicName) -> tuple[LayoutChange | None, bool]:
        """Return (last change, whether it is in force); None if there was none.  Raises StorageFull."""
        rows = self._database.read("SELECT change, is_done FROM layout_changes WHERE name = ?", (str(topic),))
        return next(((_change_of(topic, text), bool(is_done)) for text, is_done in rows), (None, True))

    def layouts(self, *, changed: bool = False) -> list[tuple[TopicName, Layout]]:
        """Return all topics with their layouts, or those whose layouts were changed.  Raises StorageFull."""
        rows = self._database.read("SELECT name, epoch, next_segment, segments FROM layouts WHERE NOT is_deleted "
                                   "AND (NOT ? OR name IN (SELECT name FROM layout_changes)) ORDER BY name", (changed,))
        return [(topic, from_row(topic, epoch, number, json.loads(text)))
                for name, epoch, number, text in rows for topic in (names.parse(name),)]

    def changing(self) -> list[TopicName]:
        """Return the topics whose layouts are being changed.  Raises StorageFull."""
        return [names.parse(name) for name in self._database.column(
            "SELECT name FROM layout_changes WHERE NOT is_done")]

    def repeat_last_changes(self) -> None:
        """Have the last change of each layout carried out again, if it made segments that are there still.

        A catalogue that is newer than the states of partitions has layouts in force whose segments lack subscriptions
        and sequence ids.  What is there already stays.  Raises StorageFull, NotDurable.
        """
        for topic, layout in self.layouts(changed=True):
            change, _ = self.last_change(topic)
            if change is not None and change.operation != PRUNE and change.layout.epoch == layout.epoch:
                self._database.write("UPDATE layout_changes SET is_done = 0 WHERE name = ?", (str(topic),))

    def end_change(self, topic: TopicName) -> Layout:
        """Put the layout of the change that is under way into force, and return it.

        Raises Refusal: the topic was deleted meanwhile.  Raises StorageFull, NotDurable.
        """
        with self._topics.transaction():
            layout = self.put_in_force(topic)
            self._database.write("UPDATE layout_changes SET is_done = 1 WHERE name = ?", (str(topic),))
        return layout

    def put_in_force(self, topic: TopicName) -> Layout:
        """Put the layout of the change that is under way into force, and return it; the change is to be finished.

        Raises as `end_change`.
        """
        with self._topics.transaction():
            change = self.change_of(topic)
            if change is None:
                raise Refusal(api.TopicNotFound, f"No change of {topic} is under way")
            layout = change.layout
            if change.operation == MIGRATE and self.layout(topic) is None:
                self._topics.make_scalable(topic)
                self._properties.move(str(topic.regular), str(topic))
                if self._database.write(MOVE_BACKLOGS, (str(topic), str(topic.regular))).rowcount:
                    self._counters.take("kept")
                self._add(topic, layout)
            self._database.write("UPDATE layouts SET epoch = ?, next_segment = ?, segments = ? WHERE name = ?", (
                layout.epoch, layout.next_number, json.dumps(layout.to_row()), str(topic)))
            self._schedules.follow(topic, layout)
            self._counters.take("topics")
        return layout

    # -- deletions

    def begin_deletion(self, topic: TopicName) -> None:
        """Delete a topic with its schemas, policies and properties; its segments are still to be deleted.

        Raises StorageFull, NotDurable.
        """
        layout = self.layout(topic)
        if layout is not None and layout.epoch:
            # Clients ignore assignments of an epoch below the last one, also when the topic was created anew.
            self._counters.raise_to(_epochs_of(topic), layout.epoch + 1)
        self._database.write("UPDATE layouts SET is_deleted = 1 WHERE name = ?", (str(topic),))
        self._database.write("DELETE FROM layout_changes WHERE name = ?", (str(topic),))
        self._topics.delete(topic)
        if layout is not None and layout.segments[0].is_legacy:
            self._topics.delete(topic.regular)      # grants to its partitions are left

    def is_being_deleted(self, topic: TopicName) -> bool:
        """Whether segments of a deleted topic of that name may still be there.  Raises StorageFull."""
        return bool(self._database.value("SELECT is_deleted FROM layouts WHERE name = ?", (str(topic),)))

    def being_deleted(self) -> list[TopicName]:
        """Return the topics of which segments are still to be deleted.  Raises StorageFull."""
        return [names.parse(name) for name in self._database.column("SELECT name FROM layouts WHERE is_deleted")]

    def deleted_segments(self, topic: TopicName) -> list[TopicName]:
        """Return the segments of a topic that is being deleted, of which owners may still have some open.

        Those of a topic that is kept are not stored under their names any more.  Raises StorageFull.
        """
        rows = json.loads(self._database.value(
            "SELECT segments FROM layouts WHERE name = ? AND is_deleted", (str(topic),)) or "[]")
        named = [names.parse(row[-1]) if row[-1] else topic.segment_name(*row[:3]) for row in rows]
        return list(dict.fromkeys([*self.stored_segments(topic), *named]))

    def stored_segments(self, topic: TopicName) -> list[TopicName]:
        """Return the segments of a topic that have been used, also while it is deleted.  Raises StorageFull.

        Former partitions of a topic that was made scalable are among them, unless there is a regular topic of that name
        that they belong to.
        """
        first = f"segment{str(topic).removeprefix('topic')}/"
        stored = self._database.column("SELECT name FROM partitions WHERE name > ? AND name < ? ORDER BY name",
                                      (first, first + "g"))      # hashes are written with digits and a to f
        regular = topic.regular
        if self._topics.partition_count(regular) is None:
            stored += self._database.column(
                "SELECT name FROM partitions WHERE name = ? OR (name > ? AND name < ?) ORDER BY name",
                (str(regular), f"{regular}-partition-", f"{regular}-partition."))
        return [name for name in map(names.parse, stored)
                if name.base.scalable == topic and self._topics.partition_count(name) is None]

    def claims(self, name: TopicName) -> bool:
        """Whether a partition without a topic is a segment of a scalable topic, maybe of one that is being deleted.

        Raises StorageFull.
        """
        text = self._database.value("SELECT segments FROM layouts WHERE name = ?", (str(name.base.scalable),))
        return self.is_pruned(name) or str(name) in [row[-1] for row in json.loads(text or "[]")]

    def is_pruned(self, name: TopicName) -> bool:
        """Whether a segment is being deleted because all of it is acknowledged.  Raises StorageFull."""
        change = self.change_of(name.base.scalable)
        return change is not None and change.operation == PRUNE and name.segment_number in change.parents

    def renew(self, topic: TopicName) -> None:
        """Raise the epochs of a topic that was taken back above all that clients know: they ignore lower ones.

        Raises StorageFull, NotDurable.
        """
        layout, (change, _) = self.layout(topic), self.last_change(topic)
        assert layout is not None, topic
        more = self._counters.value(_epochs_of(topic)) - layout.epoch
        if more > 0:
            layout = layout.later(more)
            self._database.write("UPDATE layouts SET epoch = ?, segments = ? WHERE name = ?",
                                 (layout.epoch, json.dumps(layout.to_row()), str(topic)))
            if change is not None:
                change = change._replace(layout=change.layout.later(more))
                self._database.write("UPDATE layout_changes SET change = ? WHERE name = ?",
                                     (json.dumps(change.to_row()), str(topic)))

    def end_deletion(self, topic: TopicName) -> None:
        """Forget a deleted topic: no segment of it is left.  Raises StorageFull, NotDurable."""
        self._database.write("DELETE FROM layouts WHERE name = ? AND is_deleted", (str(topic),))


@lru_cache(maxsize=8)
def _change_of(topic: TopicName, text: str) -> LayoutChange:
    """Return the change that a row has: each of its steps reads it, and a topic may have had hundreds of partitions."""
    return change_from_row(topic, json.loads(text))


def _epochs_of(topic: TopicName) -> str:
    """Return the counter of the epochs of deleted topics of that name, which only topics whose layout changed have."""
    return f"epochs {topic}"

"""What happens in a world of a scalable topic: each step one of ACTIONS, and in the end everything is over.

Administration splits, merges and rebuckets segments and prunes them, by the steps that the broker itself takes, and is
killed between any two of them; so are the owners.  What it has begun it finishes later.
"""
from pathlib import Path

from geminga.proto import envelope, layout_changes, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.layout_changes import CannotChange, LayoutChange
from geminga.proto.layouts import Layout
from geminga.storage.admin import typed_json
from geminga.storage.admin.layout_change_steps import steps_of
from geminga.storage.admin.questions import Clear, Delete, TopicQuestion, answer_type
from geminga.storage.topics.subscription import SubType
from geminga.supervisor.admin.resources.retries import Retries
from geminga.supervisor.admin.scalable.layout_changes import LayoutChanges

from . import scalable_model
from .disk import Fate
from .model import Broken, demand
from .owners import ROUNDS, Process
from .scalable_clients import MANY, TOPIC, Queue, Reader, ScalableClients
from .scalable_model import Group, number_of
from .world import Again

SEGMENTS_MAX = 8         # active ones
SEALED_MS = 61_000       # after this a sealed segment may be pruned
FORGOTTEN_MS = 70_000    # after this stream consumers that are away are forgotten
ROUND_MS = 2_000
STILL_ROUNDS = 4         # in which consumers get nothing, and owners ask each other again: then nothing is to come
MADE_LATER = 3           # subscriptions at most that are made while the world lives


class ScalableLife(ScalableClients):
    """Clients that do something at random, and owners and administration to which anything happens."""

    def __init__(self, seed: int, folder: Path):
        super().__init__(seed, folder)
        self.under_way = self.question = None      # of the change of the layout that is under way
        pick = self.chance.choice
        self.actions = ACTIONS | {
            ScalableLife.begin_change: pick([1, 12, 24]), ScalableLife.streams_follow: pick([8, 20]),
            ScalableLife.consume: pick([8, 20])}
        self.former_layout: Layout | None = None   # before the last change
        self.is_slow = pick([True, False])         # applications acknowledge little
        self.is_deletion_cut_short = False
        self.clearing: Group | None = None         # the subscription whose backlog was cleared in some segments only

    # -- the world

    def begin(self) -> None:
        self._open()
        if self.partitions is None:
            self.admin.scalable_topics.create(TOPIC, self.first_segments)
        else:
            self.admin.topics.create(TOPIC.regular, self.partitions)
        self.admin.commit()
        self.lineage.learn(self.layout)
        super().begin()
        self.connections = [next(self.numbers) for _ in range(3)]
        self.settle()
        for group in self.groups:
            while not self._make(group):
                self.start_some()
        for _ in range(self.chance.choice([0, 2, 3, 4])):
            self._register(self.groups[0], self.chance.choice(self.connections))

    def _open(self) -> None:
        """Begin a process of administration."""
        if self.admin is not None:
            self.admin.close()
        self.under_way, self.admin = None, self._open_catalogue(self.disk.root / "catalogue.sqlite")
        self.catalogues.remove(self.admin)      # it is no owner's

    def _cut_power(self) -> None:
        if self.admin is not None:
            self.admin.close()
        super()._cut_power()
        if self.admin is not None:
            self.admin = None
            self._open()

    def _bury(self) -> None:
        super()._bury()
        if self.admin is not None:
            self.admin.close()

    def step(self) -> None:
        self.faults_go_on()
        for process, connection in sorted(self.probed, key=lambda one: one[1]):
            if self.chance.random() < 0.6:
                self._show_life(process, connection)
        for stream in list(self.streams):
            if self.chance.random() < 0.4 and stream in self.streams:
                self._introduce(stream)
        [action] = self.chance.choices(list(self.actions), list(self.actions.values()))
        self.say(action.__name__)
        action(self)

    def _show_life(self, process: Process, connection: int) -> None:
        self.probed.discard((process, connection))
        self.pass_of(process, process.rig.happened(envelope.CONNECTION_ALIVE, connection=connection))

    def _show_all_life(self) -> None:
        for process, connection in sorted(self.probed, key=lambda one: one[1]):
            self._show_life(process, connection)

    # -- administration

    def ask(self, question: TopicQuestion, before=(), behind=()):
        """Ask the owner of a topic a question, in a pass with other sections.  Raises Refusal."""
        process, data = self.owner_of(str(question.topic)), question.encode()
        section = envelope.QUESTIONS, envelope.pack(envelope.QUESTIONS, [(1, len(data))]), data
        answers = None if process is None else self.pass_of(process, *before, section, *behind)
        if answers is None:
            raise Refusal(api.ServiceNotReady, "The owner has ended")
        [said] = answers.answered
        if "refused" in said:
            raise Refusal(said["refused"], said["text"])
        return typed_json.read(answer_type(type(question)), said["answer"])

    def begin_change(self) -> None:
        layout, chance = self.layout, self.chance
        if layout.segments[-1].is_legacy:
            return self._begin_migration()
        numbers = [segment.number for segment in sorted(layout.active, key=lambda segment: segment.first)]
        try:
            what = chance.random()
            if what < 0.45 and len(numbers) < SEGMENTS_MAX:
                change = layout_changes.split(TOPIC, layout, chance.choice(numbers), self.now_ms)
            elif what < 0.8 and len(numbers) > 1:
                first = chance.randrange(len(numbers) - 1)
                pair = numbers[first:first + 2]
                change = layout_changes.merge(TOPIC, layout, tuple(chance.sample(pair, 2)), self.now_ms)
            else:
                change = layout_changes.rebucket(
                    TOPIC, layout, chance.choice(numbers), chance.choice([1, 2, 4, 8]), self.now_ms)
        except CannotChange:
            return
        self._begin(change)

    def _begin_migration(self) -> None:
        if self.admin.scalable_topics.begin_migration(TOPIC, self.partitions):
            self.admin.commit()
            self.say("begin", layout_changes.MIGRATE)
            self.count(layout_changes.MIGRATE)
        self.admin.undo()

    def _begin(self, change: LayoutChange) -> bool:
        if not self.admin.scalable_topics.begin_change(TOPIC, change):
            self.admin.undo()
            return False
        self.admin.commit()
        self.former_layout = self.layout
        self.say("begin", change.operation, change.parents)
        self.count(change.operation)
        return True

    def prune(self) -> bool:
        """Begin to delete segments that nobody needs, and return whether there are any."""
        if not self.is_ending and self.chance.random() < 0.5:
            self.now_ms += SEALED_MS
        spent = _result(LayoutChanges(self.admin, _Asked(self), Retries())._spent(self.layout, self.now_ms))
        if not spent or self.admin.scalable_topics.change_of(TOPIC) is not None:
            return False
        if not self._begin(layout_changes.prune(self.layout, spent, self.now_ms)):
            return False
        for number in spent:
            segment = self.lineage.segments[number].topic
            scalable_model.pruned(segment, self.groups, self.sent)
            for reader in self.readers:
                if segment in reader.parts and reader.parts[segment].handle:
                    self._has_read(reader, segment)
        return True

    def change_layout(self) -> None:
        """Carry out some steps of the change under way, and publish in the same passes."""
        for _ in range(self.chance.choice([1, 1, 3, 8])):
            if not self._take_step():
                return

    def _take_step(self, *, publishes: bool = True) -> bool:
        """Carry out a step; return whether there is another one now."""
        chance = self.chance
        try:
            if self.under_way is None:
                self.under_way = steps_of(self.admin, TOPIC)
                self.question = next(self.under_way)
            process = self.owner_of(str(self.question.topic))
            may = publishes and process is not None
            before = self._sends_to(process) if may and chance.random() < 0.4 else []
            behind = self._sends_to(process) if may and not before and chance.random() < 0.5 else []
            self.say("ask", self.question.name, number_of(str(self.question.topic)))
            if publishes and self.disk.fate == Fate() and chance.random() < 0.15:
                self.disk.fate = Fate(kill_in=chance.randint(1, 12), power_fails=chance.random() < 0.6)
            answer = self.ask(self.question, before, behind)
            if self.under_way is None or (publishes and chance.random() < 0.05):      # killed before it has the answer
                self.under_way = None
                return False
            self.question = self.under_way.send(answer)
            return True
        except Refusal:
            self.admin.undo()
            self.is_deletion_cut_short |= isinstance(self.question, Delete)      # nights remove what it has left
            self.under_way = None
        except StopIteration:
            self.under_way = None
            self.lineage.learn(self.layout)
            for index, process in list(self.processes.items()):
                if self.processes.get(index) is process:
                    self.pass_of(process, process.rig.tell("layouts_changed"))
        return False

    def administration_dies(self) -> None:
        self._open()

    def unload(self) -> None:
        segment = self.chance.choice(self.layout.segments).topic
        if (process := self.owner_of(segment)) is not None:
            self._forget(lambda one: one == segment, keeps_waiting=True)
            self.pass_of(process, process.rig.question("unload", segment))

    def subscribe(self) -> None:
        """Make another subscription, as administration does: it is in all segments when that is answered."""
        if len(self.groups) < 2 + MADE_LATER:
            self.groups.append(group := Group(f"late{len(self.groups)}", is_stream=self.chance.random() < 0.5))
            self._make(group)

    def _make(self, group: Group) -> bool:
        """Have all segments make a subscription, also those that a change makes meanwhile."""
        asked: set[str] = set()
        since = 0 if not self.sent else None
        while segments := [one.topic for one in self.layout.segments if one.topic not in asked]:
            for segment in reversed(segments):      # those behind a sealed one first
                process = self.owner_of(segment)
                answers = None if process is None else self.pass_of(process, process.rig.question(
                    "subscribe", segment, subscription=group.name, may_create=True, position=[-1, -1]))
                if answers is None or "refused" in answers.answered[0]:
                    return False
                asked.add(segment)
        if since == 0:
            group.since = since
        self._is_made(group)
        return True

    # -- clients

    def _some_group(self, *, is_stream: bool) -> Group:
        """Return a subscription for a consumer that comes, sometimes one that it is the first to name."""
        if self.chance.random() < 0.3 and len(self.groups) < 2 + MADE_LATER:
            self.groups.append(Group(f"late{len(self.groups)}", is_stream=is_stream))
            return self.groups[-1]
        return self.chance.choice([group for group in self.groups if group.is_stream == is_stream])

    def _is_made(self, group: Group) -> None:
        """Note that all SUBSCRIBEs are answered which a consumer knew of: the subscription is in all segments."""
        if group.since is None:
            group.since = len(self.sent)
            self.say("made", group.name, group.since)

    def stream_comes(self) -> None:
        if len(self.streams) < 5:
            self._register(self._some_group(is_stream=True), self.chance.choice(self.connections))

    def streams_follow(self) -> None:
        """Let stream consumers do as they were told, mostly when they have acknowledged what they have."""
        for stream in self.chance.sample(self.streams, self.chance.randint(0, len(self.streams))):
            if stream in self.streams:
                self._follow(stream, is_patient=self.chance.random() < 0.7)
            if stream.told and all(name in stream.parts and stream.parts[name].handle for name in stream.told) \
                    and [one for one in self.streams if one.group is stream.group] == [stream]:
                self._is_made(stream.group)

    def stream_goes(self) -> None:
        if self.streams:
            self._unregister(self.chance.choice(self.streams))

    def queue_comes(self) -> None:
        """Let a queue consumer come, which subscribes later: the layout may be another one by then."""
        if len(self.queues) < 3:
            group = self._some_group(is_stream=False)
            self.queues.append(Queue(group, self.chance.choice(self.connections),
                                     self.chance.choice([self.layout, self.former_layout])))
            self.queues[-1].begins_early = self.chance.random() < 0.5

    def queue_follows(self) -> None:
        if self.queues:
            queue = self.chance.choice(self.queues)
            if queue.group.since is not None and self.chance.random() < 0.5:
                queue.layout = None
            self._attach(queue)

    def _attach(self, queue: Queue) -> None:
        """Subscribe to all segments that a queue consumer knows; it learns of others later."""
        queue.layout = layout = queue.layout or self.layout
        for segment in layout.segments:
            if segment.topic not in queue.parts and queue in self.queues:
                self._subscribe(queue.parts, segment.topic, queue.group, queue.connection, subType=SubType.Shared,
                                initialPosition=int(queue.begins_early))
        if all(segment.topic in queue.parts and queue.parts[segment.topic].handle for segment in layout.segments):
            self._is_made(queue.group)
        else:
            queue.layout = None if self.chance.random() < 0.5 else layout      # a segment may be deleted

    def reader_reads(self) -> None:
        """Let a checkpoint reader go away, or come and read on in all segments that it knows."""
        reader = self.chance.choice(self.readers)
        if reader.parts and self.chance.random() < 0.3:
            for segment in list(reader.parts):
                if segment in reader.parts:
                    self._close(reader.parts, segment)
            return
        self._read(reader)

    def _read(self, reader: Reader) -> None:
        if reader.layout is None or self.chance.random() < 0.5:
            reader.layout = self.layout
        for segment in reader.layout.segments:
            if segment.topic not in reader.parts:
                ledger_id, entry_id = reader.places.get(segment.topic, ((1 << 64) - 1, (1 << 64) - 1))
                reader.connection = self.chance.choice(self.connections)
                self._subscribe(reader.parts, segment.topic, None, reader.connection, subType=SubType.Exclusive,
                                durable=False, start_message_id=api.MessageIdData(ledgerId=ledger_id, entryId=entry_id))
        for segment, consumer in list(reader.parts.items()):
            if reader.parts.get(segment) is consumer and consumer.handle:
                self._flow(consumer, MANY)
            process = self.owner_of(segment)
            if reader.parts.get(segment) is consumer and consumer.handle and segment in reader.places \
                    and process is not None:
                self.pass_of(process, process.rig.acks(consumer, reader.places[segment], cumulative=True))

    def _has_read(self, reader: Reader, segment: str) -> None:
        """Check that a reader has got everything that a segment has."""
        process = self.owner_of(segment)
        partition = None if process is None else process.rig.owner.topics.by_name.get(names.parse(segment))
        for message in self.sent if partition is not None else ():
            is_there = any(name == segment and position[0] >= partition.ledgers[0].ledger_id
                           for name, position in message.copies)
            demand(message in reader.seen or not is_there, "a reader gets everything", f"{segment} {message}")

    def consume(self) -> None:
        """Let some consumers get messages, and acknowledge some."""
        consumers = [one for group in self.groups for one in group.consumers]
        for consumer in self.chance.sample(consumers, min(3, len(consumers))):
            if consumer in consumer.group.consumers:
                self._flow(consumer)
            if consumer in consumer.group.consumers and self.chance.random() < (0.3 if self.is_slow else 0.8):
                self._acknowledge(consumer)

    def give_back(self) -> None:
        """Let a queue consumer ask for messages again."""
        found = [one for queue in self.queues for one in queue.parts.values() if one.held]
        if found:
            consumer = self.chance.choice(found)
            copies = self.chance.sample(sorted(consumer.held), 1)
            for copy in copies:
                del consumer.held[copy]
            process = self.owner_of(consumer.segment)
            self.pass_of(process, process.rig.redeliver(consumer, *[position for _, position in copies]))

    def clear(self) -> None:
        """Clear a subscription's backlog in all segments, or in some if an owner ends meanwhile."""
        made = [group for group in self.groups if group.since is not None]
        if made and self.clearing is None:
            self.clearing = self.chance.choice(made)
        if self.clearing is not None:
            self._clear(self.clearing)

    def _clear(self, group: Group) -> None:
        group.cleared = len(self.sent)
        for segment in [one.topic for one in self.layout.segments]:
            copies = {copy for message in self.sent[:group.cleared] for copy in message.copies if copy[0] == segment}
            try:
                self.ask(Clear(names.parse(segment), subscription=group.name, asked_ms=self.now_ms))
            except Refusal as refusal:
                self.say("not cleared", group.name, refusal.message)
                return
            group.asked |= copies
            group.sure |= copies
            for consumer in group.consumers:
                consumer.held = {copy: message for copy, message in consumer.held.items() if copy not in copies}
        self.say("cleared", group.name)
        self.count("cleared")
        self.clearing = None

    def drop_connection(self) -> None:
        self._drop(self.chance.choice(self.connections))

    def _drop(self, connection: int) -> None:
        """End a connection; its stream consumers come back on another one, and get their segments again."""
        fresh = next(self.numbers)
        self.connections = [fresh if one == connection else one for one in self.connections]
        for producer in self.producers:
            producer.handles = {segment: value for segment, value in producer.handles.items() if value[2] != connection}
        self.connecting = {key: value for key, value in self.connecting.items() if value[2] != connection}
        for parts in self.all_parts:
            for segment in [segment for segment, one in parts.items() if one.connection == connection]:
                self._lose(parts.pop(segment))
        self.queues = [queue for queue in self.queues if queue.connection != connection]
        self.probed = {one for one in self.probed if one[1] != connection}
        for stream in [stream for stream in self.streams if stream.connection == connection]:
            stream.connection, stream.object_id, stream.told = fresh, next(self.numbers), None
            stream.is_registered = stream.is_known = False
        for process in list(self.processes.values()):
            self.pass_of(process, process.rig.happened(envelope.CONNECTION_GONE, connection=connection))

    # -- the end of the world

    def end(self) -> None:
        """End all faults and changes, and check that everything is delivered and nothing is left behind."""
        self.is_ending, self.is_moving = True, False
        while not self._everything_is_done():
            self.count("ends begun again")
        self.start_all()
        for process in self.processes.values():
            demand(process.rig.recovered == 0, "nothing is replayed after a clean stop", process.rig.recovered)

    def _everything_is_done(self) -> bool:
        """End everything, and stop all owners; return False if an earlier fault ended one of them meanwhile."""
        self.disk.fate = Fate()
        try:
            while len(self.processes) < self.owners:
                self.start_some()
            self.settle()
            self._finish_change()
            while self.clearing is not None:
                self._clear(self.clearing)
            if self.chance.random() < 0.5:      # else the clients that are there get everything
                for connection in list(self.connections):
                    self._drop(connection)
                self.streams, self.queues = [], []
                self.pass_of_all(FORGOTTEN_MS)
            elif self.has_silent_departures:
                self.pass_of_all(FORGOTTEN_MS)
            self._send_everything()
            for group in self.groups:
                while group.since is None and not self._make(group):
                    pass
                if not any(client.group is group for client in (*self.streams, *self.queues)):
                    self._comes(group)
            self._consume_all()
            scalable_model.ended(self.groups, self.sent)
            self._read_everything()
            self._sealed_segments_go()
            for process in list(self.processes.values()):
                self.stop_one(process)
        except Again:
            return False
        stored = set(self.admin.column("SELECT id FROM partitions"))
        folders = {int(path.name) for path in (self.disk.root / "partitions").iterdir()}
        demand(folders == stored or self.is_deletion_cut_short, "no file is left behind", folders ^ stored)
        return True

    def _finish_change(self) -> None:
        for _ in range(ROUNDS):
            if self.admin.scalable_topics.change_of(TOPIC) is None:
                return
            self._take_step(publishes=False)
            self.settle()
        raise Broken("a change of a layout is finished", str(self.admin.scalable_topics.change_of(TOPIC)))

    def _send_everything(self) -> None:
        for _ in range(ROUNDS):
            for producer in self.producers:
                producer.layout = None
                self._flush(producer)
            self._show_all_life()
            if not any(producer.pending for producer in self.producers):
                return
        raise Broken("every message is stored in the end", [str(one) for one in self.producers[0].pending])

    def _comes(self, group: Group) -> None:
        """Let a new consumer come."""
        if group.is_stream:
            self._register(group, self.connections[0])
        else:
            self.queues.append(Queue(group, self.connections[0]))

    def _consume_all(self) -> None:
        """Let consumers do as they are told, and acknowledge everything, until nothing comes any more."""
        last, still = None, 0
        while still < STILL_ROUNDS:
            for stream in self.streams:
                self._introduce(stream)
                self._follow(stream)
            for queue in self.queues:
                queue.layout = None
                self._attach(queue)
            consumers = [consumer for group in self.groups for consumer in group.consumers]
            for consumer in consumers:
                self._flow(consumer, MANY)
                self._acknowledge(consumer, is_all=True)
            self._show_all_life()
            self.pass_of_all(ROUND_MS)
            self.settle()
            now = [len(group.asked) for group in self.groups], sorted(consumer.segment for consumer in consumers)
            last, still = now, still + 1 if now == last else 0

    def _read_everything(self) -> None:
        """Check that readers get everything, also one that begins now."""
        self.readers.append(Reader(self.connections[0]))
        for reader in self.readers:
            reader.layout = self.layout
            self._read(reader)
            for segment in reader.layout.segments:
                self._has_read(reader, segment.topic)

    def _sealed_segments_go(self) -> None:
        """Check that sealed segments are deleted when all have acknowledged them."""
        self.now_ms += SEALED_MS
        while self.prune():
            self._finish_change()
        left = [segment.number for segment in self.layout.segments if not segment.is_active]
        demand(not left, "sealed segments are deleted", left)
        stored = {str(name) for name in self.admin.scalable_topics.stored_segments(TOPIC)}
        demand(stored <= {segment.topic for segment in self.layout.segments}, "sealed segments are deleted", stored)


class _Asked:
    """The owners as the admin process asks them."""

    def __init__(self, life: ScalableLife):
        self._life = life

    async def ask(self, question: TopicQuestion):
        return self._life.ask(question)


def _result(coroutine):
    """Return the result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it waits")


ACTIONS = {
    ScalableLife.publish: 25, ScalableLife.change_layout: 20, ScalableLife.prune: 3,
    ScalableLife.administration_dies: 1, ScalableLife.unload: 1, ScalableLife.subscribe: 1,
    ScalableLife.stream_comes: 5, ScalableLife.stream_goes: 2,
    ScalableLife.queue_comes: 6, ScalableLife.queue_follows: 8, ScalableLife.reader_reads: 3,
    ScalableLife.give_back: 2, ScalableLife.clear: 1, ScalableLife.time_passes: 5,
    ScalableLife.killed: 1.5, ScalableLife.stopped: 0.5, ScalableLife.drop_connection: 1.5,
}

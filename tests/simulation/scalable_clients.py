"""Clients of a scalable topic: producers, and consumers of three kinds, each with its own idea of the layout.

Every entry begins with its number, so that each delivery can be compared with what its client knows.  A client learns a
new layout late: a producer when its segment is sealed, a stream consumer when it is told its segments.
"""
import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from geminga.proto import envelope, names, sends
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.layouts import HASHES, Layout, of_partitions
from geminga.storage import format
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.runtime.routing import owner_of
from geminga.storage.topics.subscription import SubType

from ..storage.files import read_mapped
from ..storage.rig import Answers, T, entry_of, payload_of
from . import checks, scalable_model
from .model import Position, demand
from .owners import Owners, Process
from .scalable_model import Consumer, Group, Lineage, Message, number_of
from .world import NOWHERE

TOPIC = names.parse("topic://public/default/t")
KEYS = [f"k{number}" for number in range(12)]      # their hashes lie in all quarters
MANY = 1 << 20
INITIAL = 3                                        # initialSequenceId
# The program; its client, from initialSequenceId on; its client, from the last one on that the broker tells.
COUNTING = "program", "anew", "on"
BYTES_MAX = 3_000                                  # of the entries of a pass
SEALED = api.TopicTerminatedError, api.TopicNotFound
GONE = envelope.PRODUCER_GONE, envelope.PRODUCER_SEALED
NOT_NOW = api.ConsumerBusy, api.ConsumerAssignError, api.ServiceNotReady, *SEALED
INTRODUCTION = json.dumps({"address": "/h:1", "version": "v", "partial": False, "positions": False, "role": "",
                           "connected_ms": 0, "superuser": False, "replicator": False}).encode()


@dataclass(eq=False)
class Producer:
    name: str
    has_stamps: bool
    counting: str                            # who chooses sequence ids, one of COUNTING
    layout: Layout | None = None
    counted: dict[str, int] = field(default_factory=dict)      # by segment: the last sequence id that the client chose
    handles: dict[str, tuple[int, int, int]] = field(default_factory=dict)   # by segment: handle, id, connection
    pending: list[Message] = field(default_factory=list)                     # without a receipt


@dataclass(eq=False)
class Stream:
    """A stream consumer: its registration, and its consumers of the segments that it was told."""

    name: str
    group: Group
    connection: int
    object_id: int
    is_registered: bool = False
    is_known: bool = False                   # the owner of the topic's name knows it
    told: dict[str, list[api.IntRange]] | None = None      # {segment: its buckets if it is shared}
    parts: dict[str, Consumer] = field(default_factory=dict)


@dataclass(eq=False)
class Queue:
    """A queue consumer: a Shared consumer of each segment."""

    group: Group
    connection: int
    layout: Layout | None = None
    begins_early: bool = True
    parts: dict[str, Consumer] = field(default_factory=dict)


@dataclass(eq=False)
class Reader:
    """A checkpoint consumer, which reads on from where it was."""

    connection: int
    layout: Layout | None = None
    places: dict[str, Position] = field(default_factory=dict)      # of the last entry that it got, by segment
    parts: dict[str, Consumer] = field(default_factory=dict)
    seen: set[Message] = field(default_factory=set)


class ScalableClients(Owners):
    """A world of owners with one scalable topic and its clients."""

    def __init__(self, seed: int, folder: Path):
        super().__init__(seed, folder)
        pick = self.chance.choice
        self.options |= {"max_unacked_messages_per_consumer": 50_000, "batch_index_acknowledgement": True}
        self.first_segments = pick([1, 1, 1, 2, 3])
        # Partitions of the regular topic that is made scalable; None: the topic is scalable from the first.
        self.partitions = pick([None, None, 0, 1, 2, 3])
        self.asks_receipts = pick([0.05, 0.5])               # how often for acknowledgements
        self.admin: Catalogue | None = None
        self.lineage = Lineage()
        self.copies_max = 1 if self.options["deduplication"] else MANY
        self.sent: list[Message] = []
        self.producers = [
            Producer(f"p{number}", pick([True, True, False]), pick(COUNTING)) for number in range(2)]
        self.groups = [Group("stream", is_stream=True), Group("queue", is_stream=False)]
        self.streams: list[Stream] = []
        self.has_silent_departures = False       # stream consumers left while the owner waited for them to come back
        self.queues: list[Queue] = []
        self.readers = [Reader(0)]
        self.names = itertools.count()
        self.waiting: dict[tuple[int, int], tuple[Producer, str, list[Message]]] = {}      # SENDs, by connection and id
        self.connecting: dict[int, tuple[Producer, str, int]] = {}      # PRODUCERs without an answer, by their ids
        self.attaching: dict[int, Consumer] = {}             # SUBSCRIBEs without an answer, by the consumer's id
        self.receipts: dict[tuple[int, int, int], tuple[Group, set]] = {}      # acknowledgements that ask for one
        self.probed: set[tuple[Process, int]] = set()        # connections that are to show that they live

    # -- the world

    def index_of(self, topic: str) -> int:
        """Return the index of the owner that a segment, or the topic's name, belongs to."""
        return owner_of(topic, self.owners)

    @property
    def layout(self) -> Layout:
        """The layout in force; before the topic is scalable, the one that clients are told."""
        layout = self.admin.scalable_topics.layout(TOPIC)
        return of_partitions(TOPIC.regular, self.partitions) if layout is None else layout

    @property
    def all_parts(self) -> list[dict[str, Consumer]]:
        return [client.parts for client in (*self.streams, *self.queues, *self.readers)]

    def gone(self, process: Process) -> None:
        """Note that a process has ended: its clients have lost their producers, consumers and answers."""
        self._forget(lambda segment: self.index_of(segment) == process.index)
        self.receipts = {key: value for key, value in self.receipts.items() if key[0] != process.serial}
        self.probed = {one for one in self.probed if one[0] is not process}
        if self.index_of(str(TOPIC)) == process.index:
            self.streams = [stream for stream in self.streams if stream.is_registered]
            for stream in self.streams:
                stream.is_known = False

    def _forget(self, is_gone, *, keeps_waiting: bool = False) -> None:
        """Note that producers and consumers of some segments are gone.

        keeps_waiting: but not those whose requests wait for an answer.
        """
        for producer in self.producers:
            producer.handles = {segment: value for segment, value in producer.handles.items() if not is_gone(segment)}
        self.waiting = {key: value for key, value in self.waiting.items() if not is_gone(value[1])}
        if not keeps_waiting:
            self.connecting = {key: value for key, value in self.connecting.items() if not is_gone(value[1])}
        for parts in self.all_parts:
            for segment, consumer in list(parts.items()):
                if is_gone(segment) and not (keeps_waiting and consumer.object_id in self.attaching):
                    self._lose(parts.pop(segment))

    def _lose(self, consumer: Consumer) -> None:
        """Note that a consumer is gone: what it has goes to others."""
        self.attaching.pop(consumer.object_id, None)
        if consumer.group is not None and consumer in consumer.group.consumers:
            consumer.group.consumers.remove(consumer)
        consumer.held = {}

    def _has_faults(self) -> bool:
        return self.disk.faults != self.before

    def _is_ending(self, segment: str) -> bool:
        """Whether a segment is sealed or deleted, or about to be."""
        change, found = self.admin.scalable_topics.change_of(TOPIC), self.layout.numbered(number_of(segment))
        return found is None or not found.is_active or (change is not None and found.number in change.parents)

    # -- answers

    def answered(self, process: Process, answers: Answers) -> None:
        for connection, action, object_id, handle, command in answers.replies:
            if action == envelope.PRODUCER_READY and object_id in self.connecting:
                producer, segment, _ = self.connecting.pop(object_id)
                producer.handles[segment] = handle, object_id, connection
                told = command.producer_success.last_sequence_id
                producer.counted.setdefault(segment, told if producer.counting == "on" else INITIAL)
            elif action == envelope.CONSUMER_READY:
                self._attached(object_id, handle)
            elif action in GONE:
                for producer in self.producers:
                    producer.handles = {segment: value for segment, value in producer.handles.items()
                                        if value[1] != object_id}
            elif action == envelope.CONSUMER_GONE:
                for parts in self.all_parts:
                    for segment in [segment for segment, one in parts.items() if one.object_id == object_id]:
                        self._lose(parts.pop(segment))
            elif action == envelope.PROBE:
                self.probed.add((process, connection))
            if command is not None:
                self._told(process, connection, command)
        self._stored(process, answers)
        self._delivered(process, answers)
        with self.disk.aside():
            for partition in process.rig.partitions:
                checks.agrees_with_itself(partition)
            self._subscriptions_are_there(process)

    def _told(self, process: Process, connection: int, command: api.BaseCommand) -> None:
        if command.type == T.ERROR:
            self._refuse(command.error)
        elif command.type == T.ACK_RESPONSE:
            group, copies = self.receipts.pop((process.serial, connection, command.ackResponse.request_id), (None, ()))
            if group is not None and not command.ackResponse.HasField("error"):
                group.sure |= copies & group.asked
        elif command.type == T.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE:
            answer = command.scalableTopicSubscribeResponse
            for stream in self.streams:
                if stream.object_id == answer.request_id and not answer.HasField("error"):
                    stream.is_registered = True
                    self._assign(stream, answer.assignment)
        elif command.type == T.SCALABLE_TOPIC_ASSIGNMENT_UPDATE:
            update = command.scalableTopicAssignmentUpdate
            for stream in self.streams:
                if stream.object_id == update.consumer_id:
                    self._assign(stream, update.assignment)

    def _assign(self, stream: Stream, assignment: api.ScalableConsumerAssignment) -> None:
        stream.told = {one.segment_topic: list(one.bucket_ranges) for one in assignment.segments}
        self.say("assigned", stream.name, [(number_of(name), len(each)) for name, each in stream.told.items()])

    def _refuse(self, error: api.CommandError) -> None:
        """Note that a request was refused; those that make something use its id."""
        text = f"{api.ServerError.Name(error.error)}: {error.message}"
        if error.request_id in self.connecting:
            producer, segment, _ = self.connecting.pop(error.request_id)
            is_sealed = error.error in SEALED and self._is_ending(segment)
            is_early = error.error == api.ServiceNotReady and self.admin.scalable_topics.change_of(TOPIC) is not None
            demand(is_sealed or is_early or self._has_faults(), "nothing is refused without a cause",
                   f"{segment} {text}")
            producer.layout = None      # it looks at the layout again
        if (consumer := self.attaching.get(error.request_id)) is not None:
            for parts in self.all_parts:
                if parts.get(consumer.segment) is consumer:
                    del parts[consumer.segment]
            self._lose(consumer)
            demand(error.error in NOT_NOW or self._has_faults(), "nothing is refused without a cause", text)
            self.say("refused", consumer.segment, error.error)
            self.count("consumers refused")

    def _attached(self, object_id: int, handle: int) -> None:
        if (consumer := self.attaching.pop(object_id, None)) is not None:
            consumer.handle = handle
            if consumer.group is not None:
                consumer.group.consumers.append(consumer)

    def _stored(self, process: Process, answers: Answers) -> None:
        """Take receipts, and then refusals: a producer that is expelled has all receipts that it will get."""
        for _, connection, producer_id, sequence_id, position in answers.receipts:
            demand((connection, producer_id) in self.waiting, "nothing is answered twice", position)
            producer, segment, messages = self.waiting[connection, producer_id]
            [message] = [one for one in messages if one.numbers[segment] == sequence_id] or [None]
            demand(message is not None, "nothing is answered twice", sequence_id)
            self.say("receipt", message.number, number_of(segment), position)
            messages.remove(message)
            if position == (NOWHERE, NOWHERE):
                demand(message.attempts_as[sequence_id] > 1, "only what is sent again is a duplicate", message)
                self.count("duplicates")
            else:
                message.is_at((segment, position), self.copies_max)
            message.is_receipted = True
            producer.pending.remove(message)
            self.count("entries")
        for connection, action, object_id, _, command in answers.replies:
            if command is not None and command.type == T.SEND_ERROR:
                error = command.send_error
                _, segment, messages = self.waiting.get((connection, error.producer_id), (None, "", []))
                demand(not messages or self._has_faults() or self._is_ending(segment),
                       "nothing is refused without a cause", error.message)
                self.count("sends refused", len(messages))
                messages[:] = [one for one in messages if error.sequence_id not in (0, one.numbers[segment])]
            if action in GONE:
                self.waiting.pop((connection, object_id), None)
        left = [str(messages[0]) for _, segment, messages in self.waiting.values()
                if messages and self.owner_of(segment) is process]
        demand(not left, "every send is answered", left)
        self.waiting = {key: value for key, value in self.waiting.items() if value[2]}

    def _delivered(self, process: Process, answers: Answers) -> None:
        by_handle = {consumer.handle: (client, consumer) for client in (*self.streams, *self.queues, *self.readers)
                     for consumer in client.parts.values() if self.owner_of(consumer.segment) is process}
        for handle, partition_id, ledger_id, gift in answers.gifts:
            demand(handle in by_handle, "only who is there gets something", handle)
            client, consumer = by_handle[handle]
            first, last = gift[0][0], gift[-1][0]
            with self.disk.aside():
                found = read_mapped(format.partition_folder(self.disk.root, partition_id), ledger_id, first,
                                    last - first + 1)
            for entry_id, *_ in gift:
                data, position = found[entry_id - first], (ledger_id, entry_id)
                message = self.sent[int(payload_of(data).split()[0])]
                demand(message.datas.get(consumer.segment) == data, "entries keep their bytes", position)
                copy = consumer.segment, position
                message.is_at(copy, self.copies_max)
                self.say("given", handle, message.number, position)
                self.count("deliveries")
                if isinstance(client, Reader):
                    # The broker begins with the entry that the reader names, which its client then drops.
                    place = client.places.get(consumer.segment, (-1, -1))
                    demand(position > place or not consumer.held, "a reader goes on where it was",
                           f"{position} behind {place}")
                    client.places[consumer.segment] = position
                    client.seen.add(message)
                    consumer.held = {copy: message}
                else:
                    scalable_model.given(consumer, copy, message, self.sent, self.lineage)

    def _subscriptions_are_there(self, process: Process) -> None:
        """Check that every subscription is in every segment of the layout."""
        layout = self.layout
        self.lineage.learn(layout)
        segments = {segment.topic for segment in layout.segments}
        for partition in process.rig.partitions:
            if str(partition.name) in segments:
                for group in self.groups:
                    demand(group.since is None or (group.name, True) in partition.subscriptions,
                           "segments inherit all subscriptions", f"{group.name} {partition.name}")

    # -- producers

    def _message(self, producer: Producer, key: str) -> Message:
        number = len(self.sent)
        fields = {"partition_key": key}
        if producer.has_stamps:
            fields["entry_hash_min"] = fields["entry_hash_max"] = scalable_model.hash_of(key) & (HASHES - 1)
        fields |= {"payload": b"%d " % number + b"x" * self.chance.choice([1, 1, 200, 900]),
                   "batch": self.chance.choice([0, 0, 3]), "publish_time": self.now_ms}
        message = Message(number, key, producer.name, fields)
        self.sent.append(message)
        producer.pending.append(message)
        return message

    def publish(self) -> None:
        producer = self.chance.choice(self.producers)
        for _ in range(self.chance.choice([1, 1, 2, 4])):
            self._message(producer, self.chance.choice(KEYS))
        self._flush(producer)

    def _flush(self, producer: Producer) -> None:
        """Send what has no receipt, in its order, to the segments that have it as far as the producer knows."""
        if producer.layout is None or self.chance.random() < 0.2:
            producer.layout = self.layout
        by_segment: dict[str, list[Message]] = {}
        for message in producer.pending:
            by_segment.setdefault(self._goes_to(producer, message.key), []).append(message)
        for segment, messages in by_segment.items():
            if self._connected(producer, segment):
                process = self.owner_of(segment)
                self.pass_of(process, self._sends(producer, segment, messages))

    def _connected(self, producer: Producer, segment: str) -> bool:
        """Connect a producer to a segment, and return whether it is: one of a child waits for its sequence ids."""
        process, number = self.owner_of(segment), next(self.numbers)
        is_asked = any(asked[:2] == (producer, segment) for asked in self.connecting.values())
        if segment not in producer.handles and process is not None and not is_asked:
            connection = self.chance.choice(self.connections)
            self.connecting[number] = producer, segment, connection
            self.pass_of(process, process.rig.command(
                "producer", connection=connection, topic=segment, producer_id=number, request_id=number,
                producer_name=f"{producer.name}-seg-{number_of(segment)}",
                user_provided_producer_name=True))
        return segment in producer.handles

    def _sends(self, producer: Producer, segment: str, messages: list[Message]) -> tuple:
        """Return a section of SENDs."""
        rows, offset, sent = [], 0, []
        handle, object_id, connection = producer.handles[segment]
        for message in messages:
            if offset > BYTES_MAX:
                break
            data = self._data(producer, segment, message)
            command = api.CommandSend(producer_id=object_id, sequence_id=message.numbers[segment])
            row = np.array([sends.read_one(command, data)], sends.SEND_ROW)
            row["producer"], row["connection"], row["offset"] = handle, connection, offset
            rows.append(row)
            offset += len(data)
            message.attempts += 1
            message.attempts_as[message.numbers[segment]] += 1
            sent.append(message)
        self.waiting[connection, object_id] = producer, segment, list(sent)
        self.say("send", number_of(segment), [message.number for message in sent])
        return envelope.SENDS, np.concatenate(rows), b"".join(message.datas[segment] for message in sent)

    @staticmethod
    def _data(producer: Producer, segment: str, message: Message) -> bytes:
        """Return a message as it is sent to a segment; it is sent again there as it was."""
        if segment not in message.datas:
            if producer.counting == "program":
                message.numbers[segment] = message.number + 1
            else:
                message.numbers[segment] = producer.counted[segment] = producer.counted[segment] + 1
            message.datas[segment] = entry_of(
                sequence_id=message.numbers[segment], producer_name=f"{producer.name}-seg-{number_of(segment)}",
                **message.entry)
        return message.datas[segment]

    def _sends_to(self, process: Process) -> list[tuple]:
        """Return sections of SENDs of new messages, by producers that are connected to segments of an owner."""
        found = []
        for producer in self.producers if self.chance.random() < 0.5 else ():
            for segment in [one for one in producer.handles if self.owner_of(one) is process]:
                keys = [key for key in KEYS if self._goes_to(producer, key) == segment]
                if keys:
                    self._message(producer, self.chance.choice(keys))
                    its = [message for message in producer.pending if self._goes_to(producer, message.key) == segment]
                    found.append(self._sends(producer, segment, its))
        return found

    @staticmethod
    def _goes_to(producer: Producer, key: str) -> str:
        """Return the segment that takes a key as far as a producer knows, "" if it knows nothing."""
        hash_ = scalable_model.hash_of(key) >> 16
        return "" if producer.layout is None else scalable_model.segment_for(producer.layout, hash_).topic

    # -- consumers

    def _subscribe(self, parts: dict[str, Consumer], segment: str, group: Group | None, connection: int,
                   **fields) -> None:
        """Subscribe to a segment; the answer may come later."""
        process = self.owner_of(segment)
        if process is None:
            return
        number = next(self.numbers)
        consumer = Consumer(0, number, connection, segment, group, "keySharedMeta" in fields)
        parts[segment] = self.attaching[number] = consumer
        self.say("subscribe", consumer.object_id, number_of(segment), connection)
        name = f"reader{number}" if group is None else group.name
        self.pass_of(process, process.rig.command("subscribe", **{
            "connection": connection, "topic": segment, "subscription": name, "consumer_id": number,
            "request_id": number, "consumer_name": f"c{number}", "initialPosition": 1} | fields))

    def _close(self, parts: dict[str, Consumer], segment: str) -> None:
        consumer = parts.pop(segment)
        self._lose(consumer)
        if (process := self.owner_of(segment)) is not None:
            self.pass_of(process, process.rig.command(
                "close_consumer", connection=consumer.connection, consumer_id=consumer.object_id,
                request_id=next(self.numbers)))

    def _flow(self, consumer: Consumer, permits: int | None = None) -> None:
        process = self.owner_of(consumer.segment)
        if consumer.handle and process is not None:
            self.pass_of(process, process.rig.flow(consumer, permits or self.chance.choice([1, 3, 10, 1_000])))

    def _acknowledge(self, consumer: Consumer, *, is_all: bool = False) -> None:
        """Acknowledge what a consumer has, or some of it: a stream consumer everything up to a message."""
        process, group = self.owner_of(consumer.segment), consumer.group
        if process is None or not consumer.held:
            return
        copies = sorted(consumer.held)
        if not is_all:
            count = self.chance.randint(1, len(copies))
            copies = copies[:count] if group.is_stream else self.chance.sample(copies, count)
        for copy in copies:
            del consumer.held[copy]
        group.asked |= set(copies)
        request_id = next(self.numbers) if self.chance.random() < self.asks_receipts else 0
        if request_id:
            self.receipts[process.serial, consumer.connection, request_id] = group, set(copies)
        self.say("acknowledge", group.name, number_of(consumer.segment), [position for _, position in copies])
        positions = [position for _, position in copies]
        is_cumulative = group.is_stream and not consumer.is_shared
        self.pass_of(process, process.rig.acks(
            consumer, *(positions[-1:] if is_cumulative else positions), cumulative=is_cumulative,
            request_id=request_id))

    # -- stream consumers

    def _register(self, group: Group, connection: int) -> None:
        if self.owner_of(str(TOPIC)) is not None:
            self.streams.append(stream := Stream(f"s{next(self.names)}", group, connection, next(self.numbers)))
            self._introduce(stream)

    def _introduce(self, stream: Stream) -> None:
        """Tell the owner of the topic's name of a stream consumer, as its client does or later its worker."""
        process = self.owner_of(str(TOPIC))
        if process is None or stream.is_known:
            return
        stream.is_known = True
        request = {"request_id": stream.object_id, "topic": str(TOPIC), "subscription": stream.group.name,
                   "consumer_name": stream.name, "consumer_id": stream.object_id, "consumer_type": api.STREAM}
        if not stream.is_registered:
            section = process.rig.command("scalableTopicSubscribe", connection=stream.connection, **request)
            self.pass_of(process, section)
            return
        data = api.CommandScalableTopicSubscribe(**request).SerializeToString()
        self.pass_of(
            process, process.rig.happened(envelope.INTRODUCED, connection=stream.connection, data=INTRODUCTION),
            process.rig.happened(envelope.STREAM_RESTORED, connection=stream.connection, data=data))

    def _follow(self, stream: Stream, *, is_patient: bool = True) -> None:
        """Leave segments that the stream consumer has not any more, and subscribe to those that it was told."""
        steps = [self._leave, self._enter_new]
        for step in self.chance.sample(steps, 2 if self.is_ending else self.chance.choice([1, 2, 2])):
            step(stream, is_patient=is_patient)

    def _leave(self, stream: Stream, *, is_patient: bool) -> None:
        for segment, consumer in list(stream.parts.items()):
            told = (stream.told or {}).get(segment)
            if told is None or bool(told) != consumer.is_shared:
                if is_patient:
                    self._acknowledge(consumer, is_all=True)
                if stream.parts.get(segment) is consumer:
                    self._close(stream.parts, segment)

    def _enter_new(self, stream: Stream, *, is_patient: bool) -> None:
        for segment, buckets in (stream.told or {}).items():
            if segment not in stream.parts and stream in self.streams:
                how = {"subType": SubType.Exclusive} if not buckets else {
                    "subType": SubType.Key_Shared, "keySharedMeta": api.KeySharedMeta(
                        keySharedMode=api.STICKY, hashRanges=buckets, entryBucketDispatch=True)}
                self._subscribe(stream.parts, segment, stream.group, stream.connection, **how)
                if is_patient and segment in stream.parts:
                    self._flow(stream.parts[segment])

    def _unregister(self, stream: Stream) -> None:
        for segment in list(stream.parts):
            if segment in stream.parts:
                self._close(stream.parts, segment)
        if stream in self.streams:
            self.streams.remove(stream)
        self.has_silent_departures |= not stream.is_known
        if stream.is_known and (process := self.owner_of(str(TOPIC))) is not None:
            self.pass_of(process, process.rig.command(
                "scalableTopicUnsubscribe", connection=stream.connection, request_id=next(self.numbers),
                consumer_id=stream.object_id))

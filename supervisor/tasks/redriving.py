"""Dead letters back to their origin, for `geminga redrive`: once each, also if the command is killed and repeated.

A letter is acknowledged on a durable subscription of the dead letter topic once its copy has a receipt.  A kill between
both leaves letters whose copies are there.  To tell them, a target has a durable subscription of the redrive from
before the first copy on, which keeps what is published: each copy names its letter in a property, and a repeated
redrive reads them first.  Deduplication of the target is not needed.

    open a target   producer with a fixed name, which shuts out the connection of a killed redrive; subscription;
                    read copies from the subscription
    a round         read letters, send copies, wait for receipts, acknowledge letters, move the target's subscription
    end             acknowledge a target's last letter and remove its subscription, in one write

A target is a topic, or partition, and the subscription that lost the letters: the broker acknowledges their copies for
all other subscriptions when it stores them (storage/open_topics/addressed.py).  A broker of others does not, and gives
them to all, so a redrive there is to say that it is for all.

The last letter of each target, its anchor, stays unacknowledged until the next round, or the end.  So a repeated
redrive opens every target again, finds the copy of the anchor, and removes the subscription.

Letters of scalable topics go there in transactions instead (redrive_segments.py).
"""
import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.supervisor.configuration.target import Target as Broker
from geminga.supervisor.tasks import redrive_segments
from geminga.supervisor.tasks.redrive_segments import SegmentedTarget
from geminga.supervisor.tasks.redrive_topics import (
    REAL_SUBSCRIPTION,
    REAL_TOPIC,
    ROUND_MAX,
    Backlog,
    Ids,
    Position,
    T,
    Target,
    ack_of,
    acks,
    id_of,
    ids_of,
    subscription_in,
    versions_at,
)
from geminga.workers.messages.decoding import Decoder
from geminga.workers.messages.message import Message
from geminga.workers.messages.values import Values
from geminga.workers.pulsar_client import key_hashing
from geminga.workers.pulsar_client.client import BrokerConnection
from geminga.workers.pulsar_client.connection import ClientError
from geminga.workers.pulsar_client.entries import Entry
from geminga.workers.pulsar_client.producers import unless_busy

_REASONS = "exception", "reason", "error"      # parts of names of properties that say why a letter is dead
_ROUND_BYTES, _ROUND_FIRST = 16 << 20, 20
_SCALABLE = -1             # in the place of a number of partitions
_ROUND_MOST_S = 5          # for a round, as long as the one before took: a target may be throttled
_ROUND_S = 0.2             # with a rate, a round has as many letters as go in this time


@dataclass(frozen=True)
class Choice:
    """Letters to redrive, and where they go."""

    matches: Callable[[Message], bool]
    subscription: str = ""       # letters of this subscription only
    reason: str = ""             # letters with this text in a property of their reason
    to: str = ""                 # topic for all letters; "": their origin
    is_for_all: bool = False     # whether all subscriptions of the origin get a letter, not only the one that lost it
    limit: int | None = None
    needs_value: bool = False    # whether `matches` looks at decoded values

    def takes(self, letter: Message) -> bool:
        """Return whether a letter is chosen."""
        if self.subscription and subscription_of(letter) != self.subscription:
            return False
        if self.reason and not any(self.reason.lower() in text.lower() for text in reasons_of(letter)):
            return False
        return self.matches(letter)


class Destination(NamedTuple):
    """Where a copy goes."""

    topic: str
    subscription: str            # "": to all of the topic


@dataclass
class Redriven:
    """Progress of a redrive."""

    sent: Counter[str] = field(default_factory=Counter)      # by target
    already: int = 0             # copies of an earlier, interrupted redrive
    for_all: int = 0             # sent to all subscriptions
    skipped: int = 0             # not chosen
    failed: Counter[str] = field(default_factory=Counter)    # chosen, but not possible: by reason

    @property
    def count(self) -> int:
        """The number of letters that are done."""
        return self.sent.total() + self.already

    def note(self, place: Destination) -> None:
        """Count a copy that goes to a place."""
        self.sent[place.topic] += 1
        self.for_all += not place.subscription

    def add(self, other: "Redriven") -> None:
        """Add the progress of another topic."""
        self.sent += other.sent
        self.failed += other.failed
        self.already += other.already
        self.for_all += other.for_all
        self.skipped += other.skipped


def subscription_of(letter: Message) -> str:
    """Return the subscription for which a letter is dead, from its property or its topic's name; "": not known."""
    if known := letter.properties.get(REAL_SUBSCRIPTION):
        return known
    origin = letter.properties.get(REAL_TOPIC)
    return subscription_in(letter.topic, origin) if origin else ""


def reasons_of(letter: Message) -> list[str]:
    """Return the texts of properties that say why a letter is dead."""
    return [text for name, text in letter.properties.items() if any(part in name.lower() for part in _REASONS)]


class Redrive:
    """A redrive of one dead letter topic, or partition of one."""

    def __init__(self, broker: Broker, topic: str, subscription: str, choice: Choice, rate: float = 0):
        self._broker, self._topic, self._subscription = broker, topic, subscription
        self._choice, self._rate, self._decoder = choice, rate, Decoder()
        self._targets: dict[Destination, Target] = {}
        self._segmented: dict[Destination, SegmentedTarget] = {}
        self._tried: set[Destination] = set()           # where letters could go to, without sending any
        self._refused: dict[Destination, str] = {}      # where no copies can go to: why
        self._counts: dict[str, int | None] = {}      # partitions of topics; _SCALABLE: it has segments
        self._schemas: dict[int, api.Schema] = {}
        self._values = Values(self._schema)
        # Entry of which all messages but anchors are acknowledged, or can be: number of anchors in it.
        self._held: Counter[Position] = Counter()
        self.redriven = Redriven()
        self._began_s = 0.0          # when the first letter was sent
        self.is_stopped = False      # set by a signal: the round ends, nothing is left under way

    def __repr__(self) -> str:
        return f"<Redrive {self._topic} {self.redriven}>"

    @property
    def left_out(self) -> list[str]:
        return self._decoder.left_out

    async def run(self, told: Callable[[int], None] = lambda count: None) -> None:
        """Send the chosen dead letters back, and call `told` after each round with the number of letters sent in it.

        Raises ClientError, OSError.
        """
        reading = await self._broker.connect_to_topic(self._topic)
        self._schemas = await reading.schemas(self._topic)
        try:
            letters = await Backlog.open(reading, self._topic, self._subscription, api.CommandSubscribe.Earliest)
            size = _ROUND_FIRST
            while not self.is_stopped and self._wanted(1):
                if self._rate:
                    size = min(size, max(1, int(self._rate * _ROUND_S)))
                entries = await letters.round(self._wanted(size))
                if not entries:
                    break
                before, since = self.redriven.count, time.monotonic()
                await self._round(letters, entries)
                told(self.redriven.count - before)
                count, took_s = sum(entry.messages for entry in entries), max(0.001, time.monotonic() - since)
                average = sum(len(entry.data) for entry in entries) / count
                size = max(1, min(ROUND_MAX, size * 4, int(_ROUND_BYTES / average),
                                  int(count / took_s * _ROUND_MOST_S)))
                if self._rate and not self.is_stopped:
                    due_s = self._began_s + self.redriven.sent.total() / self._rate
                    await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            self._decoder.end()
            for target in self._targets.values():
                await self._finish(letters, target)
        finally:
            reading.close()
            opened: list[Target | SegmentedTarget] = [*self._targets.values(), *self._segmented.values()]
            for each in opened:
                each.close()

    async def look(self, *, has_subscription: bool) -> None:
        """Count what `run` would redrive, and change nothing.  Raises ClientError, OSError."""
        reading = await self._broker.connect_to_topic(self._topic)
        self._schemas = await reading.schemas(self._topic)
        try:
            if has_subscription:
                letters = await Backlog.open(reading, self._topic, self._subscription, api.CommandSubscribe.Earliest)
                while self._wanted(1) and (entries := await letters.round(ROUND_MAX)):
                    await self._look_at(entries)
                return
            consumer = await reading.subscribe(self._topic, makes_topic=False)
            async for entries in reading.entries(consumer, await reading.last(consumer)):
                await self._look_at(entries)
        finally:
            reading.close()

    async def _look_at(self, entries: list[Entry]) -> None:
        for letter in (letter for entry in entries for letter in self._decoder.messages(self._topic, entry)):
            if not self._wanted(1) or not await self._takes(letter):
                self.redriven.skipped += 1
            elif (place := await self._place_for(letter)) and await self._takes_letters(place):
                self.redriven.note(place)

    async def _takes_letters(self, place: Destination) -> bool:
        """Whether the broker would let a redrive send letters to a place: a producer is opened, which sends none.

        Letters' schemas that the place does not have are not tried, because trying one registers it.
        """
        if place in self._tried:
            return True
        try:
            if names.parse(place.topic).is_scalable:
                with closing(self._segmented_at(place)) as target:
                    await target.open(registers=False)
            else:
                with closing(await self._connect_to(place)) as producing:
                    await self._try(producing, place)
        except (ClientError, NoTarget) as error:
            self._refuse(place, error)
            return False
        self._tried.add(place)
        return True

    async def _try(self, producing: BrokerConnection, place: Destination) -> None:
        existing = (await producing.schemas(place.topic)).values() if self._schemas else ()
        newest = next(reversed(self._schemas.values()), None)
        is_there = newest is None or (newest.type, newest.schema_data) in {
            (other.type, other.schema_data) for other in existing}
        try:
            await producing.producer(place.topic, "", newest if is_there else None, only_for=place.subscription)
        except ClientError as error:
            if is_there or error.code != api.IncompatibleSchema:
                raise

    async def _takes(self, letter: Message) -> bool:
        if self._choice.needs_value:
            await self._values.decode([letter])
        return self._choice.takes(letter)

    async def _schema(self, _topic: str, version: bytes) -> api.Schema | None:
        return self._schemas.get(int.from_bytes(version)) if version else next(reversed(self._schemas.values()), None)

    def _wanted(self, size: int) -> int:
        """Return how many more letters to read at most, of `size`."""
        limit = self._choice.limit
        return size if limit is None else min(size, limit - self.redriven.count)

    async def _round(self, letters: Backlog, entries: list[Entry]) -> None:
        """Send copies of the chosen letters among some entries, and acknowledge these letters."""
        done: list[Ids] = []
        to_segments: list[Ids] = []
        seen: Counter[Position] = Counter()
        for entry in entries:
            for letter in self._decoder.messages(self._topic, entry):
                ids = ids_of(letter)
                seen[ids.positions[-1]] += 1
                if not self._wanted(1) or not await self._takes(letter):
                    self.redriven.skipped += 1
                    continue
                place = await self._place_for(letter)
                if place is not None and names.parse(place.topic).is_scalable:
                    if (segmented := await self._segmented_for(place)) is not None:
                        segmented.waiting.append((letter, entry.metadata.compression))
                        self.redriven.note(place)
                        to_segments.append(ids)
                    continue
                target = None if place is None else await self._target_of(letters, place)
                if target is None:
                    continue
                if id_of(letter) not in target.copies:
                    self._began_s = self._began_s or time.monotonic()
                    target.send(letter, entry.metadata.compression)
                    self.redriven.note(Destination(target.topic, target.subscription))
                    continue
                self.redriven.already += 1
                if target.anchor is None and not target.sent:
                    target.anchor = ids, None
                else:
                    done.append(ids)
        if to_segments:
            await self._commit(letters, to_segments, seen)
        await self._end_round(letters, done, seen)

    async def _commit(self, letters: Backlog, sent: list[Ids], seen: "Counter[Position]") -> None:
        """Send letters to scalable topics, and acknowledge them.  seen: messages in each entry of the round."""
        targets = [target for target in self._segmented.values() if target.waiting]
        self._began_s = self._began_s or time.monotonic()
        chosen = Counter(ids.positions[-1] for ids in sent)
        whole = {position for position, count in chosen.items() if count == seen[position]}
        try:
            await redrive_segments.commit(letters, self._topic, self._subscription, targets, acks(sent, whole))
        except ClientError as error:
            if error.code != api.TransactionConflict:
                raise
            for target in targets:
                count = len(target.waiting)
                self.redriven.sent -= Counter({target.topic: count})
                self.redriven.for_all -= 0 if target.subscription else count
                self.redriven.failed["letters of a round were acknowledged meanwhile: repeat the command"] += count
        for target in targets:
            target.waiting.clear()

    async def _end_round(self, letters: Backlog, done: list[Ids], seen: Counter[Position]) -> None:
        """Wait for receipts, and acknowledge letters.

        done: letters whose copies were there.  seen: messages in each entry of the round.
        """
        old: list[Ids] = []                            # anchors of earlier rounds that others take the place of
        ends: list[tuple[Target, Position]] = []       # where the targets' subscriptions move
        anchors = [target.anchor[0] for target in self._targets.values() if target.anchor and not target.sent]
        for target in self._targets.values():
            copies = await target.receipts()
            if not copies:
                continue
            before = target.anchor
            if before is not None:
                (done if before[0].positions[-1] in seen else old).append(before[0])
            done += target.sent[:-1]
            target.anchor = target.sent[-1], copies[-1]
            anchors.append(target.sent[-1])
            if len(copies) > 1:
                ends.append((target, copies[-2]))
            elif before is not None and before[1] is not None:
                ends.append((target, before[1]))
            target.sent = []
        chosen = Counter(ids.positions[-1] for ids in [*done, *anchors] if ids.positions[-1] in seen)
        whole = {position for position, count in chosen.items() if count == seen[position]}
        self._held += Counter(ids.positions[-1] for ids in anchors if ids.positions[-1] in whole)
        await letters.acknowledge(acks(done, whole - set(self._held)) | self._release(old))
        for target, last in ends:
            target.forget_copies(last)

    def _release(self, anchors: list[Ids]) -> dict[Position, list[int]]:
        """Return what acknowledges anchors: their whole entries, if nothing else of these is left."""
        positions = [ids.positions[-1] for ids in anchors]
        self._held.subtract(position for position in positions if position in self._held)
        return acks(anchors, {position for position in positions if self._held.get(position) == 0})

    async def _finish(self, letters: Backlog, target: Target) -> None:
        """Acknowledge a target's last letter, and remove the target's subscription."""
        unsubscribe = api.CommandUnsubscribe(
            consumer_id=target.backlog.consumer, request_id=letters.connection.next_id())
        ack = ack_of(letters, self._release([target.anchor[0]] if target.anchor else []))
        if target.backlog.connection is letters.connection:
            letters.connection.send_together([ack, unsubscribe])      # a kill leaves both or none
        else:
            letters.connection.send(ack)
            target.backlog.connection.send(unsubscribe)
        await target.backlog.connection.receive(T.SUCCESS)

    async def _target_of(self, letters: Backlog, place: Destination) -> Target | None:
        """Return the target at a place, None if no letters can go there."""
        if place not in self._targets:
            try:
                self._targets[place] = await self._open(letters, place)
            except (ClientError, NoTarget) as error:
                self._refuse(place, error)
        return self._targets.get(place)

    async def _segmented_for(self, place: Destination) -> SegmentedTarget | None:
        """Return the scalable topic at a place, None if no letters can go there."""
        if place not in self._segmented:
            target = self._segmented_at(place)
            try:
                await target.open()
                self._segmented[place] = target
            except ClientError as error:
                target.close()
                self._refuse(place, error)
        return self._segmented.get(place)

    def _segmented_at(self, place: Destination) -> SegmentedTarget:
        return SegmentedTarget(*place, self._schemas, lambda: self._broker.connect_to_topic(self._topic))

    def _refuse(self, place: Destination, error: "ClientError | NoTarget") -> None:
        """Note that no letters can go to a place, and count the first one.  Raises errors that say no such thing."""
        if isinstance(error, ClientError) and error.code is None:      # no refusal of the broker
            raise error
        self._refused[place] = str(error)
        self.redriven.failed[self._refused[place]] += 1

    async def _connect_to(self, place: Destination) -> BrokerConnection:
        """Connect to the broker of a place.  Raises ClientError, OSError, NoTarget."""
        producing = await self._broker.connect_to_topic(place.topic)
        if place.subscription and not producing.is_geminga:
            producing.close()
            raise NoTarget("this broker gives letters to all subscriptions of a topic: say --to-all")
        return producing

    async def _place_for(self, letter: Message) -> Destination | None:
        """Return the topic or partition for a letter, and its subscription there, None if there is none."""
        wanted = self._choice.to or letter.properties.get(REAL_TOPIC, "")
        try:
            if not wanted:
                raise NoTarget("no property REAL_TOPIC: name a topic with --to")
            topic = await self._topic_for(wanted, letter)
        except (NoTarget, Refusal) as error:
            self.redriven.failed[str(error)] += 1
            return None
        # Another topic than the origin is not where a subscription has lost the letter.
        place = Destination(topic, "" if self._choice.is_for_all or self._choice.to else subscription_of(letter))
        if place in self._refused:
            self.redriven.failed[self._refused[place]] += 1
            return None
        return place

    async def _topic_for(self, wanted: str, letter: Message) -> str:
        """Return the topic or partition for a letter: the partition it had, else the one of its key."""
        topic = names.parse(wanted)
        if str(topic) == self._topic or str(topic.base) == str(names.parse(self._topic).base):
            raise NoTarget(f"{topic} is the topic that is redriven")
        if str(topic.base) not in self._counts:
            with closing(await self._broker.connect()) as connection:
                self._counts[str(topic.base)] = await _partitions(connection, topic.base)
        count = self._counts[str(topic.base)]
        if count == _SCALABLE:
            return str(topic.base.scalable)
        if count is None or topic.partition >= (count or 0):
            raise NoTarget(f"there is no topic {topic}")
        if topic.partition >= 0 or not count:
            return str(topic)
        chosen = letter.entry_id + max(0, letter.batch_index) if letter.key is None else key_hashing.java(letter.key)
        return str(topic.partition_name(chosen % count))

    def _name_for(self, subscription: str) -> str:
        """Return the name of producers and subscriptions at targets, the same in each run."""
        about = f"{self._topic} {self._subscription}" + (f" {subscription}" if subscription else "")
        return names.REDRIVES + blake2b(about.encode(), digest_size=8).hexdigest()

    async def _open(self, letters: Backlog, place: Destination) -> Target:
        """Open a target, and read what an interrupted redrive has sent to it.  Raises ClientError, OSError."""
        (topic, subscription), name = place, self._name_for(place.subscription)
        producing = await self._connect_to(place)
        try:
            versions, newest = await versions_at(producing, topic, self._schemas)
            opened: list[api.CommandProducerSuccess] = []

            async def open_producer() -> None:
                opened.append(await producing.producer(topic, name, newest, only_for=subscription))
            await unless_busy(open_producer)
            is_same = producing.place == letters.connection.place
            reading = letters.connection if is_same else await self._broker.connect_to_topic(topic)
            backlog = await Backlog.open(reading, topic, name, api.CommandSubscribe.Latest)
            target = Target(
                topic, subscription, name, producing, backlog, opened[0].last_sequence_id + 1, versions)
            await target.read_copies()
            return target
        except BaseException:
            producing.close()
            raise


async def _partitions(connection: BrokerConnection, topic: names.TopicName) -> int | None:
    """Return a topic's number of partitions, _SCALABLE if it has segments, None if it does not exist."""
    if await redrive_segments.is_scalable(connection, topic):
        return _SCALABLE
    return None if topic.is_scalable else await connection.partitions(str(topic))


class NoTarget(Exception):
    """An error: letters cannot go to a topic."""

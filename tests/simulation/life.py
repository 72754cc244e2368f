"""What happens in a world: each step one of ACTIONS."""
import contextlib
from pathlib import Path

import numpy as np

from geminga.proto import envelope, sends
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.cursors.cursor import SKIPPED
from geminga.storage.topics.subscription import SubType

from ..storage.rig import Answers, T, entry_of
from . import checks
from .disk import Fate
from .model import Consumer, Entry, Position, Producer, State, Subscription, Topic, demand
from .world import Again, World

KEYS = ("k", "l", "m", None)
MANY = 1 << 20
CONSUMERS_MAX = 3
KINDS = [*SubType.values(), SubType.Failover, SubType.Key_Shared, SubType.Key_Shared]


class Life(World):
    def __init__(self, seed: int, folder: Path):
        super().__init__(seed, folder)
        # Nothing is drawn for it: the other worlds stay what they are.
        self.is_by_priority = seed % 10 == 2
        self.options["message_priority"] = self.is_by_priority

    def step(self) -> None:
        self.deaf = set()
        if self.disk.fate.is_full and self.chance.random() < 0.3:
            self.disk.fate.room = None
        if self.disk.fate.files_left is not None and self.chance.random() < 0.5:
            self.disk.fate.files_left = None
        if self.disk.fate == Fate():
            self._draw_fate(0.12)
        if self.chance.random() < 0.3:
            self.guard(lambda: [self.turns.some() for _ in range(self.chance.randint(1, 20))])
        [action] = self.chance.choices(list(ACTIONS), list(ACTIONS.values()))
        self.say(action.__name__)
        action(self)

    def end(self) -> None:
        """End all faults, and check that everything is delivered, acknowledged and freed, and nothing is left to
        replay.
        """
        self.is_ending = True
        while not self._everything_is_done():
            self.is_dying = False
        for topic in self.topics:
            partition = checks.partition_of(self.rig, topic)
            if partition is not None:
                with self.disk.aside():
                    checks.entries_are_there(topic, partition, self.disk.root)
                    checks.stored_once(topic)
                    if any(one.is_durable for one in topic.subscriptions.values()) and not partition.is_terminated:
                        checks.space_is_given_back(partition, has_failed="failed sync" in self.disk.faults)
        with contextlib.suppress(Again):
            self.stop()

    def _everything_is_done(self) -> bool:
        """Deliver and acknowledge everything; return False if an earlier fault ended the process meanwhile."""
        self.disk.fate, self.deaf = Fate(), set()
        try:
            for topic in self.topics:
                self.know(topic)
                self._drop_everybody(topic)
            for topic in self.topics:
                self._drain(topic)
        except Again:
            return False
        return True

    def _drop_everybody(self, topic: Topic) -> None:
        for connection in sorted({one.connection for subscription in topic.subscriptions.values()
                                  for one in subscription.consumers}
                                 | {producer.connection for producer in topic.producers if producer.handle}):
            self._drop(connection)

    def _drain(self, topic: Topic) -> None:
        for subscription in list(topic.subscriptions.values()):
            while (consumer := self._join(subscription)) is None:
                pass
            for _ in range(1_000):
                consumer.permits += MANY
                self.run(self.rig.flow(consumer, MANY), after_ms=10_000)
                waiting = [position for position in topic.log if subscription.unacknowledged(position)]
                if not waiting:
                    break
                mine = [position for position in waiting if position in subscription.out or not subscription.is_spread]
                self._acknowledge(subscription, consumer, mine[:20], is_asked=True)
            demand(not waiting, "everything is delivered in the end", f"{subscription.name} {waiting}")
        if topic.is_terminated == {False}:
            for after_ms in 0, 5 * 3600_000:      # old enough for a new ledger
                self.run(after_ms=after_ms)
                producer = self._producer(topic)
                self._send([(producer, self._entry(producer))])
                for subscription in list(topic.subscriptions.values()):
                    waiting = [position for position in topic.log if subscription.unacknowledged(position)]
                    self._acknowledge(subscription, subscription.consumers[0], waiting, is_asked=True)
            self.run()

    # -- who there is

    def _topic(self) -> Topic | None:
        topic = self.chance.choice(self.topics)
        return topic if self.know(topic) else None

    def _some_consumer(self) -> Consumer | None:
        found = [consumer for topic in self.topics for subscription in topic.subscriptions.values()
                 for consumer in subscription.consumers]
        return self.chance.choice(found) if found else None

    def _some_subscription(self) -> Subscription | None:
        """Return a random durable subscription."""
        topic = self._topic()
        found = [one for one in topic.subscriptions.values() if one.is_durable] if topic else []
        return self.chance.choice(found) if found else None

    def _producer(self, topic: Topic) -> Producer | None:
        """Return a connected producer, which has sent its unconfirmed messages again."""
        connected = [producer for producer in topic.producers if producer.handle]
        if connected and self.chance.random() < 0.9:
            return self.chance.choice(connected)
        gone = [producer for producer in topic.producers if not producer.handle]
        if gone:
            producer = self.chance.choice(gone)
        elif len(connected) >= 3:
            return self.chance.choice(connected)
        else:
            producer = Producer(f"p{next(self.numbers)}", topic, 0)
        producer.connection, producer.object_id = self.chance.choice(self.connections), next(self.numbers)
        section = self.rig.command("producer", connection=producer.connection, topic=topic.name,
                                   producer_id=producer.object_id,
                                   request_id=producer.object_id, producer_name=producer.name,
                                   user_provided_producer_name=True)
        if producer not in topic.producers:
            topic.producers.append(producer)
        answers = self._ask(section, envelope.PRODUCER_READY, producer)
        if answers is None or not producer.handle:
            return None
        if producer.unconfirmed:
            self.count("resends", len(producer.unconfirmed))
            for some in self._split(list(producer.unconfirmed)):
                if producer.handle and producer.topic.is_known:
                    self._send([(producer, entry) for entry in some], is_again=True)
        return producer if producer.handle else None

    def _ask(self, section, action: int, asking: Producer | Consumer) -> Answers | None:
        """Run a pass that makes a producer or consumer and learns its handle; check the cause of a refusal."""
        found = []

        def take(answers: Answers) -> None:
            found.extend(handle for _, what, object_id, handle, _ in answers.replies if what == action
                         and object_id == asking.object_id)
            if found:
                asking.handle = found[0]
                if isinstance(asking, Consumer):
                    asking.subscription.join(asking)

        answers = self.run(section, first=take)
        if answers is not None and not found:
            why = [command.error.message for command in answers.commands(T.ERROR)]
            demand(self.disk.faults != self.before, "nothing is refused without a cause", why)
            self.count("requests refused")
        return answers

    def _join(self, subscription: Subscription) -> Consumer | None:
        connection = self.chance.choice(self.connections)
        consumer = Consumer(f"{self.chance.choice('xyz')}{next(self.numbers)}", subscription, connection, 0,
                            next(self.numbers))
        section = self.rig.command(
            "subscribe", connection=connection, topic=subscription.topic.name, subscription=subscription.name,
            subType=subscription.kind,
            consumer_id=consumer.object_id, request_id=consumer.object_id, consumer_name=consumer.name,
            durable=subscription.is_durable,
            initialPosition=self._initial, **self._asking(subscription))
        answers = self._ask(section, envelope.CONSUMER_READY, consumer)
        return consumer if answers is not None and consumer.handle else None

    _initial = 1

    def _asking(self, subscription: Subscription) -> dict:
        """Return more fields of the SUBSCRIBEs of a subscription."""
        return {}

    def another_consumer(self) -> None:
        topic = self._topic()
        if topic is None:
            return
        found = [one for one in topic.subscriptions.values()
                 if len(one.consumers) < (1 if one.kind == SubType.Exclusive else CONSUMERS_MAX) and one.is_durable]
        if not found or (len(topic.subscriptions) < 4 and self.chance.random() < 0.3):
            if len(topic.subscriptions) >= 5:
                return
            return self._new_subscription(topic)
        subscription = self.chance.choice(found)
        if not subscription.consumers:
            subscription.kind = self.chance.choice([subscription.kind, *KINDS])
        self._grant(self._join(subscription))

    def _new_subscription(self, topic: Topic) -> None:
        is_durable = self.chance.random() < 0.85
        kind = self.chance.choice(KINDS) if is_durable else SubType.Exclusive
        subscription = Subscription(f"{'s' if is_durable else 'reader'}{next(self.numbers)}", topic, kind, is_durable)
        self._initial = self.chance.choice([0, 1, 1])
        subscription.state = subscription.begin((1 << 62, 0) if not self._initial else (topic.first_ledger, 0))
        if is_durable:
            self.touched[subscription] = None, True
        subscription.candidates = []
        topic.subscriptions[subscription.name, is_durable] = subscription
        self.making = subscription
        consumer = self._join(subscription)
        self.making = None
        if consumer is None and topic.is_known:      # refused, or the process is another one
            partition = checks.partition_of(self.rig, topic)
            if partition is None or (subscription.name, is_durable) not in partition.subscriptions:
                topic.subscriptions.pop((subscription.name, is_durable), None)
        self._initial = 1
        self._grant(consumer)

    def _grant(self, consumer: Consumer | None) -> None:
        permits = self.chance.choice([0, 1, 3, 10, 1_000])      # slow ones, and fast ones
        if consumer is not None and permits:
            consumer.permits += permits
            self.run(self.rig.flow(consumer, permits))

    def another_producer(self) -> None:
        topic = self._topic()
        if topic is not None and topic.is_terminated == {False}:
            self._producer(topic)

    # -- what they do

    def _entry(self, producer: Producer, size: int | None = None) -> Entry:
        chance, number = self.chance, next(self.numbers)
        batch = chance.choice([0, 0, 0, 3, 70])
        fields = {}
        if (key := chance.choice(KEYS)) is not None:
            fields["partition_key"] = key
        deliver_at = 0
        if chance.random() < 0.1:
            deliver_at = fields["deliver_at_time"] = self.now_ms + chance.choice([1, 50, 2_000])
        priority = number * 7 % 13 if self.is_by_priority else 10      # above 9 it has none, and counts as 4
        if priority < 10:
            fields["properties"] = [{"key": "geminga.priority", "value": str(priority)}]
        payload = b"%d " % number + bytes([120]) * (chance.choice([0, 10, 300, 2_000]) if size is None else size)
        data = entry_of(payload, batch=batch, sequence_id=producer.next_sequence, publish_time=self.now_ms, **fields)
        return Entry(data, batch or 1, key, deliver_at, producer.name, producer.next_sequence,
                     priority=priority if priority < 10 else 4)

    def _entries(self, producer: Producer) -> list[Entry]:
        """Return a new message as one entry, or as chunks."""
        if self.chance.random() < 0.9:
            found = [self._entry(producer)]
            producer.next_sequence += found[0].messages
            return found
        number, chunks = next(self.numbers), self.chance.randint(2, 3)
        found = [Entry(entry_of(b"%d chunk %d" % (number, chunk), sequence_id=producer.next_sequence,
                                publish_time=self.now_ms,
                                uuid=str(number), chunk_id=chunk, num_chunks_from_msg=chunks, total_chunk_msg_size=30),
                       producer=producer.name, sequence_id=producer.next_sequence, chunk=chunk, is_chunk=True)
                 for chunk in range(chunks)]
        producer.next_sequence += 1
        return found

    def _sending(self, sent: list[tuple[Producer, Entry]], *, is_again: bool = False):
        """Return a section of SENDs."""
        rows, offset = [], 0
        for producer, entry in sent:
            highest = entry.sequence_id + entry.messages - 1 if entry.messages > 1 else 0
            command = api.CommandSend(producer_id=producer.object_id, sequence_id=entry.sequence_id,
                                      is_chunk=entry.is_chunk)
            if highest:
                command.highest_sequence_id = highest
            row = np.array([sends.read_one(command, entry.data)], sends.SEND_ROW)
            row["producer"], row["connection"], row["offset"] = producer.handle, producer.connection, offset
            rows.append(row)
            offset += len(entry.data)
            if producer.topic.deduplicates and not is_again:
                producer.unconfirmed.append(entry)
        self.sending = list(sent)
        self.say("send", [(producer.name, entry.sequence_id, entry.messages, entry.chunk) for producer, entry in sent])
        return envelope.SENDS, np.concatenate(rows), b"".join(entry.data for _, entry in sent)

    @property
    def _pass_bytes_max(self) -> int:
        """Return how many bytes of entries one pass may have, so that its record fits into a segment of the journal."""
        return min(9_000, self.options["journal_segment_bytes"] // 2)

    def _split(self, entries: list[Entry]) -> list[list[Entry]]:
        """Distribute entries over as many passes as their size needs."""
        passes, size = [[]], 0
        for entry in entries:
            size += len(entry.data)
            if size > self._pass_bytes_max:
                passes.append([])
                size = len(entry.data)
            passes[-1].append(entry)
        return passes

    def _send(self, sent: list[tuple[Producer, Entry]], *, is_again: bool = False) -> Answers | None:
        for producer, entry in sent:
            producer.next_sequence = max(producer.next_sequence, entry.sequence_id + entry.messages)
        answers = self.run(self._sending(sent, is_again=is_again))
        self._drop_the_deaf()
        return answers

    def _drop_the_deaf(self) -> None:
        deaf, self.deaf = self.deaf, set()
        for connection in sorted(deaf & set(self.connections)):
            self._drop(connection)

    def _change(self, subscription: Subscription, *, is_anew: bool = False) -> State:
        """Return the state of a subscription that this pass is going to change."""
        if subscription not in self.touched:
            self.touched[subscription] = (
                (subscription.state.copy(), is_anew) if subscription.is_durable else (None, True)
            )
        return subscription.state

    def a_pass(self) -> None:
        """Run a pass with a random selection of what clients do."""
        sections, chance = [], self.chance
        producers = []
        for _ in range(chance.choice([0, 1, 1, 2])):
            topic = self._topic()
            if topic is not None and topic.is_terminated == {False} and (producer := self._producer(topic)) is not None:
                producers.append(producer)
        producers = [producer for producer in producers if producer.handle and producer.topic.is_known]
        requests = {}
        if producers:
            sent = []
            for _ in range(chance.choice([1, 2, 3, 8])):
                producer = chance.choice(producers)
                sent += [(producer, entry) for entry in self._entries(producer)]
            if sum(len(entry.data) for _, entry in sent) < self._pass_bytes_max:
                sections.append(self._sending(sent))
            if chance.random() < 0.15:
                self.deaf = {chance.choice(producers).connection}
        for _ in range(chance.choice([0, 1, 2, 3])):
            consumer = self._some_consumer()
            if consumer is not None and consumer.subscription.topic.is_known:
                sections += self._acks(consumer, requests)
        if chance.random() < 0.5 and (consumer := self._some_consumer()) is not None:
            permits = chance.choice([1, 2, 5, 100])
            consumer.permits += permits
            sections.append(self.rig.flow(consumer, permits))
        if (
            chance.random() < 0.2
            and (consumer := self._some_consumer()) is not None
            and consumer.subscription.topic.is_known
        ):
            sections.append(self._giving_back(consumer))
            self.is_more = True
        answers = self.run(*sections, after_ms=chance.choice([0, 0, 0, 1, 10, 1_000]))
        if answers is not None:
            told = {(command.ackResponse.consumer_id, command.ackResponse.request_id)
                    for command in answers.commands(T.ACK_RESPONSE)}
            demand(told == set(requests), "every acknowledgement that asks is answered", f"{told} {requests}")
        self._drop_the_deaf()

    def _positions(self, subscription: Subscription, consumer: Consumer) -> list[Position]:
        """Return positions that the consumer holds, sometimes others of its topic, and sometimes ones that do not
        exist.
        """
        log, chance = subscription.topic.log, self.chance
        mine = (
            [position for position, holder in subscription.out.items() if holder is consumer]
            if subscription.is_spread
            else [
                position for position in log if position <= subscription.read and subscription.unacknowledged(position)
            ]
        )
        if not mine or chance.random() < 0.2:
            mine = list(log)[-12:]
        found = chance.sample(mine, min(len(mine), chance.choice([1, 1, 2, 5, 20])))
        return [*found, *chance.choice([[]] * 12 + [[(99_999, 0)], [(1, 1 << 40)]])]

    def _acks(self, consumer: Consumer, requests: dict) -> list:
        subscription, chance = consumer.subscription, self.chance
        positions = self._positions(subscription, consumer)
        known = [position for position in positions if position in subscription.topic.log]
        request_id = next(self.numbers) if chance.random() < 0.4 else 0
        is_cumulative = chance.random() < 0.25
        batches = [position for position in known if subscription.topic.log[position].messages > 1]
        if not positions:
            return []
        if request_id:
            requests[consumer.object_id, request_id] = True
        self._change(subscription)
        if batches and chance.random() < 0.5:
            position, left = chance.choice(batches), chance.getrandbits(71) | chance.getrandbits(71)
            left, told = self._ack_set(subscription, position, left)
            if not (is_cumulative and subscription.is_spread):
                if is_cumulative:
                    subscription.acknowledge([other for other in subscription.topic.log if other < position])
                subscription.acknowledge([position], left)
            words = told & (1 << 64) - 1, told >> 64
            return [self.rig.ack_part(consumer, position, *words, cumulative=is_cumulative, request_id=request_id)]
        if not is_cumulative:
            subscription.acknowledge(known)
        elif known and not subscription.is_spread:
            there = [position for position in known if position[0] >= subscription.topic.first_ledger]
            if there:
                subscription.acknowledge(subscription.up_to(max(there)))
        return [self.rig.acks(consumer, *positions, cumulative=is_cumulative, request_id=request_id)]

    def _ack_set(self, subscription: Subscription, position: Position, left: int) -> tuple[int, int]:
        """Return (bits of a batch's messages that are left, the bits that a client says)."""
        return left, left

    def _acknowledge(
        self, subscription: Subscription, consumer: Consumer, positions: list[Position], *, is_asked: bool
    ) -> None:
        if positions:
            self._change(subscription)
            subscription.acknowledge(positions)
            self.run(self.rig.acks(consumer, *positions, request_id=int(is_asked)))

    def _giving_back(self, consumer: Consumer):
        subscription = consumer.subscription
        is_all = self.chance.random() < 0.3
        positions = [] if is_all else self._positions(subscription, consumer)
        self._change(subscription)
        if is_all or any(ledger_id in self._ledgers(subscription.topic) for ledger_id, _ in positions):
            subscription.give_back(consumer, None if is_all else set(positions))
            self.count("given back")
        return self.rig.redeliver(consumer, *positions)

    def _ledgers(self, topic: Topic) -> set[int]:
        partition = checks.partition_of(self.rig, topic)
        return {ledger.ledger_id for ledger in partition.ledgers} if partition else set()

    def leave(self) -> None:
        consumer = self._some_consumer()
        if consumer is not None:
            section = self.rig.command("close_consumer", connection=consumer.connection, consumer_id=consumer.object_id,
                                       request_id=1)
            self._gone(consumer)
            self.run(section)

    def _gone(self, consumer: Consumer) -> None:
        subscription = consumer.subscription
        subscription.leave(consumer)
        if not subscription.is_durable and not subscription.consumers:
            subscription.topic.subscriptions.pop((subscription.name, False), None)

    def drop_connection(self) -> None:
        if self.connections:
            self._drop(self.chance.choice(self.connections))

    def _drop(self, connection: int) -> None:
        self.say("drop", connection)
        for topic in self.topics:
            for subscription in list(topic.subscriptions.values()):
                for consumer in [one for one in subscription.consumers if one.connection == connection]:
                    self._gone(consumer)
            for producer in topic.producers:
                if producer.connection == connection:
                    producer.handle = 0
            topic.producers = [producer for producer in topic.producers if producer.handle or topic.deduplicates]
        self.connections = [next(self.numbers) if one == connection else one for one in self.connections]
        self.count("dropped connections")
        self.run(self.rig.happened(envelope.CONNECTION_GONE, connection=connection))

    def close_producer(self) -> None:
        found = [producer for topic in self.topics for producer in topic.producers if producer.handle]
        if found:
            producer = self.chance.choice(found)
            producer.handle = 0
            if not producer.topic.deduplicates:
                producer.topic.producers.remove(producer)
            self.run(self.rig.command("close_producer", connection=producer.connection, producer_id=producer.object_id,
                                      request_id=1))

    def fill_segments(self) -> None:
        """Publish large entries, so that segments of the journal are filled, checkpointed and reused."""
        topic = self._topic()
        for _ in range(self.chance.randint(1, 4)):
            if topic is None or not topic.is_known or topic.is_terminated != {False} \
                    or (producer := self._producer(topic)) is None:
                return
            entry = self._entry(producer, size=self._pass_bytes_max // 2)
            self._send([(producer, entry)])
            if self.chance.random() < 0.15:
                self.disk.fate = Fate(power_fails=True)
                return self.restart()
            self._acknowledge_some()

    def _acknowledge_some(self) -> None:
        """Acknowledge without asking for an answer, so that no sync is needed."""
        consumer = self._some_consumer()
        if consumer is not None and consumer.subscription.topic.is_known:
            positions = [position for position in self._positions(consumer.subscription, consumer)
                         if position in consumer.subscription.topic.log]
            self._acknowledge(consumer.subscription, consumer, positions, is_asked=False)

    # -- what moves subscriptions

    def seek(self) -> None:
        """Move a subscription, by a consumer's SEEK or by administration."""
        subscription = self._some_subscription()
        if subscription is None:
            return
        topic, chance = subscription.topic, self.chance
        there = [position for position in topic.log if position[0] >= topic.first_ledger]
        if not there or topic.first_ledger < 0:
            return
        to = chance.choice([*there[-10:], there[0]])
        unless_refused = self._unless_refused(subscription)
        self.touched[subscription] = subscription.state.copy(), True
        section = self.rig.question("reset", topic.name, subscription=subscription.name, position=to, behind=False)
        if subscription.consumers and chance.random() < 0.6:
            consumer = chance.choice(subscription.consumers)
            section = self.rig.command("seek", connection=consumer.connection, consumer_id=consumer.object_id,
                                       request_id=1, message_id=api.MessageIdData(ledgerId=to[0], entryId=to[1]))
        subscription.vacate()
        subscription.state = subscription.begin(to)
        self.run(section, first=unless_refused)

    def _unless_refused(self, subscription: Subscription):
        """Return a check for `run`: the subscription is unchanged if the request is refused for want of descriptors."""
        now = vars(subscription) | {"state": subscription.state.copy()}

        def look(answers) -> None:
            if any("refused" in answer for answer in answers.answered) or answers.commands(T.ERROR):
                demand(self.disk.faults != self.before, "nothing is refused without a cause", answers.answered)
                vars(subscription).update(now)

        return look

    def skip(self) -> None:
        subscription = self._some_subscription()
        if subscription is None:
            return
        topic = subscription.topic
        waiting = [position for position in topic.log if subscription.unacknowledged(position)]
        unless_refused = self._unless_refused(subscription)
        self._change(subscription)
        if self.chance.random() < 0.4:
            section = self.rig.question("clear", topic.name, subscription=subscription.name)
            skipped = waiting
        else:
            entries = self.chance.randint(1, 5)
            section = self.rig.question("skip", topic.name, subscription=subscription.name, entries=entries)
            skipped = waiting[:entries]
        subscription.acknowledge(skipped, reason=SKIPPED)
        self.run(section, first=unless_refused)

    def unsubscribe(self) -> None:
        subscription = self._some_subscription()
        if subscription is None or len(subscription.consumers) != 1:
            return
        [consumer] = subscription.consumers
        self.touched[subscription] = subscription.state, True
        subscription.vacate()
        subscription.state = None
        del subscription.topic.subscriptions[subscription.name, True]
        self.leaving = subscription
        self.run(self.rig.command("unsubscribe", connection=consumer.connection, consumer_id=consumer.object_id,
                                  request_id=1))

    def unload(self) -> None:
        topic = self._topic()
        if topic is None or checks.partition_of(self.rig, topic) is None:
            return
        self._vacate(topic)
        self.run(self.rig.question("unload", topic.name))

    def terminate(self) -> None:
        topic = self._topic()
        if topic is None or checks.partition_of(self.rig, topic) is None:
            return
        for producer in topic.producers:
            producer.handle = 0
        topic.is_terminated = {*topic.is_terminated, True}
        if self.run(self.rig.question("terminate", topic.name)) is not None:
            topic.is_terminated = {True}

    # -- time, and the process

    def time_passes(self) -> None:
        self.run(after_ms=self.chance.choice([5, 20, 100, 1_000, 60_000, 5 * 3600_000]))

    def killed(self) -> None:
        self.restart()

    def stopped(self) -> None:
        self.stop()


ACTIONS = {
    Life.a_pass: 46, Life.fill_segments: 5, Life.another_consumer: 12, Life.another_producer: 3, Life.leave: 3,
    Life.drop_connection: 3, Life.close_producer: 1, Life.seek: 2, Life.skip: 2, Life.unsubscribe: 0.7, Life.unload: 1,
    Life.terminate: 0.2, Life.time_passes: 5, Life.killed: 2, Life.stopped: 1,
}

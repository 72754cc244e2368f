"""Lives of owners with delayed messages and their consumers, for tests on a clock that the test sets."""
import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.topics.subscription import SubType

from .rig import START_MS, Rig

SECOND_MS, HOUR_MS, DAY_MS = 1_000, 3_600_000, 24 * 3_600_000
DELAY_TICK_MS = 1_000                      # by default
NAMESPACE, TOPIC = "public/default", "persistent://public/default/t"
SPREAD = pytest.mark.parametrize("kind", [SubType.Shared, SubType.Key_Shared], ids=SubType.Name)
SINGLE = pytest.mark.parametrize("kind", [SubType.Exclusive, SubType.Failover], ids=SubType.Name)
MANY = 100_000
T = api.BaseCommand.Type


class Life:
    """An owner with consumers that take all messages. All times are milliseconds since the beginning.

        life = Life(rigs())
        consumer = life.consumer()
        life.publish(late=5_000, now=None)     # messages by name, in order, in one pass
        life.wait(2_000)                       # with a pass whenever the owner wants one
        life.came(consumer)                    # [(when, name)] of messages since the last call
    """

    def __init__(self, rig: Rig):
        self.positions = {}                    # name -> position
        self.names = {}                        # position -> name
        self.move(rig)

    def move(self, rig: Rig) -> None:
        """Go on with the owner's next process, to which no client is connected."""
        self.rig, self._came, self._consumers = rig, {}, {}
        self._producer = rig.producer("t")

    @property
    def now(self) -> int:
        return self.rig.now_ms - START_MS

    def consumer(self, kind=SubType.Shared, name="sub", *, permits=MANY, **fields):
        section, number = self.rig.subscribe("t", name, subType=kind, **fields)
        answers = self._take(self.rig.run(section))
        made = self.rig.consumer_in(answers, number, "t")
        self._came[made.number], self._consumers[made.number] = [], made
        if permits:
            self.flow(made, permits)
        return made

    def flow(self, consumer, permits):
        return self.run(self.rig.flow(consumer, permits))

    def publish(self, **times_ms):
        """Publish messages in one pass, each given as name=time: due at that time, at once for None, or with the
        metadata fields of a dict.
        """
        self.publish_all(list(times_ms.items()))

    def publish_all(self, times_ms):
        sent = []
        for name, time_ms in times_ms:
            fields = time_ms if isinstance(time_ms, dict) else {} if time_ms is None else {"at": time_ms}
            fields = dict(fields)
            if "at" in fields:
                fields["deliver_at_time"] = START_MS + fields.pop("at")
            sent.append((self._producer, name.encode(), fields))
        answers = self.rig.run(self.rig.sends(*sent))
        for (name, _), position in zip(times_ms, answers.positions, strict=True):
            self.positions[name], self.names[position] = position, name
        self._take(answers)
        self._go_on()

    def run(self, *sections, after_ms=0):
        answers = self._take(self.rig.run(*sections, after_ms=after_ms))
        self._go_on()
        return answers

    def _go_on(self):
        """Run the passes that the owner wants at once, because it works on the delayed index in small pieces. Then
        check invariants.
        """
        for _ in range(100):
            if self.rig.owner.passes.due_ms() > self.rig.now_ms:
                break
            self._take(self.rig.run())
        for partition in self.rig.partitions:
            partition.check()

    def _take(self, answers):
        for number, _, ledger_id, given in answers.gifts:
            if number in self._came:
                self._came[number] += [(self.now, self.names[ledger_id, entry_id]) for entry_id, _, _ in given]
        return answers

    def wait(self, ms):
        """Let time pass, with a pass whenever the owner wants one, as its process does."""
        until_ms = self.rig.now_ms + ms
        while self.rig.now_ms < until_ms:
            self.run(after_ms=max(1, min(self.rig.owner.passes.due_ms(), until_ms) - self.rig.now_ms))

    def jump(self, ms):
        """Advance the clock at once without passes in between, as if the process had been stopped, or the clock been
        set.
        """
        self.run(after_ms=ms)

    def came(self, consumer):
        found, self._came[consumer.number] = self._came[consumer.number], []
        return found

    def names_of(self, consumer):
        return [name for _, name in self.came(consumer)]

    def ack(self, consumer, *names):
        return self.run(self.rig.acks(consumer, *[self.positions[name] for name in names], request_id=1))

    def leave(self, consumer):
        self._take(self.rig.close_consumer(consumer))
        del self._came[consumer.number], self._consumers[consumer.number]

    def seek(self, consumer, **where):
        """Seek the consumer's subscription, which disconnects its consumers."""
        self.run(self.rig.command("seek", consumer_id=consumer.object_id, request_id=1, **where))
        del self._came[consumer.number], self._consumers[consumer.number]

    def id_of(self, name):
        return api.MessageIdData(ledgerId=self.positions[name][0], entryId=self.positions[name][1])

    def account(self, name="sub"):
        """Return the totals of a subscription: outcomes of all messages since it was made."""
        told = self.rig.asked("why", "t", subscription=name)["messages"]
        assert told["published"] == sum(count for what, count in told.items() if what != "published"), told
        return {what: count for what, count in told.items() if count and what != "published"}


def check_times(came, times_ms, tick_ms=DELAY_TICK_MS, *, published_ms=0):
    """Assert that each message was delivered once, at its time or up to a tick later."""
    assert sorted(name for _, name in came) == sorted(times_ms)
    for when, name in came:
        due = max(times_ms[name] or 0, published_ms)
        assert due <= when <= due + tick_ms, name

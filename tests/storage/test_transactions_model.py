"""Random transactions against a model: every subscription gets what is committed, once and in order."""
import random

import pytest

from geminga.storage.topics.subscription import SubType

from .transactional import TransactionalRig, killed_at

KINDS = SubType.Exclusive, SubType.Failover, SubType.Shared, SubType.Key_Shared
STEPS = 60


class Play:
    """A topic with a subscription of each type, whose consumers acknowledge all that they get."""

    def __init__(self, folder, seed):
        self.folder, self.random = folder, random.Random(seed)
        self.rig = TransactionalRig(folder / "data-0", roll_over_entries=7, deduplication=seed % 2 == 1)
        self.entries = []                  # [(payload, transaction or 0)], in the order of storing
        self.open, self.aborted = [], set()
        self.got = {kind: [] for kind in KINDS}
        self.kills = 0
        self.connect()

    def connect(self):
        self.producers = [self.rig.producer("t", producer_name=f"p{number}") for number in range(2)]
        self.consumers = {}
        for kind in KINDS:
            self.consumers[kind] = self.rig.consumer("t", f"sub-{kind}", subType=kind)
            self.take(self.rig.run(self.rig.flow(self.consumers[kind], 1 << 20)))

    def take(self, answers):
        """Note what consumers got, and acknowledge it durably."""
        for kind, consumer in self.consumers.items():
            found = self.rig.delivered(answers, consumer)
            self.got[kind] += [payload for _, payload in found]
            if found:
                self.take(self.rig.run(self.rig.acks(consumer, *[place for place, _ in found], request_id=1)))

    def visible(self):
        """Return the payloads that consumers can have."""
        found = []
        for payload, transaction in self.entries:
            if transaction in self.open:
                break
            if transaction not in self.aborted:
                found.append(payload)
        return found

    # -- steps

    def begin(self):
        self.open.append(self.rig.begin("t"))

    def publish(self):
        mixed = []
        for _ in range(self.random.choice([1, 3, 40])):
            transaction = self.random.choice([0, *self.open])
            payload = b"%d" % (len(self.entries) + len(mixed))
            mixed.append((transaction, self.random.choice(self.producers), payload))
        self.take(self.rig.run(self.rig.mixed(*mixed)))
        self.entries += [(payload, transaction) for transaction, _, payload in mixed]

    def end(self, commits):
        if self.open:
            transaction = self.open.pop(self.random.randrange(len(self.open)))
            if not commits:
                self.aborted.add(transaction)
            for answers in self.rig.end(transaction, "t", commits=commits):
                self.take(answers)

    def kill(self):
        self.kills += 1
        self.rig = killed_at(self.rig, self.folder / f"data-{self.kills}")
        self.connect()
        partition_id = self.rig.partition("t").partition_id
        for transaction in self.open:      # as its coordinator does
            self.rig.pass_of(self.rig.participant.add, transaction, partition_id, 0)

    def step(self):
        action = self.random.choices(
            [self.begin, self.publish, lambda: self.end(True), lambda: self.end(False), self.kill],
            [3, 6, 2, 2, 0.5])[0]
        action()
        assert self.got == dict.fromkeys(KINDS, self.visible())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_every_subscription_gets_what_is_committed_once_and_in_order(tmp_path, seed):
    play = Play(tmp_path, seed)
    for _ in range(STEPS):
        play.step()
    while play.open:
        play.end(play.random.random() < 0.5)
    kept = [payload for payload, transaction in play.entries if transaction not in play.aborted]
    assert play.got == dict.fromkeys(KINDS, kept)
    play.rig.close()

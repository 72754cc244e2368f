"""A rig with transactions: it begins, commits and aborts them as their coordinators do."""
import numpy as np

from geminga.proto import envelope, names
from geminga.proto.sends import IN_TRANSACTION

from .rig import Rig


class Peers:
    """What a participant tells coordinators, in a list."""

    index, owners = 0, 1

    def __init__(self):
        self.sent = []

    def send(self, owner_index, what, transaction, partition_id, subscription_id, role=0):
        self.sent.append((owner_index, what, transaction, partition_id, subscription_id))


def killed_at(rig, target):
    """Return the next owner after a kill, and close the killed one, whose folder is not used any more."""
    after = rig.crashed(target)
    after._numbers = rig._numbers      # clients' sequence ids go on
    after._least = rig._least
    rig.close()
    return after


class TransactionalRig(Rig):
    """A rig whose participant is told directly what coordinators say, in a pass of its own."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.peers, self.participant = Peers(), self.owner.participant
        for part in (self.participant, self.owner.coordinator, self.owner.admission, self.owner.held_acks):
            part._peers = self.peers
        self._least = 0

    def run_all(self, by_worker, *, after_ms=0):
        answers = super().run_all(by_worker, after_ms=after_ms)
        for partition in self.partitions:
            partition.check()
        return answers

    def pass_of(self, action, *arguments, **settings):
        """Run a pass in which a coordinator says something; return (answers, what the participant told it)."""
        told = len(self.peers.sent)
        self.owner.passes.begin(self.now_ms)
        self.owner.passes.apply_received()
        action(*arguments, **settings)
        answers = self.run()
        return answers, self.peers.sent[told:]

    def begin(self, *topics, transaction=None):
        """Return a transaction to which the topics are added."""
        if transaction is None:
            self._least += 1
            transaction = names.transaction(0, self._least)
        for topic in topics:
            self.pass_of(self.participant.add, transaction, self.partition(topic).partition_id, 0)
        return transaction

    def end(self, transaction, *topics, commits=True):
        """End a transaction in these topics; return the answers of these passes."""
        answered = []
        for topic in topics:
            partition_id = self.partition(topic).partition_id
            answers, told = self.pass_of(self.participant.end, [transaction], partition_id, commits=commits)
            assert (0, envelope.ENDED, transaction, partition_id, 0) in told
            answered.append(answers)
        return answered

    def questions(self):
        """Return (transaction, partition id) of all SENDs that coordinators were asked about, and forget these."""
        asked = [(transaction, partition_id) for _, what, transaction, partition_id, _ in self.peers.sent
                 if what == envelope.MAY_PUBLISH]
        self.peers.sent.clear()
        return asked

    def answer(self, what, *questions):
        """Let coordinators answer questions by ADD, ABORT or REFUSED; return the answers of the last pass."""
        for transaction, partition_id in questions:
            if what == envelope.ADD:
                answers, _ = self.pass_of(self.participant.add, transaction, partition_id, 0)
            elif what == envelope.ABORT:
                answers, _ = self.pass_of(self.participant.end, [transaction], partition_id, commits=False)
            else:
                answers, _ = self.pass_of(self.participant.refused, transaction, partition_id)
        return answers

    def sends_in(self, transaction, *messages):
        """Return a section of SENDs in a transaction; messages as in `sends`, or (transaction, section of sends)."""
        _, rows, data = self.sends(*messages)
        rows["flags"] |= IN_TRANSACTION
        rows["message_index"] = transaction
        return envelope.SENDS_IN_TRANSACTIONS, rows, data

    def publish_in(self, transaction, producer, *payloads):
        """Publish in a transaction in one pass, and return the positions."""
        section = self.sends_in(transaction, *[(producer, payload) for payload in payloads])
        return self.run(section, worker=producer.worker).positions

    def mixed(self, *messages):
        """Return one section of SENDs: (transaction or 0, handle, payload) each."""
        return self.mixed_with(*[(*message, {}) for message in messages])

    def mixed_with(self, *messages):
        """Return one section of SENDs: (transaction or 0, handle, payload, fields of the metadata) each."""
        sections = [self.sends((handle, payload, about)) for _, handle, payload, about in messages]
        rows = np.concatenate([rows for _, rows, _ in sections])
        rows["flags"] |= np.array([IN_TRANSACTION if one[0] else 0 for one in messages], np.uint32)
        rows["message_index"] = [one[0] for one in messages]
        sizes = [len(data) for *_, data in sections]
        rows["offset"] = np.cumsum([0, *sizes[:-1]])
        return envelope.SENDS_IN_TRANSACTIONS, rows, b"".join(data for *_, data in sections)

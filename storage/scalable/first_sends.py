"""First SENDs of producers of segments, which show a client that counts anew behind a split or merge.

The client of Pulsar 5 counts on each segment from `initialSequenceId` on, so a producer that goes on from a sealed
segment to the one behind it sends the numbers of other messages, which the sealed segment has.  Nothing in PRODUCER or
SEND tells them from numbers that the program sets, and sends again.  The first SEND does, if its connection had the
producer when the segment was sealed.  It is the first of new numbers if it has the lowest number that was ever stored
under the name, or that of the connection's first SEND before, and is not the same message as that.  Then the segment
forgets the sequence ids that it has inherited for the producer, and has its own.

Other connections are not believed: a process that was started anew sends messages again, perhaps with other contents.
"""
import numpy as np

from geminga.proto import contents
from geminga.proto.rows import Rows
from geminga.storage.cursors import producer_sequences
from geminga.storage.cursors.producer_sequences import Progress
from geminga.storage.open_topics.clients import Producers
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.publish_plan import Sends
from geminga.storage.topics.subscription import Producer


def look(decisions: Decisions, producers: Producers, sends: Sends) -> None:
    """Look at the first SENDs of producers of segments, before duplicates are looked for."""
    for _, rows, data in sends:
        for handle in producers.unheard.keys() & set(rows["producer"].tolist()):
            _hear(decisions, producers.unheard.pop(handle), rows[np.argmax(rows["producer"] == handle)], data)


def _hear(decisions: Decisions, producer: Producer, row: Rows, data: memoryview) -> None:
    partition = producer.partition
    assert isinstance(partition, Partition), partition
    if not partition.deduplicates:
        return
    offset = int(row["offset"])
    number, _ = producer_sequences.span(int(row["sequence_id"]), int(row["highest_sequence_id"]))
    producer.first = number, contents.digest_of(data[offset:offset + int(row["size"])])
    progress, connection = partition.sequences.of(producer.identity), (producer.worker, producer.connection)
    before = [first for each, first in partition.begun.pop(producer.identity, ()) if each == connection]
    if before and number in (progress.lowest, *dict(before)) and producer.first not in before:
        forgotten = Progress()
        decisions.note(partition, partition.sequences.ops(partition.partition_id, producer.identity, forgotten))
        partition.sequences.learn(producer.identity, forgotten, decisions.now_ms)

"""Producers of segments that repeat sequence ids of segments before: they send again, or count anew.

The client of Pulsar 5 counts on each segment from `initialSequenceId` on, so a producer that goes on from a sealed
segment to the one behind it sends the numbers of other messages, which the sealed segment has.  Nothing in PRODUCER or
SEND tells them from numbers that a program sets, and sends again.  The contents do.  So a segment inherits digests of
messages with the sequence ids: of the first and the last ones of each segment before.

A SEND whose number was inherited is a duplicate if a segment before has stored the same key and payload under this
number, and under no other one.  Otherwise it is stored, because a receipt promises that nothing is lost, and the
segment forgets the sequence ids that it has inherited for the producer, and has its own.  That holds for every
connection and process alike.
"""
import contextlib
import itertools
import os
import struct
from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from google.protobuf.message import DecodeError

from geminga.proto import names
from geminga.proto.contents import contents_of
from geminga.proto.rows import Rows
from geminga.storage import format
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.inherited_contents import InheritedRow
from geminga.storage.cursors import producer_sequences
from geminga.storage.cursors.inherited_messages import InheritedMessages
from geminga.storage.cursors.producer_sequences import Progress
from geminga.storage.errors import StorageFull
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.position import Position
from geminga.storage.open_topics.clients import Producers
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.publish_plan import Sends
from geminga.storage.topics.subscription import Producer

# Messages of a sealed segment whose digests are handed on.  Programs count anew from the first ones, and send again the
# last ones: a client has 1,000 under way by default.  Reading them takes 16 ms, in which the segment's owner stands.
FIRST, LAST = 500, 2_000
_BYTES_MAX = 4 << 20      # of entries that are read for each of the two; large messages are fewer
_KEPT_MAX = 10_000        # messages that a segment hands on, with those that it has inherited


# -- when a segment is sealed

def contents_to_hand_on(partition: Partition, catalogue: Catalogue) -> dict[bytes, str]:
    """Return {producer: (n,) CONTENT_ROW in base 64} of messages stored in a segment, and in those before it."""
    own = _stored(partition)
    rows = {producer: np.array(messages, format.CONTENT_ROW) for producer, messages in own.items()}
    inherited = {producer: np.frombuffer(row.contents, format.CONTENT_ROW)
                 for producer, row in _rows(catalogue, partition).items()}
    most = (_KEPT_MAX - sum(map(len, own.values()))) // max(len(inherited), 1)
    for producer, before in inherited.items():
        rows[producer] = np.concatenate([before[len(before) - min(len(before), most):], rows.get(producer, before[:0])])
    return {producer: b64encode(each.tobytes()).decode() for producer, each in rows.items()}


def _stored(partition: Partition) -> dict[bytes, list[tuple[int, int]]]:
    """Return {producer: its messages (sequence id, digest)} of the first and the last entries of a partition."""
    found: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    with contextlib.suppress(OSError):      # a damaged file is no reason not to seal the segment
        for entry in _entries(partition):
            try:
                producer, messages = contents_of(entry)
            except (DecodeError, struct.error):      # it is lost
                continue
            if producer:
                identity = producer_sequences.identity(names.across_segments(producer, partition.name))
                found[identity] += messages
    return found


def _entries(partition: Partition) -> Iterator[bytes]:
    """Yield the first and the last entries of a partition that are there, in their order."""
    chosen: set[Position] = set()
    for way, most in ((1, FIRST), (-1, LAST)):
        messages = size = 0
        for position, its_size, its_messages in _walk(partition.ledgers, way):
            size += its_size
            if messages >= most or size > _BYTES_MAX:
                break
            messages += its_messages
            chosen.add(position)
    for ledger_id, entry_ids in itertools.groupby(sorted(chosen), lambda position: position[0]):
        found = partition.find(ledger_id)
        assert found is not None, (partition, ledger_id)
        offsets, sizes = found.column("offset"), found.column("size")
        with open(found.ledger_path, "rb", buffering=0) as file:      # a sealed ledger is not kept open
            for _, entry_id in entry_ids:
                yield os.pread(file.fileno(), sizes.item(entry_id), offsets.item(entry_id))


def _walk(ledgers: list[Ledger], way: int) -> Iterator[tuple[Position, int, int]]:
    """Yield (position, size, messages) of all entries from the first to the last one; way -1: the other way round."""
    for ledger in ledgers[::way]:
        sizes, messages = ledger.column("size"), ledger.column("messages")
        for entry_id in range(ledger.entries)[::way]:
            yield (ledger.ledger_id, entry_id), sizes.item(entry_id), messages.item(entry_id)


# -- when a producer goes on behind it

def look(decisions: Decisions, producers: Producers, catalogue: Catalogue, sends: Sends) -> None:
    """Look at SENDs to segments whose numbers segments before have stored, before duplicates are looked for."""
    for _, rows, data in sends:
        for handle in producers.inheriting.keys() & set(rows["producer"].tolist()):
            producer = producers.inheriting[handle]
            if not _repeats(decisions, catalogue, producer, rows[rows["producer"] == handle], data):
                del producers.inheriting[handle]


def _repeats(decisions: Decisions, catalogue: Catalogue, producer: Producer, rows: Rows, data: memoryview) -> bool:
    """Whether all of a producer's SENDs repeat what segments before have stored, so that the next ones may, too."""
    partition = producer.partition
    assert isinstance(partition, Partition), partition
    if not partition.deduplicates:
        return False
    if producer.inherited is None:
        producer.inherited = _inherited(catalogue, partition, producer)
    for sequence_id, highest, offset, size in rows[["sequence_id", "highest_sequence_id", "offset", "size"]].tolist():
        if producer_sequences.span(sequence_id, highest)[1] > producer.inherited.through:
            return False
        messages = contents_of(data[offset:offset + size]).messages
        if any(producer.inherited.is_another(number, digest) for number, digest in messages):
            _forget(decisions, catalogue, partition, producer)
            return False
    return True


def _inherited(catalogue: Catalogue, partition: Partition, producer: Producer) -> InheritedMessages:
    row = _rows(catalogue, partition).get(producer.identity)
    return InheritedMessages() if row is None else InheritedMessages(
        row.through, np.frombuffer(row.missing, format.GAP_ROW), np.frombuffer(row.contents, format.CONTENT_ROW))


def _rows(catalogue: Catalogue, partition: Partition) -> dict[bytes, InheritedRow]:
    """Return what a segment has inherited, by producer, but for those that have counted anew."""
    return {producer: row for producer, row in catalogue.inherited_contents.of(partition.partition_id).items()
            if row.anew_from is None}


def _forget(decisions: Decisions, catalogue: Catalogue, partition: Partition, producer: Producer) -> None:
    """Forget the sequence ids that a segment has inherited for a producer, which counts anew."""
    forgotten = Progress()
    decisions.note(partition, partition.sequences.ops(partition.partition_id, producer.identity, forgotten))
    partition.sequences.learn(producer.identity, forgotten, decisions.now_ms)
    with contextlib.suppress(StorageFull):      # then a kill may have messages stored twice
        catalogue.inherited_contents.forget(partition.partition_id, producer.identity, partition.next_message)

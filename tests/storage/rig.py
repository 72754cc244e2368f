"""One owner without ZeroMQ: what workers send goes in as envelopes, what it answers comes out, and time is a number.

    rig = Rig(folder)
    producer = rig.producer("orders")              # a Handle: the owner's number for it, and where its topic is
    answers = rig.run(rig.sends(producer, b"a"), rig.flow(consumer, 10))      # one pass
    answers.receipts, answers.runs, answers.replies, answers.forgotten

`crashed` is what a SIGKILL leaves, opened by the next process: the files as they are, and nothing of this process's
memory.
"""
import itertools
import json
import struct
import weakref
from concurrent.futures import wait
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from crc32c import crc32c

from geminga.proto import envelope, names, sends
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.deliveries import CHOSEN
from geminga.proto.frames import SIZES
from geminga.storage import format
from geminga.storage.admin import typed_json
from geminga.storage.admin.questions import GetStatistics, GetStorage, GetStored, answer_type
from geminga.storage.catalogue.catalogue import open_catalogue
from geminga.storage.ledgers.journal import open_journal
from geminga.storage.options import StorageOptions
from geminga.storage.owner.owner import Owner
from geminga.storage.owner.recovery import journal_folder, recover_owner
from geminga.storage.runtime.counters import make_counters
from geminga.supervisor.admin.monitoring import topic_json

from .files import copy_of, read_mapped

T = api.BaseCommand.Type
WORKER, CONNECTION = 1, 1
START_MS = 1_700_000_000_000
SHOWN = {"stats": (GetStatistics, topic_json.topic_stats), "internal": (GetStorage, topic_json.internal_stats),
         "info": (GetStored, lambda topic, stored: topic_json.internal_info(stored)),
         "offline": (GetStored, topic_json.offline_stats)}
_METADATA_END = 10      # of an entry: magic, checksum, size of metadata


@dataclass(frozen=True)
class Handle:
    """A producer or consumer as its worker knows it."""

    number: int
    object_id: int
    topic: str
    worker: int = WORKER
    connection: int = CONNECTION
    name: str = "p"      # of a producer, as its entries have it


@dataclass
class Answers:
    """The answers of one pass to all workers, in order."""

    receipts: list = field(default_factory=list)      # (worker, connection, producer id, sequence id, (ledger, entry))
    highest: list = field(default_factory=list)       # the highest sequence id of each of them
    runs: list = field(default_factory=list)          # (consumer's number, partition id, ledger, first entry, count)
    # (consumer's number, partition id, ledger, [(entry, redeliveries, words)])
    picks: list = field(default_factory=list)
    gifts: list = field(default_factory=list)         # runs and picks in their order, all as picks are
    # (ledger, entry) -> words of the messages that a filter has chosen of a batch; `words` above leave these out
    chosen: dict = field(default_factory=dict)
    # of each of these the number of the compacted view that it is of, or 0
    views: list = field(default_factory=list)
    # (consumer's number, entry id, payload) of topics that keep nothing
    passed: list = field(default_factory=list)
    replies: list = field(default_factory=list)       # (connection, action, object id, handle, command or None)
    answered: list = field(default_factory=list)      # what administration's questions were answered
    forgotten: list = field(default_factory=list)     # (worker, ledger)
    taken: dict = field(default_factory=dict)         # worker -> bytes of entries taken from it so far

    def commands(self, kind=None):
        return [command for *_, command in self.replies if command is not None and kind in (None, command.type)]

    @property
    def positions(self):
        return [receipt[-1] for receipt in self.receipts]


def entry_of(payload, *, batch=0, publish_time=START_MS, sequence_id=0, **fields):
    """Return the bytes of an entry, as a client sends it behind a SEND.  It is as long as the one that a rig sends."""
    fields = {"producer_name": "p"} | fields
    metadata = api.MessageMetadata(sequence_id=sequence_id, publish_time=publish_time, **fields)
    if batch:
        metadata.num_messages_in_batch = batch
    raw = metadata.SerializeToString()
    content = struct.pack(">I", len(raw)) + raw + payload
    return b"\x0e\x01" + struct.pack(">I", crc32c(content)) + content


def payload_of(entry):
    return entry[_METADATA_END + struct.unpack_from(">I", entry, 6)[0]:]


class Rig:
    """An owner without processes or sockets.

    Invariant: between passes the owner has nothing to answer.
    """

    def __init__(
        self, data_dir: Path, *, now_ms=START_MS, is_mine=lambda name: True, owners=1, index=None, has_moved=False,
        **options
    ):
        """Start an owner.  is_mine: which partitions are its own.  index: its index among `owners`, the last if None.
        has_moved: the number of owners has changed.
        """
        index = owners - 1 if index is None else index
        self.data_dir, self.now_ms = data_dir, now_ms
        # Space is freed at once, so that tests see what was freed and need no other clock.
        self.settings = {"journal_segment_bytes": 1 << 20, "journal_segments_max": 4, "disk_reserve_bytes": 0,
                         "keep_acknowledged_s": 0} | options
        self.options = StorageOptions(**self.settings)
        self._numbers = itertools.count(1)
        folder = journal_folder(data_dir, index)
        recovered = recover_owner(data_dir, index, owners, has_moved=has_moved)
        self.recovered, self.damage = recovered.entries, recovered.damage
        self.journal = open_journal(
            folder,
            segment_bytes=self.options.journal_segment_bytes,
            segments_max=self.options.journal_segments_max,
            kept=recovered.kept,
            changed=recovered.recovery,
        )
        self.counters = make_counters(1)[0]
        catalogue = open_catalogue(data_dir / "catalogue.sqlite", lambda: 0)
        # Tests leave killed owners alone, and from Python 3.13 on a connection that nobody closes is a warning.
        weakref.finalize(self, catalogue.close)
        self.owner = Owner(
            data_dir, self.options, catalogue, self.journal, self.counters, now_ms, recovered.recovery, is_mine,
            index=index, owners=owners, has_moved=has_moved,
        )
        self.is_open = True

    def close(self):
        """Stop cleanly; a second call changes nothing."""
        if self.is_open:
            self.is_open = False
            self.owner.close()

    def settle(self):
        """Wait for checkpoints under way, so that the files are the same in every run."""
        saving = self.owner.schedules._saving
        early = self.journal._early
        wait([checkpoint.done for checkpoint in self.journal._checkpoints] + ([saving[0]] if saving else [])
             + ([early] if early is not None else []))

    def crashed(self, target: Path, **options) -> "Rig":
        """Return the next owner, on a copy of the files as they are."""
        self.settle()
        return type(self)(copy_of(self.data_dir, target), now_ms=self.now_ms, **self.settings | options)

    # -- what workers send

    def number(self):
        return next(self._numbers)

    def sends(self, *messages):
        """Return a section of SENDs: (handle, payload or the entry's arguments) each."""
        rows, entries, offset = [], [], 0
        for handle, payload, *more in messages:
            sequence_id = self.number()
            fields = {"sequence_id": sequence_id, "publish_time": self.now_ms, "producer_name": handle.name}
            fields |= more[0] if more else {}
            entry = entry_of(payload, **fields)
            command = api.CommandSend(
                producer_id=handle.object_id, sequence_id=sequence_id, is_chunk=sends.command_of(entry).is_chunk
            )
            row = np.array([sends.read_one(command, entry)], sends.SEND_ROW)
            row["producer"], row["connection"], row["offset"] = handle.number, handle.connection, offset
            rows.append(row)
            entries.append(entry)
            offset += len(entry)
        return envelope.SENDS, np.concatenate(rows), b"".join(entries)

    def acks(self, consumer, *positions, cumulative=False, flags=0, request_id=0):
        """Return a section of acknowledgements; a request id asks for a receipt."""
        rows = np.zeros(len(positions), envelope.ACK_ROW)
        rows["consumer"] = consumer.number
        rows["ledger_id"], rows["entry_id"] = np.array(positions, np.int64).T
        rows["flags"] = flags | (envelope.CUMULATIVE if cumulative else 0)
        if request_id:
            rows["request_id"][-1] = request_id
            rows["flags"][-1] |= envelope.WANTS_RESPONSE
        return envelope.ACKS, rows, b""

    def ack_part(self, consumer, position, *words, cumulative=False, request_id=0):
        """Return a section that acknowledges those messages of a batch that have no bit in these words."""
        _, rows, _ = self.acks(consumer, position, cumulative=cumulative, flags=envelope.PARTIAL, request_id=request_id)
        rows["words"] = len(words)
        return envelope.ACKS, rows, np.array(words, np.uint64).tobytes()

    def redeliver(self, consumer, *positions, **fields):
        """Return a section that asks for redelivery of these positions, or of all that the consumer holds."""
        ids = [api.MessageIdData(ledgerId=ledger_id, entryId=entry_id) for ledger_id, entry_id in positions]
        return self.command(
            "redeliverUnacknowledgedMessages",
            connection=consumer.connection,
            consumer_id=consumer.object_id,
            message_ids=ids,
            **fields,
        )

    def flow(self, consumer, permits):
        return envelope.FLOWS, np.array([(consumer.number, permits)], envelope.FLOW_ROW), b""

    def command(self, kind, *, connection=CONNECTION, version=21, **fields):
        """Return a section of one command; `kind` is its field in BaseCommand."""
        type_ = api.BaseCommand.DESCRIPTOR.fields_by_name[kind].number
        data = api.BaseCommand(type=type_, **{kind: fields}).SerializeToString()
        return self._command_section(connection, envelope.COMMAND, data, version)

    def question(self, ask, topic, **arguments):
        """Return a section of one question of administration about a topic."""
        data = json.dumps({"ask": ask, "topic": topic, **arguments}).encode()
        return envelope.QUESTIONS, np.array([(1, len(data))], envelope.QUESTION_ROW), data

    def tell(self, ask, **arguments):
        """Return a section of one question of administration without a topic."""
        data = json.dumps({"ask": ask, **arguments}).encode()
        return envelope.QUESTIONS, np.array([(1, len(data))], envelope.QUESTION_ROW), data

    def asked(self, ask, topic, **arguments):
        """Ask a question about a topic, and return its answer."""
        [answer] = self.run(self.question(ask, topic, **arguments)).answered
        return answer["answer"]

    def shown(self, subject, topic, **arguments):
        """Return REST's JSON about a topic.  subject: stats, internal, info or offline."""
        question, make = SHOWN[subject]
        figures = typed_json.read(answer_type(question), self.asked(question.name, topic, **arguments))
        return json.loads(json.dumps(make(names.parse(topic), figures)))

    def happened(self, kind, *, connection=CONNECTION, data=b""):
        """Return a section with a worker's news of a connection: that it is gone, or alive, or one of its objects
        is.
        """
        return self._command_section(connection, kind, data)

    @staticmethod
    def _command_section(connection, kind, data, version=21):
        row = np.zeros(1, envelope.COMMAND_ROW)
        row["connection"], row["kind"], row["protocol_version"], row["size"] = connection, kind, version, len(data)
        return envelope.COMMANDS, row, data

    # -- passes

    def run(self, *sections, worker=WORKER, after_ms=0) -> Answers:
        """Run one pass with these sections of one worker."""
        return self.run_all({worker: sections}, after_ms=after_ms)

    def run_all(self, by_worker, *, after_ms=0) -> Answers:
        self.now_ms += after_ms
        self.owner.passes.begin(self.now_ms)
        for worker, sections in by_worker.items():
            # what comes from ZeroMQ cannot be written to
            frames = [bytes(part) for part in envelope.seal(list(sections))]
            self.owner.passes.receive(worker, envelope.unseal(frames)[1])
        answers = Answers()
        for worker, frames in self.owner.passes.end():
            answers.taken[worker], found = envelope.unseal([bytes(part) for part in frames])
            for kind, rows, data in found:
                _READERS[kind](answers, worker, rows, data)
        return answers

    # -- what clients do

    def producer(self, topic, *, worker=WORKER, connection=CONNECTION, **fields) -> Handle:
        number = self.number()
        answers = self.run(
            self.command(
                "producer", connection=connection, topic=topic, producer_id=number, request_id=number, **fields
            ),
            worker=worker,
        )
        [handle] = [handle for _, action, object_id, handle, _ in answers.replies
                    if action == envelope.PRODUCER_READY and object_id == number]
        return Handle(handle, number, topic, worker, connection, fields.get("producer_name") or "p")

    def subscribe(self, topic, subscription, *, worker=WORKER, connection=CONNECTION, **fields):
        """Return (a section that asks for a consumer, the consumer's id)."""
        number = self.number()
        fields = {"subType": 0, "initialPosition": 1, "topic": topic, "subscription": subscription} | fields
        return self.command("subscribe", connection=connection, consumer_id=number, request_id=number, **fields), number

    def consumer(self, topic, subscription="sub", *, worker=WORKER, connection=CONNECTION, **fields) -> Handle:
        section, number = self.subscribe(topic, subscription, connection=connection, **fields)
        return self.consumer_in(self.run(section, worker=worker), number, topic, worker, connection)

    def consumer_in(self, answers, number, topic, worker=WORKER, connection=CONNECTION) -> Handle:
        [handle] = [handle for _, action, object_id, handle, _ in answers.replies
                    if action == envelope.CONSUMER_READY and object_id == number]
        return Handle(handle, number, topic, worker, connection)

    def close_consumer(self, consumer) -> Answers:
        return self.run(
            self.command(
                "close_consumer", connection=consumer.connection, consumer_id=consumer.object_id, request_id=9_999
            ),
            worker=consumer.worker,
        )

    def publish(self, producer, *payloads) -> list:
        """Publish in one pass, and return the positions."""
        return self.run(self.sends(*[(producer, payload) for payload in payloads]), worker=producer.worker).positions

    def receive(self, consumer, permits=1_000) -> list:
        """Grant permits once, and return the deliveries: [(position, payload)]."""
        return self.delivered(self.run(self.flow(consumer, permits)), consumer)

    def delivered(self, answers, consumer) -> list:
        """Return the consumer's deliveries: [(position, payload)]."""
        found = []
        for number, partition_id, ledger_id, given in answers.gifts:
            if number == consumer.number:
                first, last = given[0][0], given[-1][0]
                entries = read_mapped(
                    format.partition_folder(self.data_dir, partition_id), ledger_id, first, last - first + 1
                )
                found += [((ledger_id, entry_id), payload_of(entries[entry_id - first])) for entry_id, _, _ in given]
        return found

    @staticmethod
    def given(answers, consumer) -> list:
        """Return the consumer's deliveries as announced: [(position, redeliveries, words)]."""
        return [
            ((ledger_id, entry_id), redeliveries, words)
            for number, _, ledger_id, given in answers.gifts
            if number == consumer.number
            for entry_id, redeliveries, words in given
        ]

    def everything(self, topic) -> list:
        """Return all that the topic holds, as a reader from the beginning gets it: [(position, payload)]."""
        reader = self.consumer(topic, f"reader-{self.number()}", durable=False)
        found = self.receive(reader, 1 << 30)
        self.close_consumer(reader)
        return found

    @staticmethod
    def topic(name):
        return names.parse(name)

    @property
    def partitions(self):
        """The partitions that the owner has opened."""
        return list(self.owner.topics.by_name.values())

    def partition(self, topic):
        return self.owner.topics.by_name[names.parse(topic)]

    def files(self, topic, suffix=".ledger"):
        folder = self.partition(topic).folder
        return sorted(int(path.stem.split(".")[0]) for path in folder.glob(f"*{suffix}"))


def _receipts(answers, worker, rows, data):
    for row in rows:
        answers.receipts.append((worker, int(row["connection"]), int(row["producer_id"]), int(row["sequence_id"]),
                                 (int(row["ledger_id"]), int(row["entry_id"]))))
        answers.highest.append(int(row["highest_sequence_id"]))


def _runs(answers, worker, rows, data):
    names = "consumer", "partition_id", "ledger_id", "first_entry", "count"
    for row in rows:
        *which, first, count = run = tuple(int(row[name]) for name in names)
        answers.runs.append(run)
        answers.gifts.append((*which, [(first + n, 0, []) for n in range(count)]))
        answers.views.append(0)


def _picks(answers, worker, rows, data):
    at = 0
    for row in rows:
        picked = np.frombuffer(data, envelope.LISTED_ENTRY, int(row["count"]), at)
        words = np.frombuffer(data[at + picked.nbytes:at + int(row["size"])], np.uint64).tolist()
        at += int(row["size"])
        entries = []
        for entry_id, redeliveries, flagged in picked.tolist():
            count = flagged & CHOSEN - 1
            entries.append((entry_id, redeliveries, words[:count // 2 if flagged & CHOSEN else count]))
            if flagged & CHOSEN:
                answers.chosen[int(row["ledger_id"]), entry_id] = words[count // 2:count]
            words = words[count:]
        answers.picks.append((int(row["consumer"]), int(row["partition_id"]), int(row["ledger_id"]), entries))
        answers.gifts.append(answers.picks[-1])
        answers.views.append(int(row["view"]))


def _passed(answers, worker, rows, data):
    at = 0
    for row in rows:
        entries = np.frombuffer(data, envelope.TRANSIENT_ENTRY, int(row["count"]), at)
        at += entries.nbytes
        for entry_id, size, _ in entries.tolist():
            answers.passed.append((int(row["consumer"]), entry_id, payload_of(bytes(data[at:at + size]))))
            at += size


def _replies(answers, worker, rows, data):
    at = 0
    for row in rows:
        size, command = int(row["size"]), None
        if size:
            command = api.BaseCommand.FromString(bytes(data[at + 8:at + 8 + SIZES.unpack_from(data, at)[1]]))
        answers.replies.append((*(int(row[name]) for name in ("connection", "action", "object_id", "handle")), command))
        at += size


def _answered(answers, worker, rows, data):
    at = 0
    for _, size in rows.tolist():
        answers.answered.append(json.loads(bytes(data[at:at + size])))
        at += size


def _forgotten(answers, worker, rows, data):
    answers.forgotten += [(worker, ledger_id) for ledger_id in rows["ledger_id"].tolist()]


_READERS = {
    envelope.RECEIPTS: _receipts,
    envelope.RUNS: _runs,
    envelope.REPLIES: _replies,
    envelope.FORGET: _forgotten,
    envelope.ENTRY_LISTS: _picks,
    envelope.TRANSIENT: _passed,
    envelope.ANSWERS: _answered,
    envelope.LAYOUTS: lambda answers, worker, rows, data: None}

"""A partition's ledgers, written by the storage's code without an owner, and the messages that a compaction keeps."""
import copy
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from crc32c import crc32c

from geminga.proto import compression, sends
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage import format
from geminga.storage.jobs import confirmed, reading
from geminga.storage.jobs.compacting import nightly
from geminga.storage.ledgers import compacted_ledgers, ledger_files
from geminga.storage.ledgers.view_files import KEYS, MASK, KeyFile, read_mask

PARTITION = 7
NOW_MS = 1_700_000_000_000
_COLUMNS = "ledger_id", "entry_id", "batch_index", "key", "payload"
CODECS = [api.NONE, api.LZ4, api.ZLIB, api.ZSTD, api.SNAPPY]


def adopt_here(data_dir: Path) -> nightly.Adopt:
    """Return an adoption for a data folder that no broker serves."""
    def adopt(partition_id: int, topic: str, number: int) -> None:
        folder = format.partition_folder(data_dir, partition_id)
        compacted_ledgers.adopt(folder, number)
        compacted_ledgers.remove_unused(folder, [number])
    return adopt


@dataclass(frozen=True)
class Message:
    key: str | None
    payload: bytes
    is_null: bool = False            # marked null_value
    event_time: int = 0              # ms; 0: none

    @property
    def is_tombstone(self):
        return self.is_null or not self.payload

    def fields(self):
        key = {} if self.key is None else {"partition_key": self.key}
        time = {"event_time": self.event_time} if self.event_time else {}
        return key | time | ({"null_value": True} if self.is_null else {})


def sealed(metadata: api.MessageMetadata, payload: bytes) -> bytes:
    """Return an entry of this metadata and payload, with its checksum."""
    head = metadata.SerializeToString()
    content = struct.pack(">I", len(head)) + head + payload
    return b"\x0e\x01" + struct.pack(">I", crc32c(content)) + content


def metadata_of(codec=api.NONE, size=0, **fields) -> api.MessageMetadata:
    found = api.MessageMetadata(**{"producer_name": "p", "sequence_id": 1, "publish_time": NOW_MS} | fields)
    if codec != api.NONE:
        found.compression, found.uncompressed_size = codec, size
    return found


def single(message: Message, codec=api.NONE, **fields) -> bytes:
    return sealed(metadata_of(codec, len(message.payload), **message.fields(), **fields),
                  compression.compress(codec, message.payload))


def batch(messages, codec=api.NONE, **fields) -> bytes:
    body = b""
    for message in messages:
        one = api.SingleMessageMetadata(payload_size=len(message.payload), **message.fields()).SerializeToString()
        body += struct.pack(">I", len(one)) + one + message.payload
    return sealed(metadata_of(codec, len(body), num_messages_in_batch=len(messages), **fields),
                  compression.compress(codec, body))


class Topic:
    """One partition of a data folder."""

    def __init__(self, data_dir: Path, partition_id: int = PARTITION, first_ledger: int = 10):
        self.data_dir, self.partition_id = data_dir, partition_id
        self.folder = format.partition_folder(data_dir, partition_id)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.next_ledger, self.next_message, self.now_ms = first_ledger, 0, NOW_MS
        self.ledger = None
        self.expected = []           # (Message, id), as they were published
        self.roll()

    @property
    def target(self):
        return nightly.Target(self.partition_id, f"persistent://public/default/t{self.partition_id}")

    def moved(self, data_dir: Path):
        """Return the same topic in a copy of the data folder, to be compacted and read there."""
        other = copy.copy(self)
        other.data_dir, other.folder = data_dir, format.partition_folder(data_dir, self.partition_id)
        return other

    def roll(self):
        """Begin a new ledger."""
        if self.ledger is not None:
            self.ledger.seal()
        self.ledger = ledger_files.create(self.folder, self.partition_id, self.next_ledger,
                                          first_message=self.next_message,
                                    created_ms=self.now_ms)
        self.next_ledger += 1

    def add(self, entry: bytes, is_chunk=False):
        """Append an entry, and return its position."""
        row = np.array([sends.read_one(api.CommandSend(producer_id=1, sequence_id=1, is_chunk=is_chunk), entry)],
                       sends.SEND_ROW)
        row["offset"], row["message_index"], row["broker_time"] = self.ledger.size, self.next_message, self.now_ms
        found = np.zeros(1, format.INDEX_ROW)
        for name in format.INDEX_ROW.names:
            found[name] = row[name]
        return self.add_rows(found, [entry])

    def add_rows(self, rows, entries):
        """Append entries with their index rows, and complete their offsets.  Return the first position."""
        at = self.ledger.entries
        rows["checksum"] = 0
        rows["checksum"] = format.row_checksums(rows, self.ledger.ledger_id,
                                                np.arange(at, at + len(rows), dtype=np.uint64))
        size = sum(map(len, entries))
        self.ledger.reserve(len(rows), size)
        self.ledger.write(entries, self.ledger.size)
        self.ledger.append(rows, self.ledger.size + size)
        self.next_message += int(rows["messages"].sum())
        return self.ledger.ledger_id, at

    def publish(self, message: Message, codec=api.NONE, **fields):
        position = self.add(single(message, codec, **fields))
        self.expected.append((message, (*position, None)))

    def publish_batch(self, messages, codec=api.NONE, **fields):
        position = self.add(batch(messages, codec, **fields))
        self.expected += [(message, (*position, number)) for number, message in enumerate(messages)]

    def publish_chunks(self, message: Message, pieces: int, uuid: str, up_to: int | None = None):
        """Append a message in chunks, only those before `up_to` if it is given."""
        size = -(-len(message.payload) // pieces)
        for number in range(pieces if up_to is None else up_to):
            part = message.payload[number * size:(number + 1) * size]
            position = self.add(sealed(metadata_of(uuid=uuid, num_chunks_from_msg=pieces, chunk_id=number,
                                                   total_chunk_msg_size=len(message.payload), **message.fields()),
                                                   part), is_chunk=True)
        if up_to is None:
            self.expected.append((message, (*position, None)))

    # -- compaction

    def compact(self, engine=None, **more):
        """Compact the partition, and return the report."""
        target = nightly.Target(self.partition_id, self.target.topic, **more)
        return nightly.compact(self.data_dir, target, adopt_here(self.data_dir), engine)

    def view(self):
        return compacted_ledgers.open_view(self.folder)

    def newest(self, retains_keyless=False, *, by_event_time=False):
        """Return {id: (key, payload)} that a view should have after one compaction."""
        last = {}
        for message, position in self.expected:
            key = message.key if message.key is not None else position
            if not by_event_time or key not in last or message.event_time >= last[key][0].event_time:
                last[key] = message, position
        return {position: (message.key, message.payload) for message, position in last.values()
                if (retains_keyless if message.key is None else not message.is_tombstone)}

    def contents(self):
        """Check the view, and return {id: (key, payload)} of its messages."""
        self.check()
        return self.read(confirmed.current_view(self.data_dir, self.partition_id))

    def read(self, view=0):
        """Return {id: (key, payload)} of all messages, or of those in a view."""
        found, damage = {}, []
        for stretch in confirmed.stretches(self.data_dir, self.partition_id, view=view):
            if stretch.view == view:
                for some in reading.batches(self.data_dir, stretch, _COLUMNS, damage.append):
                    columns = [column.to_pylist() for column in some.columns]
                    for ledger_id, entry_id, index, key, payload in zip(*columns, strict=True):
                        found[ledger_id, entry_id, index] = key, payload
        assert damage == []
        return found

    def check(self):
        """Assert that the view's entries are whole at their rows' offsets, and that the manifest counts them right."""
        view = self.view()
        for part, found in zip(view.manifest.parts, view.ledgers, strict=True):
            data = format.ledger_path(view.folder, part.ledger_id).read_bytes()
            rows = compacted_ledgers.read_rows(format.index_path(view.folder, part.ledger_id), part.kept)
            assert len(found.rows) == part.kept - part.gone > 0 and len(rows) == part.kept and not found.damage
            assert (np.diff(rows["entry_id"].astype(np.int64)) > 0).all() and rows["entry_id"][-1] < part.entries
            assert set(found.kept.tolist()) <= set(rows["entry_id"].tolist())
            at, messages = format.HEADER_SIZE, 0
            for row in rows:
                entry_id, offset, size = (int(row[name]) for name in ("entry_id", "offset", "size"))
                assert offset == at
                entry = data[offset:offset + size]
                assert crc32c(entry[6:]) == int.from_bytes(entry[2:6], "big") == int(row["crc32c"])
                at += size + (8 * -(-int(row["messages"]) // 64) if int(row["flags"]) & format.IS_CUT else 0)
                if entry_id in found.kept:
                    messages += found.cut[entry_id].bit_count() if entry_id in found.cut else int(row["messages"])
            assert (at, messages) == (len(data), part.messages) and part.size == at - format.HEADER_SIZE
            if part.mask:
                mask = read_mask(view.folder, part.ledger_id, part.kept)
                assert mask.rows.sum() == part.gone and not mask.rows[mask.cut["row"]].any()
                assert len(np.unique(mask.cut)) == len(mask.cut)
            keys = KeyFile(view.folder, part.ledger_id, lambda size: None)
            keys.check()
            assert len(keys.words()[1]) == keys.rows == part.kept
        assert sorted(path.name for path in view.folder.iterdir()) == sorted(
            ["view", *(f"{part.ledger_id}{suffix}" for part in view.manifest.parts
                       for suffix in (".ledger", ".index", KEYS, *([MASK] if part.mask else [])))])

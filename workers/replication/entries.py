"""MESSAGE frames of a worker -> SEND frames for another cluster, many at once as arrays.

    MESSAGE   total size 08 09 4a .. 08 CONSUMER 12 .. 08 LEDGER 10 ENTRY ..
              0e01 CRC32C metadata-size METADATA payload
    SEND      total size 08 06 32 .. 08 PRODUCER 10 SEQUENCE [18 COUNT]
              0e01 CRC32C metadata-size ADDED METADATA payload

ADDED are the fields `replicated_from` and the property that names the entry's position here.  They stand before the
metadata's own fields, so the bytes from METADATA on are copied as they lie.  The new checksum is the old one, changed
by what the bytes before METADATA change (proto/checksums.py).  An entry that was damaged here stays damaged, and the
other cluster refuses it.

Entries whose metadata have to change go one by one: those of transactions, those with `replicate_to`, and those that
have a property of that name already.  So do markers of replicated subscriptions, whose SEND says that they are
markers; in place of a sequence id it has their position, which comes back in the receipt.  A run of few entries goes
one by one too.  Both ways give the same entries.
"""
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from crc32c import crc32c
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from geminga.proto import checksums, frames, metadata, varints
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.frames import CHECKSUM_END, MAGIC_BYTES, SIZE, SIZES
from geminga.proto.metadata import ABSENT, Field
from geminga.proto.names import ENTRY_BITS, POSITION_PROPERTY, SENT_MARKERS
from geminga.proto.rows import interleave, words_at_each_byte
from geminga.workers.replication.frames import Bytes, Places, Unreadable, alike

FEW_MAX = 12                 # entries that are cheaper to rewrite one by one
_METADATA_AT = CHECKSUM_END + 4
_FIELDS = (
    Field("sequence_id", 2), Field("properties", 4, is_bytes=True, is_repeated=True),
    Field("replicated_from", 5, is_bytes=True), Field("replicate_to", 7, is_bytes=True, is_repeated=True),
    Field("messages", 11, maximum=(1 << 31) - 1, default=ABSENT), Field("schema_version", 16, is_bytes=True),
    Field("marker_type", 20, default=ABSENT), Field("txnid_least_bits", 22, default=ABSENT),
    Field("txnid_most_bits", 23, default=ABSENT), Field("chunks", 27))
_TRANSACTION: tuple[Literal["txnid_least_bits"], Literal["txnid_most_bits"]] = "txnid_least_bits", "txnid_most_bits"
_PROPERTY_KEY = b"\x0a" + bytes((len(POSITION_PROPERTY),)) + POSITION_PROPERTY.encode()
_PROPERTY_WORD = np.uint64(int.from_bytes(_PROPERTY_KEY[:8], "little"))
_MAGIC = np.uint64(int.from_bytes(MAGIC_BYTES, "little"))
_VERSION_SIZE = 8            # bytes of a schema version, of every Pulsar broker
_COMMAND_MAX = 64            # bytes of a SEND command
_ADDED_MAX = 1_024           # bytes of ADDED; entries this near to the limit are rewritten one by one
_POWERS = np.array([10 ** digit for digit in range(1, 20)], np.uint64)
_TEN_THOUSAND = np.uint64(10_000)
# (10_000, 4): the characters of each number of four digits.
_FOUR_DIGITS = (np.arange(10_000)[:, None] // (1_000, 100, 10, 1) % 10 + ord("0")).astype(np.uint8)


class Run(NamedTuple):
    """MESSAGE frames of one consumer and one ledger that came one behind the other."""

    consumer_id: int
    ledger_id: int
    entries: NDArray[np.uint64]      # (n,) ids, ascending
    begins: Places                   # (n,) where each stored entry begins
    ends: Places                     # (n,)


class UnknownSchema(Exception):
    """An entry has a schema version for which the other cluster's is not known yet."""

    def __init__(self, version: bytes) -> None:
        super().__init__(version.hex())
        self.version = version


class CannotSend(Exception):
    """An entry cannot be sent to the other cluster; the text gives the reason."""


class Rewritten(NamedTuple):
    """SEND frames of the first entries of a run, and why the next one is not among them."""

    pieces: list[bytes | memoryview]
    taken: int                       # entries of the run that were sent or left out
    is_sent: NDArray[np.bool_]       # (taken,)
    messages: int                    # in all entries that were taken
    messages_sent: int
    obstacle: UnknownSchema | CannotSend | None


# -- reading

def runs(data: Bytes, starts: Places, ends: Places) -> Iterator[Run]:
    """Yield runs of MESSAGE frames, in order.  starts, ends: (n,) the frames' places in data.  Raises Unreadable."""
    at, count = 0, len(starts)
    words = words_at_each_byte(data)
    while at < count:
        first = int(starts[at])
        size = SIZES.unpack_from(data, first)[1]
        try:
            message = api.BaseCommand.FromString(data[first + 8:first + 8 + size].tobytes()).message
        except DecodeError:
            raise Unreadable("a MESSAGE that cannot be parsed") from None
        identity, stop = message.message_id, at + 1
        place = _entry_id_place(data, first + 8) if count - at > FEW_MAX else None
        if place is not None:
            stop = at + max(1, _similar(data, starts[at:], ends[at:], size, *place))
        entries = np.array([identity.entryId], np.uint64) if stop == at + 1 or place is None else \
            varints.read_words(words[starts[at:stop] + (8 + place[0])], place[1])
        yield Run(message.consumer_id, identity.ledgerId, entries, starts[at:stop] + (8 + size), ends[at:stop])
        at = stop


def _entry_id_place(data: Bytes, at: int) -> tuple[int, int] | None:
    """Return (offset, bytes) of the entry id's varint in the MESSAGE command at `at`; None if its layout is unusual."""
    head = data[at:at + 64].tobytes()
    try:
        _, place = varints.decode(head, 3)               # behind 08 09 4a
        _, place = varints.decode(head, place + 1)       # the consumer's id
        _, place = varints.decode(head, place + 1)       # the size of the message id
        _, place = varints.decode(head, place + 1)       # the ledger
        tag, place = head[place], place + 1
        _, end = varints.decode(head, place)
    except (IndexError, ValueError):
        return None
    return (place, end - place) if head[:3] == b"\x08\x09\x4a" and tag == 0x10 and end - place <= 8 else None


def _similar(data: Bytes, starts: Places, ends: Places, size: int, place: int, width: int) -> int:
    """Return how many frames have a command that differs from the first one's in the value of the entry id alone."""
    tight = np.full(8 + size, 255, np.uint8)
    tight[:4] = 0      # the frames' sizes
    tight[8 + place:8 + place + width] = 128      # the value of a varint may differ, its length may not
    return alike(data, starts, ends, tight)


# -- rewriting

class Rewriter:
    """Makes SEND frames of one producer from entries of one partition."""

    def __init__(self, own: str, remote: str, producer_id: int, message_size_max: int) -> None:
        """own, remote: names of the clusters.  message_size_max: as the remote says.

        A message of nearly that size may exceed it by ADDED.  Brokers take frames that are somewhat larger, and whether
        they take the message is for them to say.
        """
        self._remote, self._producer = remote, b"\x08" + varints.encode(producer_id)
        self._source = b"\x2a" + varints.encode(len(own.encode())) + own.encode()
        self._size_max = frames.frame_size_max(message_size_max) - _COMMAND_MAX
        self.schemas: dict[bytes, bytes] = {}      # schema version here -> at the remote

    def rewrite(self, data: Bytes, run: Run) -> Rewritten:
        """Return SEND frames of a run's entries, up to the first one that cannot be sent now.

        data: writable; schema versions are replaced in it.
        """
        result = _Result()
        if len(run.entries) > FEW_MAX:
            self._rewrite_many(data, run, result)
        else:
            self._rewrite_few(data, run, 0, len(run.entries), result)
        is_sent = np.concatenate(result.is_sent) if result.is_sent else np.empty(0, bool)
        return Rewritten(result.pieces, len(is_sent), is_sent, result.messages, result.messages_sent, result.obstacle)

    # -- one by one

    def _rewrite_few(self, data: Bytes, run: Run, first: int, stop: int, result: "_Result") -> None:
        """Rewrite entries first .. stop - 1 of the run one by one."""
        sent = []
        view = memoryview(data)
        for number in range(first, stop):
            entry = bytes(view[int(run.begins[number]):int(run.ends[number])])
            try:
                frame, messages = self.rewrite_one(entry, run.ledger_id, int(run.entries[number]))
            except (UnknownSchema, CannotSend) as obstacle:
                result.obstacle = obstacle
                break
            result.messages += messages
            if frame:
                result.pieces.append(frame)
                result.messages_sent += messages
            sent.append(bool(frame))
        result.is_sent.append(np.array(sent, bool))

    def rewrite_one(self, entry: bytes, ledger_id: int, entry_id: int) -> tuple[bytes, int]:
        """Return (the SEND frame of an entry, b"" for one that is not to be sent; its number of messages).

        Raises UnknownSchema, CannotSend.
        """
        entry = frames.with_checksum(entry)
        try:
            size = SIZE.unpack_from(entry, CHECKSUM_END)[0]
            meta = api.MessageMetadata.FromString(entry[_METADATA_AT:_METADATA_AT + size])
        except Exception as error:      # struct.error, DecodeError
            raise CannotSend(f"entry {ledger_id}:{entry_id} is damaged: {error}") from None
        is_marker = meta.HasField("marker_type")
        messages = 0 if is_marker else max(1, meta.num_messages_in_batch)
        if meta.HasField("replicated_from") or (is_marker and meta.marker_type not in SENT_MARKERS) or \
                (meta.replicate_to and self._remote not in meta.replicate_to):
            return b"", messages
        own, rest = entry[_METADATA_AT:_METADATA_AT + size], entry[_METADATA_AT + size:]
        if self._change(meta):
            own = meta.SerializeToString()
        added = self._added(ledger_id, str(entry_id).encode())
        checked = SIZE.pack(len(added) + len(own)) + added + own + rest
        if len(checked) + CHECKSUM_END > self._size_max:
            raise CannotSend(_too_large(len(checked) + CHECKSUM_END, self._size_max, f"{ledger_id}:{entry_id}"))
        # A checksum that was wrong stays wrong.
        damage = crc32c(entry[CHECKSUM_END:]) ^ SIZE.unpack_from(entry, 2)[0]
        sequence_id = ledger_id << ENTRY_BITS | entry_id if is_marker else meta.sequence_id
        body = self._producer + b"\x10" + varints.encode(sequence_id)
        if meta.HasField("num_messages_in_batch"):
            body += b"\x18" + varints.encode(messages)
        if meta.num_chunks_from_msg > 1:
            body += b"\x38\x01"
        if is_marker:
            body += b"\x40\x01"
        command = b"\x08\x06\x32" + varints.encode(len(body)) + body
        return b"".join((SIZES.pack(4 + len(command) + CHECKSUM_END + len(checked), len(command)), command, MAGIC_BYTES,
                         SIZE.pack(crc32c(checked) ^ damage), checked)), messages

    def _change(self, meta: api.MessageMetadata) -> bool:
        """Take out of the metadata what must not reach the remote; return whether they have changed.

        Raises UnknownSchema.
        """
        is_changed = False
        if meta.HasField("schema_version"):
            there = self._schema(meta.schema_version)
            is_changed = there != meta.schema_version
            meta.schema_version = there
        for field in _TRANSACTION:
            if meta.HasField(field):
                meta.ClearField(field)
                is_changed = True
        if any(one.key == POSITION_PROPERTY for one in meta.properties):
            kept = [one for one in meta.properties if one.key != POSITION_PROPERTY]
            del meta.properties[:]
            meta.properties.extend(kept)
            is_changed = True
        return is_changed

    def _schema(self, version: bytes) -> bytes:
        there = self.schemas.get(version)
        if there is None:
            raise UnknownSchema(version)
        return there

    def _added(self, ledger_id: int, entry_id: bytes) -> bytes:
        """Return ADDED for an entry, given the digits of its id, which are the last bytes."""
        value = b"%d:" % ledger_id + entry_id
        both = _PROPERTY_KEY + b"\x12" + varints.encode(len(value)) + value
        return self._source + b"\x22" + varints.encode(len(both)) + both

    # -- as arrays

    def _rewrite_many(self, data: Bytes, run: Run, result: "_Result") -> None:
        """Rewrite all entries of the run, in stretches that are alike."""
        entries = _Entries(data, run, self._size_max)
        count = self._look_at_schemas(data, entries, result)
        is_special = entries.is_special[:count]
        kinds = np.searchsorted(_POWERS, run.entries[:count], side="right") * 4      # by the digits of their ids
        kinds += 2 * is_special + (entries.counts[:count] == ABSENT)
        borders = (np.flatnonzero(kinds[1:] != kinds[:-1]) + 1).tolist()
        obstacle, result.obstacle = result.obstacle, None
        for first, stop in pairwise((0, *borders, count)):
            if stop - first <= FEW_MAX or is_special[first]:
                self._rewrite_few(data, run, first, stop, result)
            else:
                self._rewrite_stretch(data, run, entries, slice(first, stop), result)
            if result.obstacle is not None:
                return
        result.obstacle = obstacle

    def _look_at_schemas(self, data: Bytes, entries: "_Entries", result: "_Result") -> int:
        """Note which schema versions differ at the remote, and return how many entries may be sent.

        An entry is rewritten one by one if its version does not have eight bytes on both sides.
        """
        count = len(entries.at)
        spans = entries.columns.spans.get("schema_version")
        if spans is None:
            return count
        begins, ends = spans
        has_version = (begins >= 0) & ~entries.is_special & ~entries.is_skipped
        entries.is_special |= has_version & (ends - begins != _VERSION_SIZE)
        rows = np.flatnonzero(has_version & ~entries.is_special)
        versions = words_at_each_byte(data)[begins[rows]]
        for version in np.unique(versions).tolist():
            ours = version.to_bytes(_VERSION_SIZE, "little")
            chosen, theirs = rows[versions == version], self.schemas.get(ours)
            if theirs is None:
                if chosen[0] < count:
                    count, result.obstacle = int(chosen[0]), UnknownSchema(ours)
            elif len(theirs) != _VERSION_SIZE:
                entries.is_special[chosen] = True
            elif theirs != ours:
                entries.schemas.append((ours, theirs, chosen, begins[chosen]))
        return count

    def _rewrite_stretch(self, data: Bytes, run: Run, entries: "_Entries", stretch: slice, result: "_Result") -> None:
        """Rewrite entries that are alike: none special, all or none batches, with ids of equally many digits."""
        entries.replace_schemas(data, stretch)
        sent = ~entries.is_skipped[stretch]
        result.is_sent.append(sent)
        messages = entries.messages[stretch]
        result.messages += int(messages.sum())
        if not sent.any():
            return
        chosen = stretch if sent.all() else stretch.start + np.flatnonzero(sent)
        result.messages_sent += int(entries.messages[chosen].sum())
        at, following = entries.at[chosen], entries.ends[chosen] - entries.at[chosen]
        is_equal = bool((following == following[0]).all())
        heads = self._heads(run, entries, chosen, following[:1] if is_equal else following)
        count, width = heads.shape
        heads[:, :4] = (following + (width - 4)).astype(">u4").view(np.uint8).reshape(count, 4)
        stride = int(at[1] - at[0]) if count > 1 else 0
        if is_equal and stride and (at[1:] - at[:-1] == stride).all():
            size = int(following[0])
            block = np.empty((count, width + size), np.uint8)
            block[:, :width] = heads
            block[:, width:] = np.ndarray((count, size), np.uint8, data, int(at[0]), (stride, 1))
            result.pieces.append(block.data.cast("B"))
            return
        result.pieces.append(interleave(heads, memoryview(data), at, entries.ends[chosen]))

    def _heads(self, run: Run, entries: "_Entries", chosen: "slice | NDArray[np.intp]",
               following: Places) -> NDArray[np.uint8]:
        """Return the bytes before each entry's own metadata, (n, width), without the frames' sizes.

        following: (n,) or (1,) bytes from the metadata on.
        """
        ids, sequences, counts = run.entries[chosen], entries.sequence_ids[chosen], entries.counts[chosen]
        sizes = entries.sizes[chosen]
        digits = len(str(int(ids[0])))
        added = self._added(run.ledger_id, b"0" * digits)
        sequence_size = varints.length(int(sequences.max()))
        body = self._producer + b"\x10" + bytes(sequence_size)
        is_batch = bool(counts[0] != ABSENT)
        if is_batch:
            counts = np.maximum(counts, np.uint64(1))
            count_size = varints.length(int(counts.max()))
            body += b"\x18" + bytes(count_size)
        command = b"\x08\x06\x32" + varints.encode(len(body)) + body
        same_size = bool((sizes == sizes[0]).all())
        checked = SIZE.pack(int(sizes[0]) + len(added)) + added
        template = np.frombuffer(
            SIZES.pack(0, len(command)) + command + MAGIC_BYTES + bytes(4) + checked, np.uint8)
        width, behind = len(template), 8 + len(command)
        block = np.empty((len(ids), width), np.uint8)
        block[:] = template
        place = behind - len(body) + len(self._producer) + 1
        varints.stamp(block, place, sequences, sequence_size)
        if is_batch:
            varints.stamp(block, place + sequence_size + 1, counts, count_size)
        after = np.full(len(ids), crc32c(checked), np.uint32)
        for group in range(-(-digits // 4)):
            values, stop = ids // np.uint64(10_000 ** group) % _TEN_THOUSAND, width - 4 * group
            start = max(stop - 4, width - digits)
            block[:, start:stop] = _FOUR_DIGITS[values][:, start - stop:]
            after ^= _changes_of_digits(group)[values]
        before = np.full(len(ids), crc32c(SIZE.pack(int(sizes[0]))), np.uint32)
        if not same_size:
            place = behind + CHECKSUM_END
            block[:, place:place + 4] = (sizes + len(added)).astype(">u4").view(np.uint8).reshape(-1, 4)
            bits = sizes.astype(np.uint32) ^ np.uint32(sizes[0])
            for byte in range(4):
                before ^= checksums.change_of_byte(byte + 1)[bits >> np.uint32(8 * byte) & np.uint32(255)]
                column = place + 3 - byte
                after ^= checksums.change_of_byte(width - column)[block[:, column] ^ template[column]]
        new = entries.claimed[chosen] ^ checksums.change_before(after ^ before, following)
        block[:, behind + 2:behind + CHECKSUM_END] = new.astype(">u4").view(np.uint8).reshape(-1, 4)
        return block


@cache
def _changes_of_digits(group: int) -> NDArray[np.uint32]:
    """Return a table (10_000,): number -> the change of the checksum of a message, of which zeros become its digits.

    group: 0 for the last four characters of the message, 1 for the four before these.
    """
    changes = np.zeros(10_000, np.uint32)
    for column in range(4):
        place = 4 * group + 4 - column
        changes ^= checksums.change_of_byte(place)[_FOUR_DIGITS[:, column] ^ np.uint8(ord("0"))]
    return changes


class _Entries:
    """What decides how the entries of a run are rewritten, as columns (n,)."""

    def __init__(self, data: Bytes, run: Run, size_max: int) -> None:
        words, begins, self.ends = words_at_each_byte(data), run.begins, run.ends
        heads = words[begins]
        self.claimed = (heads >> np.uint64(16)).astype(np.uint32).byteswap()      # checksums
        self.sizes = words[begins + CHECKSUM_END].astype(np.uint32).byteswap().astype(np.int64)      # of the metadata
        self.at = begins + _METADATA_AT
        is_whole = ((heads & np.uint64(0xFFFF)) == _MAGIC) & (self.at + self.sizes <= self.ends)
        self.columns = columns = metadata.read(data, self.at, np.where(is_whole, self.at + self.sizes, self.at),
                                               _FIELDS)
        self.counts = columns.number("messages", ABSENT)
        self.messages = np.maximum(np.where(self.counts == ABSENT, np.uint64(1), self.counts), np.uint64(1))
        self.sequence_ids = columns.number("sequence_id")
        self.is_special = columns.odd | ~is_whole | columns.has("replicate_to")
        self.is_special |= self.ends - self.at >= checksums.LAID_OUT_MAX
        self.is_special |= self.ends - begins > size_max - _ADDED_MAX
        for name in ("txnid_least_bits", "txnid_most_bits"):
            if name in columns.numbers:
                self.is_special |= columns.numbers[name] != ABSENT
        if "chunks" in columns.numbers:
            self.is_special |= columns.numbers["chunks"] > np.uint64(1)
        if "properties" in columns.repeated:
            rows, starts, _ = columns.repeated["properties"]
            self.is_special[rows[words[starts] == _PROPERTY_WORD]] = True
        # (version here, at the remote, (k,) entries with it, (k,) where it stands) of versions that differ
        self.schemas: list[tuple[bytes, bytes, NDArray[np.intp], Places]] = []
        self.is_skipped = columns.has("replicated_from")
        if "marker_type" in columns.numbers:
            self.is_special |= columns.numbers["marker_type"] != ABSENT

    def replace_schemas(self, data: Bytes, stretch: slice) -> None:
        """Replace schema versions in the bytes of a stretch by those at the remote, and change the checksums."""
        words = words_at_each_byte(data)
        for ours, theirs, rows, begins in self.schemas:
            first, stop = np.searchsorted(rows, (stretch.start, stretch.stop))
            chosen, places = rows[first:stop], begins[first:stop]
            if len(chosen):
                words[places] = int.from_bytes(theirs, "little")
                change = np.full(len(chosen), crc32c(theirs) ^ crc32c(ours), np.uint32)
                self.claimed[chosen] ^= checksums.change_before(change, self.ends[chosen] - places - _VERSION_SIZE)


class _Result:
    """The parts of a Rewritten, as they are found."""

    def __init__(self) -> None:
        self.pieces: list[bytes | memoryview] = []
        self.is_sent: list[NDArray[np.bool_]] = []
        self.messages = self.messages_sent = 0
        self.obstacle: UnknownSchema | CannotSend | None = None


def _too_large(size: int, size_max: int, position: str) -> str:
    return f"message {position} has {size} bytes there, and the remote takes {size_max}"

"""SEND frames of differing sizes -> rows, many at once: the fields of all frames are read in step.

`sends.Layout` reads frames that differ in their numbers alone, and is faster.  Here sizes, keys, properties and present
fields may differ.  A frame is `odd` when its bytes are not as clients write them, when its checksum is wrong, and when
it is of a kind that is rare or large: a chunk, a marker, a SEND in a transaction.  Odd frames are for `sends.read_one`.
Both ways give the same row for the same bytes, and a test holds them to it.
"""
import struct
from typing import NamedTuple

import numpy as np
from mmh3 import mmh3_32_uintdigest
from numpy.typing import NDArray

from geminga.proto import checksums, job_properties, metadata, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.batches import MESSAGE_MIN
from geminga.proto.compression import UNPACKED_MAX
from geminga.proto.frames import CHECKSUM_END, MAGIC_BYTES
from geminga.proto.metadata import ABSENT, Columns, Field
from geminga.proto.rows import Rows, words_at_each_byte
from geminga.proto.sends import HAS_KEY, HASH_BITS, IS_BATCH, KEPT_CHECKSUM, SEND_ROW, key_bytes, stamp

RUN_MIN = 96               # frames; fewer cost less in the library
RUN_MAX = 2_048            # frames, so that one run takes little more than one slice of a client's time
STEPS_MAX = 64             # fields that are read in step; a message with more is odd, as are others that wait for it
FRAME_MIN = 32             # bytes of the smallest SEND frame that the library accepts
_METADATA_AT = CHECKSUM_END + 4
_HEAD, _HEAD_BITS = np.uint64(int.from_bytes(b"\x08\x06\x32", "little")), np.uint64(0xFFFFFF)
_MAGIC, _MAGIC_BITS = np.uint64(int.from_bytes(MAGIC_BYTES, "little")), np.uint64(0xFFFF)
_INT32_MAX, _UINT32_MAX, _HASH_MAX = (1 << 31) - 1, (1 << 32) - 1, (1 << HASH_BITS) - 1
_COMMAND = (
    Field("producer_id", 1, default=ABSENT), Field("sequence_id", 2, default=ABSENT), Field("txnid_least_bits", 4),
    Field("txnid_most_bits", 5), Field("highest_sequence_id", 6), Field("is_chunk", 7),
    Field("message_id", 9, is_bytes=True))
_METADATA = (
    Field("producer_name", 1, is_bytes=True), Field("sequence_id", 2, default=ABSENT),
    Field("publish_time", 3, default=ABSENT), Field("properties", 4, is_bytes=True, is_repeated=True),
    Field("partition_key", 6, is_bytes=True), Field("compression", 8, maximum=4),
    Field("uncompressed_size", 9, maximum=_UINT32_MAX), Field("messages", 11, maximum=_INT32_MAX, default=ABSENT),
    Field("encryption_keys", 13, is_bytes=True, is_repeated=True), Field("key_is_base64", 17, maximum=1),
    Field("ordering_key", 18, is_bytes=True), Field("deliver_at_time", 19), Field("marker_type", 20, default=ABSENT),
    Field("chunk_count", 27), Field("compacted_batch_indexes", 31, is_bytes=True),
    Field("entry_hash_min", 33, maximum=_HASH_MAX, default=ABSENT),
    Field("entry_hash_max", 34, maximum=_HASH_MAX, default=ABSENT))
# Of a property and of an encryption key: both are required.
_PAIR = Field("key", 1, is_bytes=True), Field("value", 2, is_bytes=True)
_KEY_METADATA = Field("metadata", 3, is_bytes=True)
_DIGITS_MAX = 13           # of each number of a position
_POSITION_KEY = names.POSITION_PROPERTY.encode()
_POSITION_WORDS = [(at, np.uint64(int.from_bytes(_POSITION_KEY[at:at + 8], "little")))
                   for at in (0, 8, 16, len(_POSITION_KEY) - 8)]
_TTL_KEY = job_properties.TTL_PROPERTY.encode()
_TTL_WORDS = [(at, np.uint64(int.from_bytes(_TTL_KEY[at:at + 8], "little"))) for at in (0, len(_TTL_KEY) - 8)]
_PRIORITY_KEY = job_properties.PRIORITY_PROPERTY.encode()
_PRIORITY_WORDS = [(at, np.uint64(int.from_bytes(_PRIORITY_KEY[at:at + 8], "little"))) for at in (0, 8)]
# Words of eight characters, the last of which is the highest byte.
_LAST_BYTES = np.array([(1 << 64) - (1 << 8 * (8 - count)) for count in range(9)], np.uint64)      # bits of so many
_LOWS, _TOPS, _COLONS, _DIGITS = (np.uint64(int.from_bytes(bytes((byte,)) * 8, "little")) for byte in (1, 128, 58, 48))
_ABOVE_NINE = _LOWS * np.uint64(127 - 9)
_ONE, _TEN, _HUNDRED_MILLION = map(np.uint64, (1, 10, 10 ** 8))
_PAIRS, _WEIGHTS, _WEIGHTS_BEHIND = map(np.uint64, (0xFF000000FF, 100 + (10 ** 6 << 32), 1 + (10 ** 4 << 32)))
_LEDGER_MAX, _ENTRY_MAX, _ENTRY_BITS = map(np.uint64, (names.LEDGER_MAX, names.ENTRY_MAX, names.ENTRY_BITS))
_TOTAL_AND_KIND = struct.Struct(">I5xB")
_SEND = api.BaseCommand.Type.SEND


class MixedSends(NamedTuple):
    """SENDs that came one behind the other."""

    rows: Rows                       # (n,) SEND_ROW, with 0 in fields that are filled in later; undefined if odd
    data: memoryview                 # their entries, one behind the other; rows["offset"] has their places
    odd: NDArray[np.bool_]           # (n,)


def find(data: memoryview, at: int, end: int, total_max: int, count_max: int) -> list[int]:
    """Return where SEND frames begin that follow each other from `at` on, and behind them where the last one ends.

    They are at most RUN_MAX and count_max whole frames in data[:end], of FRAME_MIN bytes or more, each with a total of
    at most total_max.
    """
    places, unpack, last = [at], _TOTAL_AND_KIND.unpack_from, end - FRAME_MIN
    for _ in range(min(count_max, RUN_MAX)):
        if at > last:
            break
        total, kind = unpack(data, at)
        if kind != _SEND or not FRAME_MIN - 4 <= total <= total_max or at + 4 + total > end:
            break
        at += 4 + total
        places.append(at)
    return places


def read(buffer: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64], *,
         reads_positions: bool) -> MixedSends:
    """Read frames buffer[start:end] of at least FRAME_MIN bytes, the first ones (n,) of which are SENDs.

    reads_positions: whether to look for positions in a source cluster.  Frames from the first one on that is no SEND,
    or whose command would end behind the frame, are left out.
    """
    words = words_at_each_byte(buffer)
    heads = words[starts + 4]
    command_ends = starts + 8 + heads.astype(np.uint32).byteswap()
    is_send = (command_ends <= ends) & (words[starts + 8] & _HEAD_BITS == _HEAD)
    if not is_send.all():
        count = int(is_send.argmin())
        starts, ends, command_ends = starts[:count], ends[:count], command_ends[:count]
    rows: Rows = np.zeros(len(starts), SEND_ROW)
    odd = _read_commands(buffer, starts, ends, command_ends, rows)
    view = memoryview(buffer)
    pieces = [view[start:end] for start, end in zip(command_ends.tolist(), ends.tolist(), strict=True)]
    entries = bytearray().join([*pieces, bytes(metadata.PAD)])
    rows["size"] = sizes = ends - command_ends
    rows["offset"] = begins = np.cumsum(sizes) - sizes
    _read_entries(np.frombuffer(entries, np.uint8), begins, begins + sizes, rows, odd, reads_positions)
    return MixedSends(rows, memoryview(entries)[:-metadata.PAD], odd)


def _read_commands(buffer: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64],
                   command_ends: NDArray[np.int64], rows: Rows) -> NDArray[np.bool_]:
    """Fill in the rows' fields that commands tell; return which frames (n,) are odd."""
    begins, sizes = starts + 12, buffer[starts + 11]      # of a CommandSend, whose size takes one byte
    odd: NDArray[np.bool_] = (sizes > 127) | (begins + sizes != command_ends) | (ends - command_ends < _METADATA_AT)
    if odd.any():
        begins, command_ends = np.where(odd, 0, begins), np.where(odd, 0, command_ends)
    columns = metadata.read(buffer, begins, command_ends, _COMMAND, steps_max=STEPS_MAX)
    odd |= columns.odd
    for name in ("producer_id", "sequence_id"):
        rows[name] = values = columns.number(name, ABSENT)
        odd |= values == ABSENT
    if "highest_sequence_id" in columns.numbers:
        rows["highest_sequence_id"] = columns.numbers["highest_sequence_id"]
    for name in ("txnid_least_bits", "txnid_most_bits", "is_chunk"):
        if name in columns.numbers:
            odd |= columns.numbers[name] != 0
    odd |= columns.has("message_id")
    return odd


def _read_entries(data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64], rows: Rows,
                  odd: NDArray[np.bool_], reads_positions: bool) -> None:
    """Fill in the rows' fields that entries tell, and mark those in `odd` (n,) that are so."""
    words = words_at_each_byte(data)
    at = np.where(odd, 0, begins) if odd.any() else begins
    heads, sizes = words[at], words[at + CHECKSUM_END].astype(np.uint32).byteswap().astype(np.int64)
    stops = at + (_METADATA_AT + sizes)
    odd |= (heads & _MAGIC_BITS != _MAGIC) | (stops > ends)
    rows["crc32c"] = claimed = (heads >> np.uint64(16)).astype(np.uint32).byteswap()
    odd[checksums.wrong_entries(data, begins, ends, claimed)] = True
    at = at + _METADATA_AT
    if odd.any():
        at, stops = np.where(odd, 0, at), np.where(odd, 0, stops)
    columns = metadata.read(data, at, stops, _METADATA, steps_max=STEPS_MAX)
    odd |= columns.odd | ~columns.has("producer_name") | (columns.number("sequence_id", ABSENT) == ABSENT)
    publish_times = columns.number("publish_time", ABSENT)
    odd |= publish_times == ABSENT
    rows["publish_time"], rows["deliver_at"] = publish_times, columns.number("deliver_at_time")
    if "marker_type" in columns.numbers:
        odd |= columns.numbers["marker_type"] != ABSENT
    if "chunk_count" in columns.numbers:
        odd |= columns.numbers["chunk_count"] > _ONE
    odd |= columns.has("compacted_batch_indexes")      # the library reads the numbers in it
    rows["flags"] = KEPT_CHECKSUM
    _read_counts(columns, ends - stops, rows, odd)
    _read_keys(data, columns, rows, odd)
    if "entry_hash_min" in columns.numbers:
        _read_stamps(columns, rows)
    _read_pairs(data, columns, rows, odd, reads_positions)


def _read_counts(columns: Columns, payloads: NDArray[np.int64], rows: Rows, odd: NDArray[np.bool_]) -> None:
    """Fill in how many messages entries hold.  Entries that may claim too many are odd; payloads: (n,) their bytes."""
    rows["messages"] = 1
    counts = columns.numbers.get("messages")
    if counts is None:
        return
    is_batch = counts != ABSENT
    rows["flags"][is_batch] |= IS_BATCH
    rows["messages"] = messages = np.maximum(np.where(is_batch, counts, 1), 1).astype(np.int64)
    unpacked = np.minimum(columns.number("uncompressed_size"), UNPACKED_MAX).astype(np.int64)
    room = np.where(columns.number("compression") != 0, np.maximum(unpacked, payloads), payloads)
    odd |= (messages > 1) & (messages * MESSAGE_MIN > room)


def _read_keys(data: NDArray[np.uint8], columns: Columns, rows: Rows, odd: NDArray[np.bool_]) -> None:
    """Fill in the hashes of keys; an ordering key counts before the key."""
    spans = [columns.spans[name] for name in ("partition_key", "ordering_key") if name in columns.spans]
    if not spans:
        return
    begins, ends = spans[0]
    for begin, end in spans[1:]:
        begins, ends = np.where(begin >= 0, begin, begins), np.where(begin >= 0, end, ends)
    has_key = (begins >= 0) & ~odd
    chosen = np.flatnonzero(has_key)
    view = memoryview(data)
    hashes = [mmh3_32_uintdigest(view[begin:end])
              for begin, end in zip(begins[chosen].tolist(), ends[chosen].tolist(), strict=True)]
    if "key_is_base64" in columns.numbers:
        is_base64 = (columns.numbers["key_is_base64"] != 0) & has_key & ~columns.has("ordering_key")
        for place in np.flatnonzero(is_base64[chosen]).tolist():
            key = bytes(view[begins[chosen[place]]:ends[chosen[place]]])
            hashes[place] = mmh3_32_uintdigest(key_bytes(key, is_base64=True))
    rows["key_hash"][chosen] = np.array(hashes, np.uint32) & np.uint32(0x7FFFFFFF)
    rows["flags"][chosen] |= HAS_KEY


def _read_stamps(columns: Columns, rows: Rows) -> None:
    """Put stamps into the place of hashes of keys."""
    lowest, highest = columns.numbers["entry_hash_min"], columns.number("entry_hash_max", ABSENT)
    for place in np.flatnonzero(lowest != ABSENT).tolist():
        low, high = int(lowest[place]), int(lowest[place] if highest[place] == ABSENT else highest[place])
        rows["key_hash"][place] = stamp(low, high, int(rows["key_hash"][place]))


def _read_pairs(data: NDArray[np.uint8], columns: Columns, rows: Rows, odd: NDArray[np.bool_],
                reads_positions: bool) -> None:
    """Mark messages odd of which a property or an encryption key lacks a required field; fill in source positions."""
    if "encryption_keys" in columns.repeated:
        owners, begins, ends = columns.repeated["encryption_keys"]
        pairs = metadata.read(data, begins, ends, (*_PAIR, _KEY_METADATA), steps_max=STEPS_MAX)
        odd[owners[pairs.odd | ~pairs.has("key") | ~pairs.has("value") | pairs.has("metadata")]] = True
    if "properties" not in columns.repeated:
        return
    owners, begins, ends = columns.repeated["properties"]
    pairs = metadata.read(data, begins, ends, _PAIR, steps_max=STEPS_MAX)
    odd[owners[pairs.odd | ~pairs.has("key") | ~pairs.has("value")]] = True
    keys, values = pairs.spans.get("key"), pairs.spans.get("value")
    if keys is None or values is None or pairs.odd.all():
        return
    if reads_positions:
        _read_positions(data, owners, keys, values, rows)
    _read_priorities(data, owners, keys, values, rows)
    odd[owners[_last_of_name(data, owners, keys, len(_TTL_KEY), _TTL_WORDS)]] = True      # the library reads them


def _read_positions(data: NDArray[np.uint8], owners: NDArray[np.int64], keys: tuple[NDArray[np.int64], ...],
                    values: tuple[NDArray[np.int64], ...], rows: Rows) -> None:
    """Fill in `entry_id` of messages with a property that names their position in the source cluster.

    It is 1 + the position, or 0 for a text that is no position.  Of several such properties the last one counts.

    owners: (k,) the properties' messages, in order.  keys, values: where each key and value begins and ends.
    """
    named = _last_of_name(data, owners, keys, len(_POSITION_KEY), _POSITION_WORDS)
    if len(named):
        rows["entry_id"][owners[named]] = positions(data, values[0][named], values[1][named])


def _read_priorities(data: NDArray[np.uint8], owners: NDArray[np.int64], keys: tuple[NDArray[np.int64], ...],
                     values: tuple[NDArray[np.int64], ...], rows: Rows) -> None:
    """Fill in the bits of `flags` of messages with a property that names their priority; see `_read_positions`."""
    named = _last_of_name(data, owners, keys, len(_PRIORITY_KEY), _PRIORITY_WORDS)
    if not len(named):
        return
    digits = data[values[0][named]].astype(np.int64) - ord("0")
    is_priority = (values[1][named] - values[0][named] == 1) & (digits >= 0) & (digits < job_properties.PRIORITIES)
    flags = digits[is_priority] + 1 << job_properties.PRIORITY_SHIFT
    rows["flags"][owners[named[is_priority]]] |= flags.astype(np.uint32)


def _last_of_name(data: NDArray[np.uint8], owners: NDArray[np.int64], keys: tuple[NDArray[np.int64], ...], size: int,
                  name: list[tuple[int, np.uint64]]) -> NDArray[np.intp]:
    """Return which (n,) of the properties (k,) have a name, the last one of each message that has it.

    size: bytes of the name.  name: words of it, each with its place.
    """
    words = words_at_each_byte(data)
    named = np.flatnonzero(keys[1] - keys[0] == size)
    for at, word in name:
        named = named[words[keys[0][named] + at] == word]
    is_last = np.append(owners[named][1:] != owners[named][:-1], len(named) > 0)[:len(named)]
    last: NDArray[np.intp] = named[is_last]
    return last


def positions(data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return 1 + the positions (n,) that the texts data[begin:end] name, 0 for a text that names none; see
    names.parse_position.

    16 bytes before each text are looked at too.
    """
    words = words_at_each_byte(data)
    tails = words[ends - 8] & _LAST_BYTES[np.minimum(ends - begins, 8)]
    unlike = tails ^ _COLONS
    marks = (unlike - _LOWS) & ~unlike & _TOPS      # the top bit of the byte that is a colon
    digits = np.int64(7) - (np.bitwise_count((marks & (~marks + _ONE)) - _ONE) >> 3)      # behind the first colon
    colons = ends - 1 - digits
    ledger_ids, has_ledger = _numbers(words, colons, colons - begins)
    entry_ids, has_entry = _numbers(words, ends, digits)
    is_accepted = has_ledger & has_entry & (ledger_ids <= _LEDGER_MAX) & (entry_ids <= _ENTRY_MAX)
    found: NDArray[np.uint64] = np.where(is_accepted, (ledger_ids << _ENTRY_BITS | entry_ids) + _ONE, 0)
    for place in np.flatnonzero(marks == 0).tolist():      # texts whose colon is further before their end
        text = data[begins[place]:ends[place]].tobytes()
        found[place] = names.parse_position(text.decode("ascii", "replace")) + 1
    return found


def _numbers(words: NDArray[np.uint64], ends: NDArray[np.int64],
             digits: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return (the numbers (n,) whose digits stand before each of `ends`, whether there are as many digits and no other
    characters).

    words: one that begins at every byte.  digits: (n,) _DIGITS_MAX at most, else they are none.
    """
    is_number = (digits >= 1) & (digits <= _DIGITS_MAX)
    digits = np.where(is_number, digits, 0)
    numbers: NDArray[np.uint64] = np.zeros(len(ends), np.uint64)
    for behind in (8, 0) if digits.max(initial=0) > 8 else (0,):
        values = (words[ends - (8 + behind)] ^ _DIGITS) & _LAST_BYTES[np.clip(digits - behind, 0, 8)]
        is_number &= ((values + _ABOVE_NINE) | values) & _TOPS == 0
        values = values * _TEN + (values >> np.uint64(8))      # pairs of digits in every second byte
        values = ((values & _PAIRS) * _WEIGHTS + (values >> np.uint64(16) & _PAIRS) * _WEIGHTS_BEHIND) >> np.uint64(32)
        numbers = numbers * _HUNDRED_MILLION + values
    return numbers, is_number

"""Print the content of one file of a data folder, line by line: `geminga ledger dump`.

Nothing is written, and a broker may be writing the file. Each line is names and values; a damaged part has the name
`damaged`. The readers are those of the broker, its recovery and `geminga verify`, so all of them agree about damage.
"""
import contextlib
import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from geminga.proto import checksums, names, sends
from geminga.proto.job_properties import PRIORITY_BITS, PRIORITY_SHIFT, TTL_BITS, ttls_of
from geminga.proto.names import position_text
from geminga.proto.rows import Rows, as_words, field_names
from geminga.storage import format
from geminga.storage.cursors import state_file
from geminga.storage.cursors.cursor import NOBODY, REASONS, Cursor
from geminga.storage.cursors.pending_acks import NEVER_MS
from geminga.storage.cursors.producer_sequences import schedule_of
from geminga.storage.delayed import snapshot_file
from geminga.storage.delayed.amendments import Amendments
from geminga.storage.delayed.window_files import FAR_MS, WindowFile, WindowFiles
from geminga.storage.disk import regular_files
from geminga.storage.errors import CorruptFile
from geminga.storage.jobs import one_by_one
from geminga.storage.ledgers import compacted_ledgers, journal_reader, ledger_headers, view_files
from geminga.storage.offline import dump_views
from geminga.storage.offline.verify_ledger import acknowledged, read_rows, runs
from geminga.storage.runtime.units import instant
from geminga.storage.topics.subscription import SubType
from geminga.storage.transactions import transaction_table

Line = dict[str, Any]      # *_ms are times; bytes are what clients sent
KINDS = "N.ledger, N.index, N.keys, N.mask, N.journal, state, table, schedule, amended, N-N.window, view"

_OPS = {getattr(format, name): name.lower().replace("_", " ") for name in (
    "LEDGER_OPENED", "LEDGER_DELETED", "MARK_DELETE", "ACKNOWLEDGED", "CURSOR_RESET", "CURSOR_REPLACED",
    "SUBSCRIPTION_DELETED", "PART_ACKNOWLEDGED", "REDELIVERED", "DIED", "TOTAL", "PRODUCED", "MISSED", "CHUNKED",
    "SEQUENCES_FORGOTTEN",
    "PARTITION_DELETED", "DELAYED", "TYPE_CHANGED", "COORDINATED", "ADDED_TO_TRANSACTION", "TRANSACTION_ENTRIES",
    "TRANSACTION_SEQUENCE", "TRANSACTION_ACKS", "TRANSACTION_ACK_UP_TO", "TRANSACTION_ACK_PART", "TRANSACTION_ENDED")}
_OP_FIELDS = {"subscription_id": "subscription", "ledger_id": "ledger"}
_FLAGS = {sends.IS_BATCH: "batch", sends.IS_CHUNK: "chunk", sends.HAS_KEY: "key", sends.IS_LAST_CHUNK: "last chunk",
          sends.IN_TRANSACTION: "transaction", format.IS_CUT: "cut", sends.IS_MARKER: "marker"}
_DELAYS = {format.UNKNOWN: "unknown", format.NONE_DELAYED: "none", format.SCHEDULED: "some"}
_TYPES: dict[int, str] = {number: name for name, number in SubType.items()}


class NotKnown(Exception):
    """Exception for a file that `dump` cannot read.  The text is one line for the user."""


def dump(path: Path, first: int = 0, end: int | None = None, *, payload: bool = False) -> Iterator[Line]:
    """Iterate over the lines that describe a file of a data folder.

    first, end: the range of entries of a ledger, or of records of a journal segment. payload: include the messages of
    entries in the lines.

    Raises NotKnown, OSError, CorruptFile if nothing can be read.
    """
    name, suffix = path.name, path.suffix
    number = int(path.stem) if path.stem.isascii() and path.stem.isdigit() else None
    bounds = first, 1 << 63 if end is None else end
    if not path.is_file():
        raise NotKnown(f"{path}: there is no such file")
    # Other files that are read with this one, and must not be pipes or devices either.
    for beside in (path, path.with_suffix(".ledger"), path.with_suffix(".index"), format.state_path(path.parent)):
        if os.path.lexists(beside):
            regular_files.opened(beside).close()
    if suffix in (".ledger", ".index") and number is not None:
        is_compacted = (path.parent / compacted_ledgers.MANIFEST).exists()
        return (_compacted_ledger if is_compacted else _ledger)(path.parent, number, *bounds, payload)
    if suffix in (".journal", journal_reader.BAD, journal_reader.ASIDE):
        return _journal(path, *bounds, payload)
    whole: Callable[[Path], Iterator[Line]] | None = {
        "state": _state, "table": _table, "schedule": _schedule, "amended": _amended,
        compacted_ledgers.MANIFEST: dump_views.view}.get(name)
    if suffix in (view_files.KEYS, view_files.MASK) and number is not None:
        whole = dump_views.keys if suffix == view_files.KEYS else dump_views.mask
    if suffix == ".window" and re.fullmatch("[0-9]+-[0-9]+", path.stem):
        whole = _window
    if whole is None:
        raise NotKnown(f"{path}: no file that can be read here: {KINDS}")
    if (first, end, payload) != (0, None, False):
        raise NotKnown(f"{path}: there are no entries in it; --from, --to and --payload are for ledgers and segments "
                       "of journals")
    return whole(path)


# -- ledgers

def _ledger(folder: Path, ledger_id: int, first: int, end: int, payload: bool) -> Iterator[Line]:
    """Yield lines for a ledger: its headers, and entries first .. end - 1 with their index rows."""
    partition_id = _partition_of(folder)
    index, data = format.index_path(folder, ledger_id), format.ledger_path(folder, ledger_id)
    head = ledger_headers.read_whole_header(index, ledger_id, partition_id, is_served=True)
    line: Line = {"ledger": ledger_id, "partition": partition_id}
    counted = 0
    if head is None:
        line["damaged"] = "the header of the index is damaged, of another ledger, or was never written"
    else:
        counted = int(head["entries"][0])
        is_sealed = bool(head["state"][0] == format.SEALED)
        line |= {"state": "sealed" if is_sealed else "open",
                 "entries" if is_sealed else "entries_at_least": counted,
                 "size" if is_sealed else "size_at_least": int(head["size"][0]),
                 "first_message": int(head["first_message"][0]), "created_ms": int(head["created_ms"][0]),
                 "format": int(head["version"][0])}
    if data.exists() and not ledger_headers.has_ledger_header(data, ledger_id, partition_id):
        line.setdefault("damaged", "the header of the ledger is damaged")
    yield line
    rows = read_rows(index)
    valid = format.is_valid(rows, ledger_id)
    written = np.asarray(as_words(rows).any(axis=1))
    if head is None:
        count = int(np.flatnonzero(written)[-1]) + 1 if written.any() else 0
    else:
        # An open ledger may have more entries than its header counts.  Damaged rows behind the last whole one are just
        # being written.
        behind = np.flatnonzero(valid[counted:] if line["state"] == "open" else valid[:0])
        count = counted + (int(behind[-1]) + 1 if len(behind) else 0)
    nobody: Cursor | None = None      # entries lost or cancelled for all subscriptions, by the last checkpoint
    with contextlib.suppress(CorruptFile, OSError):
        nobody = state_file.read(folder, partition_id).cursors.get(NOBODY)
    given_back = acknowledged(nobody, ledger_id, min(count, len(rows)))
    with _Entries(data) as entries:
        for entry_id in range(max(first, 0), min(count, len(rows), end)):
            place = {"entry": f"{ledger_id}:{entry_id}"}
            if not written[entry_id] and given_back[entry_id]:
                yield place | {"checksum": "its row was given back: the entry is discarded"}
            elif not written[entry_id]:
                yield place | {"damaged": "the index has no row of it"}
            elif not valid[entry_id]:
                yield place | {"damaged": "its row in the index"}
            elif given_back[entry_id]:
                yield place | _of_row(rows[entry_id]) | {"checksum": "not checked: the entry is discarded"}
            else:
                yield place | _of_row(rows[entry_id]) | entries.read(rows[entry_id], payload)
    if len(rows) < min(count, end):
        yield {"damaged": f"the index ends before entry {ledger_id}:{len(rows)}"}


def _compacted_ledger(folder: Path, ledger_id: int, first: int, end: int, payload: bool) -> Iterator[Line]:
    """Yield lines for one ledger of a compacted view: a summary, and its kept entries among first .. end - 1."""
    manifest, part = dump_views.part_of(folder, ledger_id)
    line: Line = {"ledger": ledger_id, "partition": manifest.partition_id, "view": folder.name}
    if part is None:
        yield line | {"damaged": "the view does not name it"}
        return
    yield line | {"entries": part.kept, "of_entries": part.entries, "size": part.size}
    rows = read_rows(format.index_path(folder, ledger_id)).view(format.COMPACTED_ROW)[:part.kept]
    valid = compacted_ledgers.is_valid(rows, ledger_id)
    mask = view_files.read_mask(folder, ledger_id, part.kept) if part.mask else None
    with _Entries(format.ledger_path(folder, ledger_id)) as entries:
        for number in range(part.kept):
            if number >= len(rows) or not valid[number]:
                yield {"row": number, "damaged": "its row in the index"}
                continue
            row = rows[number]
            if mask is not None and mask.rows[number]:
                yield {"entry": f"{ledger_id}:{row['entry_id']}", "removed": "by the mask"}
            elif first <= row["entry_id"] < end:
                yield {"entry": f"{ledger_id}:{row['entry_id']}"} | _of_row(row) | entries.read(row, payload)


def _partition_of(folder: Path) -> int:
    """Return the partition id that a folder's name gives; -1 if the name is not a number.

    The headers of all files in the folder must have the same partition id to count as undamaged.
    """
    return int(folder.name) if folder.name.isascii() and folder.name.isdigit() else -1


def _of_row(row: np.void) -> Line:
    """Return the printed fields of an INDEX_ROW or COMPACTED_ROW."""
    flags = int(row["flags"])
    line: Line = {"at": int(row["offset"]), "size": int(row["size"]), "messages": int(row["messages"]),
                  "first_message": int(row["message_index"]), "publish_ms": int(row["publish_time"]),
                  "broker_ms": int(row["broker_time"])}
    if row["deliver_at"]:
        line["deliver_ms"] = int(row["deliver_at"])
    if names_of_flags := [name for bit, name in _FLAGS.items() if flags & bit]:
        line["flags"] = ", ".join(names_of_flags)
    if flags & sends.IS_CHUNK:
        line["chunk"] = flags >> sends.CHUNK_ID
    elif flags & PRIORITY_BITS:
        line["priority"] = ((flags & PRIORITY_BITS) >> PRIORITY_SHIFT) - 1
    if not flags & sends.IS_CHUNK and flags & TTL_BITS:
        line["ttl_ms"] = int(ttls_of(np.array([flags], np.uint32))[0])
    return line


class _Entries:
    """Reader of a ledger's data file, which may be missing."""

    def __init__(self, path: Path):
        self._path = path
        self._file: BinaryIO | None = None      # None: it is missing

    def __enter__(self) -> "_Entries":
        with contextlib.suppress(FileNotFoundError):
            self._file = open(self._path, "rb")
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def read(self, row: np.void, payload: bool) -> Line:
        """Return the printed fields of the entry that an index row describes."""
        if self._file is None:
            return {"damaged": f"{self._path.name} is missing"}
        size = int(row["size"])
        if int(row["offset"]) + size > self._path.stat().st_size:
            return {"damaged": "it goes on behind the end of the file"}
        self._file.seek(int(row["offset"]))
        return _entry(self._file.read(size), row, payload)


def _entry(data: bytes, row: np.void, payload: bool) -> Line:
    """Return the printed fields of an entry's metadata, with its messages if `payload` is set."""
    line: Line = {}
    if not row["flags"] & sends.KEPT_CHECKSUM:
        line["checksum"] = "none"
    elif _is_damaged(data, row):
        return {"damaged": "its checksum is wrong" if any(data) else
                "zeros: its space was freed since the last checkpoint, or it is lost"}
    else:
        line["checksum"] = "whole"
    try:
        metadata, stored = one_by_one.split(data)
        own = one_by_one.message(metadata, metadata, b"")
        line |= {"producer": own["producer"], "sequence": own["sequence_id"]} | _named(own)
        if payload:
            line["payloads"] = [_named(message) | {"payload": message["payload"]}
                                for message in one_by_one.messages(metadata, stored)]
    except one_by_one.Damaged as damage:
        line["unreadable"] = str(damage)
    return line


def _is_damaged(data: bytes, row: np.void) -> bool:
    """Whether an entry's bytes fail the checksum in its index row."""
    memory = np.frombuffer(bytearray(data).ljust(len(data) + checksums.BEHIND, b"\0"), np.uint8)
    return len(checksums.wrong_entries(memory, np.array([0]), np.array([len(data)]), np.array([row["crc32c"]]))) > 0


def _named(message: one_by_one.Message) -> Line:
    return {name: message[name] for name in ("key", "properties", "is_encrypted")
            if message[name] is not None and message[name] not in ([], False)}


# -- journals

def _journal(path: Path, first: int, end: int, payload: bool) -> Iterator[Line]:
    """Yield lines for a journal segment: records first .. end - 1, with the entries and ops of each record."""
    head, records, damage = journal_reader.read_segment(path)
    if head is None:
        with open(path, "rb") as file:
            is_begun = any(file.read(format.HEADER_SIZE))
        yield {"segment": path.name} | ({"damaged": "its header"} if is_begun else {"state": "to be used next"})
        for text in damage:
            yield {"damaged": text}
        return
    yield {"segment": path.name, "sequence": int(head["sequence"]), "first_record": int(head["first_record"]),
           "state": "retired" if head["is_retired"] else "to be replayed", "format": int(head["version"])}
    for text in damage:
        yield {"damaged": text}
    for number, at, record in records:
        if not first <= number < end:
            continue
        yield {"record": number, "at": at, "entries": len(record.rows), "ops": len(record.ops), "bytes": record.size}
        entries = zip(record.rows, record.sources.tolist(), strict=True)
        for partition_id, ledger_id, first_id, count in record.groups.tolist():
            for entry_id, (row, source) in enumerate(itertools.islice(entries, count), first_id):
                line = {"entry": f"{ledger_id}:{entry_id}", "partition": partition_id} | _of_row(row)
                yield line | _entry(bytes(record.data[source:source + int(row["size"])]), row, payload)
        for op in range(len(record.ops)):
            yield _op(record.ops[op:op + 1])


def _op(op: Rows) -> Line:
    """Return the printed fields of one journal op, OP_ROW (1,), according to its kind."""
    kind = int(op["kind"][0])
    line: Line = {"op": _OPS.get(kind, kind)}
    if kind != format.COORDINATED:
        line["partition"] = int(op["partition_id"][0])
    if kind not in format.OPS:
        return line
    fields = op.view(format.OPS[kind])
    for name in field_names(fields.dtype)[1:]:
        if name == "promised":
            line |= {name: promise.hex()} if any(promise := bytes(fields[name][0])) else {}
        elif name != "partition_id" and not name.startswith("unused"):
            line[_OP_FIELDS.get(name, name)] = int(fields[name][0])
    first = field_names(fields.dtype)[0]
    if first.startswith("kind_and_"):
        line[first.removeprefix("kind_and_")] = int(format.numbers_of(fields[first])[0])
    if kind == format.TYPE_CHANGED:
        line["type"] = _TYPES.get(line["type"], line["type"])
    if "transaction" in line:
        line["transaction"] = names.transaction_text(line["transaction"])
    if kind == format.COORDINATED:
        line["state"] = transaction_table.STATES.get(line["state"], line["state"])
    if "producer_b" in line:      # as dumps of states name producers
        line["producer"] = fields["producer_a"].tobytes().hex() + fields["producer_b"].tobytes().hex()
        del line["producer_a"], line["producer_b"]
    return line


def _copies(raw: bytes, wrong: dict[int, str]) -> Iterator[Line]:
    """Yield a line for each of a file's two copies.  wrong: {number of a damaged copy, 0 or 1: why}."""
    for number in (0, 1):
        yield {"copy": number + 1, "size": len(raw) // 2} | (
            {"damaged": wrong[number]} if number in wrong else {"checksum": "whole"})


# -- the state of a partition

def _state(path: Path) -> Iterator[Line]:
    """Yield lines for a partition's state file: one for each of its two copies, then every cursor and producer.

    Cursors and producers come from an undamaged copy, and are left out if both copies are damaged.
    """
    folder, raw = path.parent, path.read_bytes()
    partition_id = _partition_of(folder)
    yield from _copies(raw, state_file.wrong_copies(raw, partition_id))
    try:
        state = state_file.read(folder, partition_id)
    except CorruptFile:
        return      # both copies are damaged, which their lines say
    sequences = state.sequences
    yield {"partition": partition_id, "cursors": len(state.cursors), "producers": len(sequences.rows()),
           "delayed": _DELAYS.get(state.delays, state.delays)} | ({"is_uncounted": True} if state.is_uncounted else {})
    for subscription_id, cursor in state.cursors.items():
        kind = cursor.last_type
        yield {"subscription": "nobody" if subscription_id == NOBODY else subscription_id,
               "up_to": "{}:{}".format(*cursor.mark_delete), "since_message": cursor.since,
               **dict(zip(REASONS, cursor.totals, strict=True))} | (
            {} if kind is None else {"type": _TYPES.get(kind, kind)})
        yield from _beyond(cursor)
    for identity, progress in sequences.by_replicator.items():
        if (schedule_id := schedule_of(identity)) is not None:
            yield {"schedule": schedule_id, "last_planned": instant(progress.last)}
        else:
            yield {"replicator": identity.hex(), "last_position": position_text(progress.last)}
    for row in sequences.rows():
        if row["producer"].tobytes() not in sequences.by_replicator:
            yield {"producer": row["producer"].tobytes().hex(), "last_sequence": int(row["last"])} | (
                {"under_way": int(row["sequence_id"]), "next_chunk": int(row["next_chunk"])}
                if row["next_chunk"] else {})
    for producer, first, last in sequences.missed_rows().tolist():
        identity = np.array(producer, np.int64).tobytes()
        what = "missing" if first <= sequences.of(identity).last else "supposed"
        yield {"producer": identity.hex(), what: f"{first}-{last}"}


def _table(path: Path) -> Iterator[Line]:
    """Yield lines for a coordinator's transactions: one for each of the two copies, then every op of a whole one."""
    coordinator, raw = _partition_of(path.parent), path.read_bytes()
    wrong = transaction_table.wrong_copies(raw, coordinator)
    yield from _copies(raw, wrong)
    for ops in transaction_table.ops_of(raw, 1 if 0 in wrong else 0) if len(wrong) < 2 else ():
        for number in range(len(ops)):
            yield _op(ops[number:number + 1].view(format.OP_ROW))


def _beyond(cursor: Cursor) -> Iterator[Line]:
    """Yield lines, by ledger, for everything that a cursor stores beyond its mark-delete position."""
    for ledger_id, bitmap in sorted(cursor.bitmaps.items()):
        yield {"ledger": ledger_id, "acknowledged": _runs(bitmap)}
    for ledger_id, entries in sorted(cursor.parts.items()):
        for entry_id, bits in sorted(entries.items()):
            yield {"entry": f"{ledger_id}:{entry_id}", "not_acknowledged_of_batch": f"{bits:#x}"}
    for name, counts in (("redelivered", cursor.redeliveries), ("died_over", cursor.deaths)):
        for ledger_id, array in sorted(counts.arrays.items()):
            if by_entry := {str(entry_id): int(array[entry_id]) for entry_id in np.flatnonzero(array).tolist()}:
                yield {"ledger": ledger_id, name: by_entry}


def _runs(bitmap: NDArray[np.uint8]) -> list[str]:
    """Return the runs of set bits as texts: 7, or 3-5."""
    return [f"{first}-{end - 1}" if end - first > 1 else str(first)
            for first, end in runs(np.flatnonzero(np.unpackbits(bitmap, bitorder="little")))]


# -- delayed messages

def _schedule(path: Path) -> Iterator[Line]:
    """Yield lines for a saved index of delayed messages: its windows, and the ids of waiting entries by ledger."""
    saved = snapshot_file.read(path)
    yield {"partition": _partition_of(path.parent.parent), "complete_up_to": "{}:{}".format(*saved.known),
           "ascending_from": "{}:{}".format(*saved.behind), "last_ms": saved.last_ms, "checksum": "whole"}
    for (start, width), file in sorted(saved.files.items()):
        yield {"window": f"{start}-{width}.window", "from_ms": start, "width_s": width / 1_000, "rows": file.rows,
               "size": file.size}
    for ledger_id, bitmap in sorted(saved.bitmaps.items()):
        yield {"ledger": ledger_id, "waiting": _runs(bitmap)}


def _window(path: Path) -> Iterator[Line]:
    """Yield a line for every row of a window file, which lists delayed messages.

    The file `schedule` says which rows count. Rows appended after its last save, and rows of messages that were
    delivered, are yielded too.
    """
    start, width = map(int, path.stem.split("-"))
    windows = WindowFiles(path.parent)
    windows.files[start, width] = WindowFile(size=path.stat().st_size)
    yield {"window": path.name, "from_ms": start, "width_s": width / 1_000, "size": path.stat().st_size}
    if windows.path((start, width)) != path:
        raise NotKnown(f"{path}: numbers in a window's name have no zeros before them")
    try:
        for block in windows.blocks((start, width)):
            for after_ms, entry_id, ledger_id in block.tolist():
                yield {"entry": f"{ledger_id}:{entry_id}"} | (
                    {} if start >= FAR_MS else {"deliver_ms": start + after_ms})
    except CorruptFile as error:
        yield {"damaged": str(error)}


def _amended(path: Path) -> Iterator[Line]:
    """Yield a line for each delayed message that an operator cancelled or moved."""
    amendments = Amendments(path)
    for text in amendments.read():
        yield {"damaged": text}
    for ledger_id, entry_id, at_ms in amendments:
        yield {"entry": f"{ledger_id}:{entry_id}"} | (
            {"cancelled": True} if at_ms == NEVER_MS else {"deliver_ms": at_ms})

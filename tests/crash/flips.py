"""Bits turned over: a data folder with everything in it, of which one bit anywhere is wrong, is opened, and nothing
else is wrong.

    python -m tests.crash.flips --flips 10000 --seed 1

The folders are what a SIGKILL and a clean stop leave of one history.  Whatever the bit, every partition opens, nobody
gets what was acknowledged, the damage is told, and it costs nothing; in an entry it costs that entry, which clients get
as it is and throw away because its checksum is wrong, and which `geminga verify` finds.  What a replay of the journal
writes over was no damage. Bytes that mean nothing (reserved, allocated ahead, left behind) are left alone.
"""
import argparse
import contextlib
import io
import random
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from crc32c import crc32c

from geminga.proto import envelope
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.frames import CHECKSUM_END
from geminga.storage import format
from geminga.storage.commands.consumers import QUARANTINE
from geminga.storage.offline import verify
from geminga.storage.offline.findings import Severity
from geminga.storage.topics.subscription import SubType

from ..storage.files import copy_of, flip, read_mapped
from ..storage.journals import segments
from ..storage.rig import Rig

OPTIONS = {"journal_segment_bytes": 64 << 10, "journal_segments_max": 3, "roll_over_entries": 30, "deduplication": True}
MANY = 1 << 20
TOPICS = {"many": {"shared": SubType.Shared, "in-order": SubType.Exclusive, "untouched": SubType.Exclusive},
          "batches": {"keys": SubType.Key_Shared}, "quiet": {"careful": SubType.Shared}}
ENTRY, CATALOGUE = "entry", "catalogue"
OVERWRITTEN = ENTRY, "index row"
CAREFUL = [api.KeyValue(key=QUARANTINE, value="2")]


@dataclass(frozen=True)
class Place:
    """A range of bytes of a file that has a meaning."""

    kind: str
    path: Path            # below the data folder
    offset: int
    size: int


# -- the history --------------------------------------------------------------------------------------------------

def make(folder: Path) -> dict[str, Path]:
    """Make data folders: {what ended the process: the folder that it left}."""
    rig = Rig(folder / "made", **OPTIONS)
    _go_on(rig, 40)
    rig.close()
    rig = Rig(folder / "made", now_ms=rig.now_ms, **OPTIONS)
    _go_on(rig, 25)
    left = {"kill": copy_of(rig.data_dir, folder / "killed")}
    rig.close()
    return left | {"stop": rig.data_dir}


def _go_on(rig: Rig, count: int) -> None:
    consumers = {(topic, name): rig.consumer(topic, name, subType=kind, connection=7) for topic, names in TOPICS.items()
                 for name, kind in names.items() if name != "careful"}
    for topic in TOPICS:
        producer = rig.producer(topic, producer_name=f"p-{topic}-{count}", user_provided_producer_name=True)
        kinds = (
            [{"batch": 5}, {"batch": 70}, {"partition_key": "k"}]
            if topic == "batches"
            else [{}, {"partition_key": "k"}]
        )
        positions = [position for at in range(count) for position in
                     rig.run(rig.sends((producer, b"%d" % at * (1 + at % 90), kinds[at % len(kinds)]))).positions]
        for (of, name), consumer in consumers.items():
            if of == topic and name != "untouched":
                rig.run(rig.flow(consumer, MANY))
                rig.run(rig.acks(consumer, *positions[3:20:2], request_id=1))
                if TOPICS[topic][name] == SubType.Exclusive:
                    rig.run(rig.acks(consumer, positions[5], cumulative=True))
                else:
                    rig.run(rig.redeliver(consumer, *positions[22::3]))
                if topic == "batches":
                    rig.run(*[rig.ack_part(consumer, position, 0b11010, (1 << 60) - 1, request_id=2)
                              for position in positions[20:24]])
    consumer = rig.consumer("quiet", "careful", subType=SubType.Shared, connection=8, metadata=CAREFUL)
    rig.run(rig.flow(consumer, 3))
    rig.run(rig.happened(envelope.CONNECTION_GONE, connection=8))
    rig.publish(rig.producer("quiet"), b"the end")


# -- what is there ------------------------------------------------------------------------------------------------

def look(rig: Rig) -> dict:
    """Return all that clients can observe: entries with their index rows, and each subscription's next deliveries."""
    found: dict = {}
    for topic, names in TOPICS.items():
        partition = rig.owner.topics.find(rig.topic(topic))
        for name, kind in names.items():
            consumer = rig.consumer(topic, name, subType=kind, **({"metadata": CAREFUL} if name == "careful" else {}))
            found[topic, name] = rig.given(rig.run(rig.flow(consumer, MANY)), consumer)
            cursor = partition.subscriptions[name, True].cursor
            found[topic, name, "cursor"] = (
                cursor.mark_delete,
                cursor.since,
                list(cursor.totals),
                cursor.backlog_messages(partition.ledgers),
            )
            found[topic, name, "deaths"] = {ledger_id: counts[counts > 0].tolist()
                                            for ledger_id, counts in cursor.deaths.arrays.items()}
        for ledger in partition.ledgers:
            rows = ledger.index[:ledger.entries]
            for number, entry in enumerate(read_mapped(partition.folder, ledger.ledger_id, 0, ledger.entries)):
                said = tuple(rows[name][number] for name in rows.dtype.names if name not in ("broker_time", "checksum"))
                found[topic, ledger.ledger_id, number] = said, entry
        found[topic, "sequences"] = sorted(map(bytes, partition.sequences.rows()))
    return found


def places_of(data_dir: Path) -> list[Place]:
    """Return all ranges of bytes in which a bit can be flipped."""
    found = [Place(CATALOGUE, Path("catalogue.sqlite"), 0, (data_dir / "catalogue.sqlite").stat().st_size)]
    found += [Place("state", path.relative_to(data_dir), 0, path.stat().st_size)
              for path in data_dir.glob("partitions/*/state")]
    found += [place for path in segments(data_dir / "journal" / "0").values()
              for place in _of_segment(path, path.relative_to(data_dir))]
    copy = copy_of(data_dir, data_dir.parent / "to-list")
    rig = Rig(copy, **OPTIONS)
    look(rig)
    for topic in TOPICS:
        for ledger in rig.partition(topic).ledgers:
            at = ledger.ledger_path.relative_to(copy)
            index = ledger.index_path.relative_to(copy)
            found += [Place("ledger header", at, 0, 12), Place("ledger header", at, 16, 16)]
            found.append(Place("index header", index, 0, format.HEADER_SIZE))
            for number, row in enumerate(ledger.index[:ledger.entries]):
                found += [Place(ENTRY, at, int(row["offset"]), int(row["size"])),
                          Place("index row", index, format.HEADER_SIZE * (1 + number), format.INDEX_ROW.itemsize)]
    rig.close()
    shutil.rmtree(copy)
    return found


def _of_segment(path: Path, name: Path) -> list[Place]:
    raw = path.read_bytes()
    sequence = int(np.frombuffer(raw, format.SEGMENT_HEADER, 1)["sequence"][0])
    found, at = [Place("segment header", name, 0, format.HEADER_SIZE)], format.HEADER_SIZE
    while at + format.HEADER_SIZE <= len(raw):
        head = np.frombuffer(raw, format.RECORD_HEADER, 1, at)[0]
        if (head["magic"], head["segment"]) != (format.RECORD_MAGIC, sequence):
            break
        tables = int(head["groups"]) * format.GROUP_ROW.itemsize + int(head["ops"]) * format.OP_ROW.itemsize \
            + int(head["rows"]) * (format.INDEX_ROW.itemsize + format.SOURCE.itemsize)
        found += [Place("record header", name, at, format.HEADER_SIZE),
                  Place("record tables", name, at + format.HEADER_SIZE, tables),
                  Place("record entries", name, at + format.HEADER_SIZE + tables, int(head["size"]) - tables)]
        at += format.HEADER_SIZE + int(head["size"])
    return [place for place in found if place.size]


# -- flips --------------------------------------------------------------------------------------------------------

class Flips:
    """Flips one bit at a time; `faults` counts broken promises, `figures` everything else."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.chance = folder, random.Random(seed)
        self.faults: list[str] = []
        self.figures: Counter[tuple[str, str]] = Counter()
        self.left = make(folder)
        self.expected, self.places = {}, {}
        for how, data_dir in self.left.items():
            rig = Rig(copy_of(data_dir, folder / "whole"), **OPTIONS)
            self.expected[how] = look(rig)
            rig.close()
            shutil.rmtree(folder / "whole")
            by_kind: dict[str, list[Place]] = {}
            for place in places_of(data_dir):
                by_kind.setdefault(place.kind, []).append(place)
            self.places[how] = by_kind

    def turn_one(self) -> None:
        """Flip a random bit: a random folder, then a random kind of place, so that each kind gets its share."""
        how = self.chance.choice(sorted(self.left))
        kind = self.chance.choice(sorted(self.places[how]))
        places = self.places[how][kind]
        [place] = self.chance.choices(places, [place.size for place in places])
        self.turn(how, place, place.offset + self.chance.randrange(place.size), self.chance.randrange(8))

    def turn(self, how: str, place: Place, offset: int, bit: int) -> None:
        data_dir = copy_of(self.left[how], self.folder / "flipped")
        flip(data_dir / place.path, offset, bit)
        findings = [finding for finding in verify.walk(data_dir) if finding.severity > Severity.NOTE]
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                outcome = self._open(how, place, data_dir, [str(finding) for finding in findings])
        except Exception as error:      # whatever it is, it is what the operator would see
            outcome = f"does not open: {type(error).__name__}: {error}"
        if place.kind == CATALOGUE:
            outcome = (
                outcome.partition(":")[0]
                if findings or not outcome.startswith("differs")
                else "differs and is not found"
            )
        elif outcome.startswith(("differs", "does not", "is not")):
            self.faults.append(f"{how}, {place.kind}: {place.path}, byte {offset}, bit {bit}: {outcome}")
        self.figures[place.kind, outcome] += 1
        shutil.rmtree(data_dir)

    def _open(self, how: str, place: Place, data_dir: Path, findings: list[str]) -> str:
        """Open the folder with the flipped bit, and return what became of it."""
        rig = Rig(data_dir, **OPTIONS)
        try:
            found, expected = look(rig), self.expected[how]
            told = len(rig.damage) + rig.counters.read()["damage_found"]
        finally:
            rig.close()
        differ = [name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)]
        if not differ:
            if told or (findings and place.kind == CATALOGUE):
                return "told, costs nothing"
            if place.kind == CATALOGUE:
                return "changes nothing"
            return "was written over by the journal" if how == "kill" and place.kind in OVERWRITTEN else "is not told"
        if place.kind == ENTRY and len(differ) == 1 and differ[0] in expected and differ[0] in found:
            (said, _), (says, entry) = expected[differ[0]], found[differ[0]]
            is_seen = entry[:2] != b"\x0e\x01" or crc32c(entry[CHECKSUM_END:]) != int.from_bytes(
                entry[2:CHECKSUM_END], "big"
            )
            if said == says and is_seen and findings:
                return "costs its entry, and is seen"
            return f"differs: seen by clients: {is_seen}, by verify: {findings}"
        return f"differs: {differ[:5]}, told: {told}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--flips", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flips-") as folder:
        flips = Flips(Path(folder), options.seed)
        with contextlib.suppress(KeyboardInterrupt):
            for _ in range(options.flips):
                flips.turn_one()
    for (kind, outcome), count in sorted(flips.figures.items()):
        print(f"{kind:16} {outcome:60} {count:7}")
    print("\n".join(flips.faults[:50]))
    print(f"{flips.figures.total()} bits, {len(flips.faults)} faults")
    return bool(flips.faults)


if __name__ == "__main__":
    sys.exit(main())

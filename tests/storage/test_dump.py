"""The dump of files of a data folder: each entry, record or row is a line. Any bytes in a file lead to lines or to a
one-line error, never to a traceback.
"""
import json
import random
import shutil
from pathlib import Path

import pytest

from geminga.storage import format
from geminga.storage.errors import CorruptFile
from geminga.storage.offline.dump import NotKnown, dump
from geminga.storage.topics.subscription import SubType
from geminga.supervisor.main import main

from .files import copy_of, cut, flip
from .rig import START_MS, Rig
from .test_compacted import Topic

DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return {name: folder} for "killed" and "stopped", data folders of a broker that was killed or stopped, and for
    "t" and "plain", the partitions' folders below.

    Topic t is compacted and has delayed messages, one of them cancelled and one rescheduled.
    """
    rig = Rig(tmp_path_factory.mktemp("dumped") / "data", roll_over_entries=10, deduplication=True)
    topic = Topic(rig)
    topic.publish(*[(f"k{n % 4}", b"v%d" % n) for n in range(8)], [("a", b"1"), ("b", b"2")])
    topic.compact()
    shared = rig.consumer("t", "shared", subType=SubType.Shared)
    late = [(topic.producer, b"late", {"deliver_at_time": START_MS + n * DAY_MS}) for n in (1, 2, 2, 9)]
    waiting = rig.run(rig.sends(*late)).positions
    assert rig.asked("cancel", "t", position=waiting[0])
    assert rig.asked("reschedule", "t", position=waiting[1], deliver_at_ms=START_MS + 3 * DAY_MS)
    producer, consumer = rig.producer("plain", producer_name="p", user_provided_producer_name=True), rig.consumer(
        "plain", "s", subType=SubType.Shared)
    positions = rig.publish(producer, *[b"%d" % n for n in range(8)])
    rig.run(rig.flow(consumer, 8), rig.flow(shared, 8))
    rig.run(rig.acks(consumer, positions[0], positions[1], positions[4]))
    rig.run(rig.redeliver(consumer, positions[2]))
    folders = {name: rig.partition(name).folder.relative_to(rig.data_dir) for name in ("t", "plain")}
    killed = copy_of(rig.data_dir, rig.data_dir.with_name("killed"))
    rig.close()
    return {"killed": killed, "stopped": rig.data_dir, **folders}


def lines(path, *bounds, **how):
    return list(dump(path, *bounds, **how))


def ledger_of(folder, name="plain", state="stopped"):
    return min((folder[state] / folder[name]).glob("*.ledger"))


def files(*folders):
    found = [
        path
        for data_dir in folders
        for pattern in ("*.ledger", "*.index", "state", "schedule", "amended", "*.window", "view", "*.journal")
        for path in data_dir.rglob(pattern)
    ]
    assert len({path.suffix or path.name for path in found}) == 8
    return sorted(found)


@pytest.mark.parametrize("suffix", [".ledger", ".index"])
def test_each_entry_of_a_ledger_is_a_line(folder, suffix):
    head, *entries = lines(ledger_of(folder).with_suffix(suffix), payload=True)
    assert (head["entries_at_least"], head["state"], "damaged" in head) == (8, "open", False)
    assert [found["entry"] for found in entries] == [f"{head['ledger']}:{n}" for n in range(8)]
    assert [found["payloads"][0]["payload"] for found in entries] == [b"%d" % n for n in range(8)]
    assert {(found["producer"], found["checksum"], found["publish_ms"]) for found in entries} == {
        (b"p", "whole", 1_700_000_000_000)}      # the rig's clock
    assert [found["sequence"] for found in entries] == sorted({found["sequence"] for found in entries})
    assert [found["entry"] for found in lines(ledger_of(folder).with_suffix(suffix), 2, 4)[1:]] == [
        f"{head['ledger']}:{n}" for n in (2, 3)
    ]


def test_batches_are_unpacked_with_keys(folder):
    [found] = [found for found in lines(ledger_of(folder, "t"), payload=True) if "batch" in found.get("flags", "")]
    assert [(one["key"], one["payload"]) for one in found["payloads"]] == [(b"a", b"1"), (b"b", b"2")]


def test_a_state_says_what_was_acknowledged_and_given_back_and_what_producers_sent(folder):
    found = lines(folder["stopped"] / folder["plain"] / "state")
    ledger_id = int(ledger_of(folder).stem)
    assert {"ledger": ledger_id, "acknowledged": ["0-1", "4"]} in found
    assert {"ledger": ledger_id, "redelivered": {"2": 1}} in found
    [cursor] = [line for line in found if line.get("up_to") == f"{ledger_id}:1"]
    assert (cursor["acknowledged"], cursor["type"]) == (3, "Shared")
    assert len([line for line in found if "last_sequence" in line]) == 1
    assert [line["checksum"] for line in found[:2]] == ["whole", "whole"]


def test_a_segment_says_what_was_decided(folder):
    found = [
        line for path in sorted((folder["killed"] / "journal").rglob("*.journal")) for line in lines(path, payload=True)
    ]
    assert [line for line in found if "damaged" in line] == []
    assert [line["state"] for line in found if "segment" in line].count("to be replayed") >= 1
    payloads = [line["payloads"][0]["payload"] for line in found if "payloads" in line]
    assert payloads[-8:] == [b"%d" % n for n in range(8)]
    assert {"ledger opened", "acknowledged", "redelivered", "produced", "delayed"} <= {
        line["op"] for line in found if "op" in line
    }


def test_what_waits_is_told_by_windows_and_schedule_and_what_was_amended(folder):
    delayed = folder["stopped"] / folder["t"] / "delayed"
    times = sorted(line["deliver_ms"] for path in delayed.glob("*.window") for line in lines(path)[1:])
    assert times[-1] == START_MS + 9 * DAY_MS
    assert {path.name for path in delayed.glob("*.window")} >= {
        line["window"] for line in lines(delayed / "schedule") if "window" in line
    }
    assert any("waiting" in line for line in lines(delayed / "schedule"))
    cancelled, moved = lines(delayed / "amended")
    assert cancelled["cancelled"]
    assert moved["deliver_ms"] == START_MS + 3 * DAY_MS


def test_a_view_says_what_is_left(folder):
    [view] = (folder["stopped"] / folder["t"]).rglob("view")
    head, part, *_ = lines(view)
    assert head["messages"] == 6
    entries = lines(view.with_name(f"{part['ledger']}.index"), payload=True)[1:]
    assert [one["payload"] for line in entries for one in line["payloads"]] == [b"v4", b"v5", b"v6", b"v7", b"1", b"2"]


@pytest.mark.parametrize("state", ["stopped", "killed"])
def test_a_row_that_is_damaged_is_shown_as_such_and_so_is_an_entry(folder, tmp_path, state):
    data_dir = copy_of(folder[state], tmp_path / "damaged")
    path = ledger_of({**folder, "stopped": data_dir})
    flip(path.with_suffix(".index"), format.HEADER_SIZE * 4 + 9)
    entry = lines(path)[6]
    flip(path, entry["at"] + entry["size"] - 1)
    assert [(n, line["damaged"]) for n, line in enumerate(lines(path)[1:]) if "damaged" in line] == [
        (3, "its row in the index"), (5, "its checksum is wrong")]


def test_an_index_that_is_cut_and_a_header_that_is_lost_cost_no_line_of_what_is_left(folder, tmp_path):
    data_dir = copy_of(folder["stopped"], tmp_path / "damaged")
    path = ledger_of({**folder, "stopped": data_dir})
    flip(path.with_suffix(".index"), 20)
    head, *entries = lines(path)
    assert head["damaged"].startswith("the header of the index")
    assert [line["checksum"] for line in entries] == ["whole"] * 8
    flip(path.with_suffix(".index"), 20)
    cut(path.with_suffix(".index"), format.HEADER_SIZE * 5 + 7)
    _, *entries, last = lines(path)
    assert (len(entries), last["damaged"]) == (4, f"the index ends before entry {path.stem}:4")


def test_a_copy_of_a_state_that_is_damaged_is_shown_and_the_other_read(folder, tmp_path):
    data_dir = copy_of(folder["stopped"], tmp_path / "damaged")
    flip(data_dir / folder["plain"] / "state", 70)
    first, second, *others = lines(data_dir / folder["plain"] / "state")
    assert (first["damaged"], second["checksum"]) == ("its checksum is wrong", "whole")
    assert len([line for line in others if "subscription" in line]) == 2


@pytest.mark.slow
def test_nothing_is_worse_than_a_line_whatever_bytes_there_are(folder, tmp_path, seed):
    """The dump of a file with one wrong bit, many wrong bytes or a missing end gives lines, or a CorruptFile of one
    line.
    """
    chance = random.Random(seed)
    paths = files(*[copy_of(folder[name], tmp_path / name) for name in ("killed", "stopped")])
    assert {path.suffix for path in paths} >= {".ledger", ".index", ".journal"}
    for path in paths:
        whole = path.read_bytes()
        for _ in range(12):
            raw = bytearray(whole)
            at = chance.randrange(min(len(raw), chance.choice((80, 4_000, 1 << 30))))
            match chance.randrange(4):
                case 0:
                    raw[at] ^= 1 << chance.randrange(8)
                case 1:
                    raw[at:at + 40] = chance.randbytes(40)
                case 2:
                    del raw[at:]
                case 3:
                    raw[at:at + 8] = b"\xff" * 8
            path.write_bytes(raw)
            try:
                lines(path, **({"payload": True} if path.suffix in (".ledger", ".index", ".journal") else {}))
            except CorruptFile as error:
                assert "\n" not in str(error)
        path.write_bytes(whole)


def test_any_bit_of_a_ledger_that_means_something_is_seen(folder, tmp_path, seed):
    chance = random.Random(seed)
    data_dir = copy_of(folder["stopped"], tmp_path / "flipped")
    path = ledger_of({**folder, "stopped": data_dir})
    head = lines(path)[0]
    for target, size in (
        (path, head["size_at_least"] - format.HEADER_SIZE),
        (path.with_suffix(".index"), 8 * format.HEADER_SIZE),
    ):
        for _ in range(40):
            at, bit = format.HEADER_SIZE + chance.randrange(size), chance.randrange(8)
            flip(target, at, bit)
            assert len([line for line in lines(path) if "damaged" in line]) == 1, (
                f"{target.suffix}, byte {at}, bit {bit}"
            )
            flip(target, at, bit)


def test_a_folder_that_is_served_is_not_changed_by_it(rigs):
    rig = rigs()
    producer = rig.producer("t")
    rig.publish(producer, b"one")
    before = {path: path.read_bytes() for path in rig.data_dir.rglob("*") if path.is_file()}
    path = rig.partition("t").ledgers[-1].ledger_path
    assert [line["payloads"][0]["payload"] for line in lines(path, payload=True)[1:]] == [b"one"]
    assert {path: path.read_bytes() for path in rig.data_dir.rglob("*") if path.is_file()} == before
    rig.publish(producer, b"two")
    assert [line["payloads"][0]["payload"] for line in lines(path, payload=True)[1:]] == [b"one", b"two"]


def test_the_command_prints_lines_or_json_and_its_exit_status_says_whether_something_is_damaged(
    folder, tmp_path, capsys
):
    data_dir = copy_of(folder["stopped"], tmp_path / "damaged")
    path = ledger_of({**folder, "stopped": data_dir})
    assert main(["ledger", "dump", "--payload", str(path), "--from", "7"]) == 0
    assert "payload 7" in capsys.readouterr().out
    flip(path, format.HEADER_SIZE + 12)
    assert main(["ledger", "dump", "--json", str(path)]) == 4
    assert [("damaged" in json.loads(line)) for line in capsys.readouterr().out.splitlines()] == [False, True] + [
        False
    ] * 7
    (data_dir / folder["plain"] / "schedule").write_bytes(b"no schedule")
    assert main(["ledger", "dump", str(data_dir / folder["plain"] / "schedule")]) == 5
    assert main(["ledger", "dump", str(data_dir / "catalogue.sqlite")]) == 2
    assert "no file that can be read here" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["1.ledger", "state", "x.window", "1-2-3.window", "notes"])
def test_what_is_not_there_or_of_another_kind_is_one_line(tmp_path, name):
    with pytest.raises(NotKnown):
        dump(Path(tmp_path, name))
    if "." not in name or name.endswith("window"):
        shutil.copy(__file__, tmp_path / name)
        with pytest.raises(NotKnown if name != "state" else AssertionError):
            list(dump(tmp_path / name))
            raise AssertionError

"""Files of the delayed index: windows, saving, damage and full disks."""
import errno
import os
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from geminga.storage import format
from geminga.storage.delayed.window_files import windows_of
from geminga.storage.offline import verify
from geminga.storage.offline.findings import Severity
from geminga.storage.topics.subscription import SubType
from geminga.storage.upkeep import delayed_scheduler

from .delays import DAY_MS, DELAY_TICK_MS, HOUR_MS, Life, check_times
from .files import copy_of, flip
from .rig import START_MS
from .test_limits import set_policy

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("saves_at_once")]

DAMAGE_OF = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "lost": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "flipped": lambda path: flip(path, path.stat().st_size // 2),
    "newer": lambda path: path.write_bytes(b"\xff" * path.stat().st_size),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0" * 100),
}


def spread_over(count, span_ms, least_ms=1_000):
    """Return that many messages with times all over the range, in no order."""
    return {f"{n}": least_ms + n * 7_919 * 7_919 % span_ms for n in range(count)}


def files_of(life):
    return sorted((life.rig.partition("t").folder / "delayed").iterdir())


def check_all_come(life, consumer, times, *, step_ms=60_000):
    """Assert that all messages are delivered in time, to the precision of `step_ms`.  Some may have been delivered
    before.
    """
    came = []
    while len(came) < len(times):
        until = life.now + step_ms
        life.jump(step_ms - 1_000)
        life.wait(until - life.now)
        came += life.came(consumer)
        assert life.now < max(times.values()) + 2 * step_ms, sorted(times.keys() - {name for _, name in came})
    check_times(came, times, DELAY_TICK_MS + step_ms)


@pytest.mark.parametrize("how", DAMAGE_OF)
@pytest.mark.parametrize("which", ["a window", "every window", "what says of them"])
def test_files_that_are_damaged_are_made_anew(rigs, how, which):
    """Damaged files, found at a start or when their window begins, are reported, and the index is rebuilt from the
    ledgers.
    """
    life = Life(rigs(roll_over_entries=40))
    consumer = life.consumer()
    times = spread_over(300, 2 * HOUR_MS)
    for first in range(0, 300, 30):
        life.publish_all(list(times.items())[first:first + 30])
    early = ["3", "150", "299"]
    life.ack(consumer, *early)
    rigs.restart(life.rig).close()
    folder = format.partition_folder(life.rig.data_dir, 1) / "delayed"
    windows = sorted(folder.glob("*.window"), key=lambda path: int(path.name.partition("-")[0]))
    assert len(windows) >= 24
    for path in {"a window": windows[7:8], "every window": windows, "what says of them": [folder / "schedule"]}[which]:
        DAMAGE_OF[how](path)
    life.move(rigs.on(life.rig.data_dir, now_ms=life.rig.now_ms, **life.rig.settings))
    consumer = life.consumer()
    check_all_come(life, consumer, {name: at for name, at in times.items() if name not in early})
    is_unnoticed = how == "longer" or (how, which) == ("lost", "what says of them")
    assert is_unnoticed or life.rig.counters.read()["damage_found"] >= 1
    assert life.account()["acknowledged"] == 3


def test_a_stop_without_time_saves_no_index_and_no_message_is_lost(rigs, capfd):
    """A stop would be killed while it saves thousands of indexes; the next start scans the ledgers instead."""
    life = Life(rigs())
    life.consumer()
    times = spread_over(100, HOUR_MS)
    life.publish(**times)
    life.rig.is_open = False
    life.rig.owner.close(until=time.monotonic())
    assert "not all schedules can be saved" in capfd.readouterr().err
    assert not (format.partition_folder(life.rig.data_dir, 1) / "delayed/schedule").exists()
    life.move(rigs.restart(life.rig))
    check_all_come(life, life.consumer(), times)


def test_there_is_a_file_for_each_window_of_time(rigs):
    """The file of a window is removed some time after all its messages were due."""
    life = Life(rigs(delayed_delivery_window_ms=60_000))
    consumer = life.consumer()
    times = spread_over(500, HOUR_MS)
    life.publish(**times)
    life.wait(31_000)
    life.wait(31_000)
    windows = {tuple(map(int, path.stem.split("-"))) for path in files_of(life) if path.suffix == ".window"}
    assert windows >= {((START_MS + at) // 60_000 * 60_000, 60_000) for at in times.values() if at > 62_000}
    check_all_come(life, consumer, times)
    life.ack(consumer, *times)
    life.jump(60_000)
    for _ in range(4):
        life.wait(31_000)
    assert [path for path in files_of(life) if path.suffix == ".window"] == []


def test_a_start_reads_no_window_before_its_time(rigs, monkeypatch):
    life = Life(rigs())
    life.consumer()
    life.publish(**spread_over(2_000, 30 * DAY_MS, HOUR_MS), soon=20_000)
    life.move(rigs.restart(life.rig))
    read, whole = [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: (read.append(path), whole(path))[1])
    life.move(rigs.crash(life.rig))
    consumer = life.consumer()
    life.wait(30_000)
    assert life.names_of(consumer) == ["soon"]
    assert len({path for path in read if path.suffix == ".window"}) <= 2


def test_memory_does_not_depend_on_how_many_wait(rigs):
    """Memory has a bit for each waiting message, the rows of the window that has begun, and the list of windows."""
    rig = rigs(delayed_delivery_window_ms=DAY_MS)
    producer, _ = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    times = [START_MS + 2 * DAY_MS + n * 7_919 * 7_919 % (30 * DAY_MS) for n in range(6_000)]
    passes = [rig.sends(*[(producer, b"x", {"deliver_at_time": at}) for at in times[n:n + 1_000]])
              for n in range(0, 6_000, 1_000)]
    tracemalloc.start()
    try:
        for section in passes:
            rig.run(section)
        for _ in range(2):
            rig.run(after_ms=31_000)
            for _ in range(30):
                rig.run()
        found = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/storage/delayed/*.py")])
    finally:
        tracemalloc.stop()
    assert sum(one.size for one in found.statistics("filename")) < 50_000      # rows of all would be 144,000
    assert rig.partition("t").schedule.waiting == 6_000


def test_what_ascends_needs_no_files(rigs):
    """Messages whose delivery times ascend need no index files, over crashes too, until a message comes that is due
    earlier.
    """
    life = Life(rigs(roll_over_entries=100))
    consumer = life.consumer()
    times = {f"{n}": 100_000 + 500 * n for n in range(400)}
    for first in range(0, 400, 40):
        life.publish_all(list(times.items())[first:first + 40])
    life.wait(31_000)
    life.wait(31_000)
    assert [path for path in files_of(life) if path.suffix == ".window"] == []
    life.move(rigs.crash(life.rig))
    consumer = life.consumer()
    times |= {"between": 150_250, "soon": 70_000}
    life.publish(between=150_250, soon=70_000)
    life.wait(31_000)
    life.wait(31_000)
    came = life.came(consumer)
    life.ack(consumer, *[name for _, name in came])
    life.move(rigs.crash(life.rig))
    consumer = life.consumer()
    life.wait(200_000)
    check_times(came + life.came(consumer), times)


@pytest.mark.parametrize(("before_ms", "after_ms"), [(300_000, 10_000), (10_000, 300_000), (3_600_000, 1_000)])
def test_windows_may_become_narrower_and_wider_while_messages_wait(rigs, before_ms, after_ms):
    """Windows of another width are split when they begin."""
    life = Life(rigs())
    set_policy(life.rig, "delayedDelivery",
               {"active": True, "tickTime": 1_000, "timePartitionGranularityInMillis": before_ms})
    consumer = life.consumer()
    times = spread_over(200, HOUR_MS)
    life.publish(**dict(list(times.items())[:100]))
    life.wait(31_000)
    life.wait(31_000)
    came = life.came(consumer)
    life._take(set_policy(life.rig, "delayedDelivery",
                          {"active": True, "tickTime": 1_000, "timePartitionGranularityInMillis": after_ms}))
    life.publish(**dict(list(times.items())[100:]))
    came += [(when, name) for when, name in life.came(consumer)]
    life.ack(consumer, *[name for _, name in came])
    life.move(rigs.restart(life.rig))
    consumer = life.consumer()
    check_all_come(life, consumer, {name: at for name, at in times.items() if name not in dict(map(reversed, came))})


@pytest.mark.parametrize("flushed", [False, True])
def test_the_files_of_a_truncated_topic_bring_nothing_back(rigs, flushed):
    life = Life(rigs(roll_over_entries=40))
    consumer = life.consumer()
    life.publish(**spread_over(200, HOUR_MS, 200_000))
    if flushed:
        life.wait(31_000)
        life.wait(31_000)
    life.rig.asked("truncate", "t")
    life.publish(new=300_000, newer=400_000, between=350_000)
    if flushed:
        life.move(rigs.crash(life.rig))
        consumer = life.consumer()
    life.jump(2 * HOUR_MS)
    life.wait(2_000)
    assert sorted(life.names_of(consumer)) == ["between", "new", "newer"]
    assert life.rig.partition("t").schedule.waiting == 0


def test_a_kill_while_the_schedule_is_saved_costs_nothing(rigs, tmp_path, monkeypatch):
    """A kill at any step of saving the index loses no delayed message, including those published during the save."""
    life = Life(rigs(roll_over_entries=150))
    consumer = life.consumer()
    killed, sync_all = [], delayed_scheduler.sync_all

    def copying(folder):
        killed.append(copy_of(life.rig.data_dir, tmp_path / f"killed-{len(killed)}"))
        sync_all(folder)

    monkeypatch.setattr(delayed_scheduler, "sync_all", copying)
    for first in range(0, 400, 100):
        some = {f"{first + n}": first * 1_000 + at
                for n, at in enumerate(spread_over(100, 10 * 60_000, 1_000).values())}
        life.publish(**some)
        life.wait(33_000)
        life.ack(consumer, *life.names_of(consumer))
    assert len(killed) >= 9
    monkeypatch.setattr(delayed_scheduler, "sync_all", sync_all)
    acked = set()
    for folder in killed:
        after = Life.__new__(Life)
        after.positions, after.names = dict(life.positions), dict(life.names)
        after.move(rigs.on(folder, now_ms=life.rig.now_ms, **life.rig.settings))
        consumer = after.consumer()
        stored = {name for name, position in life.positions.items() if after.rig.partition("t").has(position)}
        backlog = after.account().get("backlog", 0)
        after.jump(HOUR_MS)
        after.wait(2_000)
        found = after.names_of(consumer)
        assert len(found) == len(set(found)) == backlog, folder
        assert set(found) <= stored
        acked.add(backlog)
    assert len(acked) > 1


@pytest.mark.parametrize("where", ["windows", "what says of them", "both"])
def test_a_disk_that_is_full_while_it_is_written_delays_nothing_further(rigs, monkeypatch, where, capsys):
    """Rows that find no room stay in memory, which is reported, and are written when there is room."""
    life = Life(rigs())
    consumer = life.consumer()
    life.publish(**(times := spread_over(200, HOUR_MS, 40_000)))
    write, write_anew = os.pwrite, delayed_scheduler.write_anew
    is_full = True

    def half(fd, data, at):
        if is_full and where != "what says of them" and os.readlink(f"/proc/self/fd/{fd}").endswith(".window"):
            if len(data) < 40:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(fd, data[:len(data) // 2], at)
        return write(fd, data, at)

    def none(path, data):
        if is_full and where != "windows":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return write_anew(path, data)

    monkeypatch.setattr(os, "pwrite", half)
    monkeypatch.setattr(delayed_scheduler, "write_anew", none)
    for _ in range(3):
        life.wait(31_000)
    assert "No space left" in capsys.readouterr().err
    life.publish(more=200_000, most=150_000)
    times |= {"more": 200_000, "most": 150_000}
    life.wait(120_000)
    first = life.came(consumer)
    assert {name for _, name in first} == {name for name, at in times.items() if at <= life.now}
    check_times(first, {name: at for name, at in times.items() if at <= life.now})
    life.ack(consumer, *[name for _, name in first])
    is_full = False
    for _ in range(3):
        life.wait(31_000)
    assert len([path for path in files_of(life) if path.suffix == ".window"]) > 3
    second = life.came(consumer)
    life.ack(consumer, *[name for _, name in second])
    life.move(rigs.crash(life.rig))
    consumer = life.consumer()
    left = times.keys() - {name for _, name in first + second}
    check_all_come(life, consumer, {name: times[name] for name in left})


def test_a_whole_folder_has_no_damage_to_tell_of(rigs):
    life = Life(rigs())
    life.consumer()
    life.publish(**spread_over(200, HOUR_MS, 40_000))
    rigs.restart(life.rig).close()
    assert [finding for finding in verify.walk(life.rig.data_dir) if finding.severity > Severity.NOTE] == []


@pytest.mark.parametrize("width_s", [1, 60, 300, 420, 3_600, 24 * 3_600])
def test_windows_are_as_wide_as_configured_at_first_and_never_overlap(width_s):
    """Farther windows are wider. Where windows divide an hour, waiting messages can still be counted by the hour."""
    width_ms = width_s * 1_000
    times = START_MS + np.unique(np.random.default_rng(7).integers(0, 90 * 24 * HOUR_MS, 50_000))
    starts, widths = windows_of(times // width_ms * width_ms, width_ms, START_MS)
    assert ((starts <= times) & (times < starts + widths)).all() and (starts % widths == 0).all()
    assert (starts[1:] >= np.where(starts[1:] == starts[:-1], starts[:-1], starts[:-1] + widths[:-1])).all()
    assert (widths[times < START_MS + 288 * width_ms] == width_ms).all() and (np.diff(widths) >= 0).all()
    assert widths.max() == max(width_ms, HOUR_MS) or HOUR_MS % width_ms
    assert len(np.unique(starts)) < 5_000

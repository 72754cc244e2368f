"""The delayed index at the edges of windows, ledgers and ticks."""
import errno
import os

import numpy as np
import pytest

from geminga.storage.cursors.cursor import Cursor
from geminga.storage.cursors.pending_acks import NEVER_MS
from geminga.storage.delayed.waiting_bitmaps import WaitingEntries
from geminga.storage.delayed.window_files import FAR_MS, WindowFiles, windows_of
from geminga.storage.format import WINDOW_ROW
from geminga.storage.topics.subscription import SubType

from .rig import START_MS

LEDGER, NEXT = 10, 20
WINDOW = 600_000, 300_000


def waiting(*ledgers):
    """Return bitmaps in which twenty entries of each ledger wait."""
    made = WaitingEntries()
    for ledger_id in ledgers:
        made.mark(ledger_id, 0, np.ones(20, bool))
    return made


def test_acknowledged_entries_do_not_count_as_waiting():
    cursor = Cursor(1, (LEDGER, 1), is_durable=True)
    cursor.bitmaps[LEDGER] = np.packbits(np.isin(np.arange(24), [4, 17]), bitorder="little")
    assert waiting(LEDGER).count_left(LEDGER, cursor) == 20 - 2 - 2


def test_a_truncated_ledger_waits_up_to_its_new_end_and_later_ledgers_not_at_all():
    left = waiting(LEDGER, NEXT)
    left.clear_from(LEDGER, 5)
    assert (left.all_of(LEDGER).tolist(), left.all_of(NEXT).tolist(), left.count) == ([*range(5)], [], 5)


def test_the_far_future_has_one_window():
    times = np.array([FAR_MS, FAR_MS + (1 << 40), FAR_MS + (1 << 60)])
    starts, widths = windows_of(times, 300_000, START_MS)
    assert (starts.tolist(), widths.tolist()) == ([FAR_MS] * 3, [0] * 3)


def test_a_removed_window_never_begins(tmp_path):
    windows = WindowFiles(tmp_path / "delayed")
    windows.append(WINDOW, np.zeros(3, WINDOW_ROW))
    assert windows.next_ms() == WINDOW[0]
    windows.remove(WINDOW)
    assert windows.next_ms() == NEVER_MS


def test_a_window_whose_file_cannot_be_made_is_none(tmp_path, monkeypatch):
    """Rows that found no room stay in memory; there is no file that a later start or a window's beginning would miss.
    """
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    windows = WindowFiles(tmp_path)
    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
        patched.setattr(os, "open", full)
        windows.append(WINDOW, np.zeros(3, WINDOW_ROW))
    assert (windows.files, windows.next_ms()) == ({}, NEVER_MS)


def test_rows_behind_a_snapshot_leave_the_file_with_the_next_append(tmp_path):
    windows = WindowFiles(tmp_path)
    windows.append(WINDOW, np.zeros(100, WINDOW_ROW))
    restored = WindowFiles(tmp_path)
    restored.restore({})
    restored.append(WINDOW, np.ones(3, WINDOW_ROW))
    assert os.path.getsize(restored.path(WINDOW)) == restored.size
    assert len(restored.peek(WINDOW)) == 3


def test_an_entry_that_is_due_as_it_is_published_does_not_wait_for_the_next_tick(rig):
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    rig.run(rig.flow(consumer, 10))
    rig.run(rig.sends((producer, b"later", {"deliver_at_time": START_MS + 1_000})))
    answers = rig.run(after_ms=1_000)
    assert [payload for _, payload in rig.delivered(answers, consumer)] == [b"later"]
    answers = rig.run(rig.sends((producer, b"now", {"deliver_at_time": rig.now_ms})))
    assert [payload for _, payload in rig.delivered(answers, consumer)] == [b"now"]
    assert rig.partition("t").schedule.limit is None


def test_an_entry_that_is_due_within_a_tick_comes_at_once_unless_times_are_strict(rigs):
    rig = rigs(delayed_delivery_strict=False)
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    rig.run(rig.flow(consumer, 10))
    answers = rig.run(rig.sends(*[(producer, b"%d" % ms, {"deliver_at_time": START_MS + ms})
                                  for ms in (5_000, 1_000, 1_001)]))
    assert [payload for _, payload in rig.delivered(answers, consumer)] == [b"1000"]

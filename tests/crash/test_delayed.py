"""Owners are killed while delayed messages are partly delivered: delayed.py, in small; and its checks see what they are
to see.
"""
import time

import pytest

from .delayed import MONTH_MS, Delays, Kills


@pytest.mark.usefixtures("start_broker")        # skipped where no broker may be killed
def test_delayed_messages_survive_kills_and_come_in_their_time(tmp_path, seed):
    kills = Kills(tmp_path, seed, messages=4_000, spread_s=4, pause_s=0.6)
    try:
        for _ in range(5):
            kills.kill_one()
        assert not kills.finish()
    finally:
        kills.close()
    assert len(kills.promises.acked) > 1_000


def test_what_is_early_lost_or_comes_back_is_a_fault():
    promises, now_ms = Delays("t", 4), int(time.time() * 1000)
    promises.sent, promises.receipted = 4, {0, 1, 2, 3}
    promises.due_ms[:] = 0, now_ms - 10, now_ms + MONTH_MS, now_ms - 5
    promises.acked.add((1, 0, -1))
    promises.asked[1, 0, -1] = 0
    promises.delivered((1, 0, -1), 0, b"0")
    promises.delivered((1, 2, -1), 2, b"2")
    faults = promises.check([((1, 2, -1), 2)])
    assert faults == {"back": 1, "early": 1, "lost": 2, "missing": 2}      # 1 and 3

"""Kills of owners while delayed messages are published, wait, fall due and are acknowledged: none is lost, none early,
none comes back.

    python -m tests.crash.delayed --messages 1000000 --kills 50 [--spread 120] [--pause 3] [--seed 1]

Of the messages a part is for at once, most are for some time within the next SPREAD seconds, and some are for next
month: those are to be there in the end, and to have come to nobody.  "Early" is by the clock of this host, which the
broker has too.
"""
import argparse
import random
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

from geminga.proto import pulsar_api_pb2 as api

from ..harness import HANG_SECONDS, Broker, eventually, unique_topic
from ..proto.client_frames import entry_of, message_metadata, send
from .promises import Place, Promises
from .traffic import GoingOn, Publisher, Subscriber, read

CONSUMERS, LEFT_EACH = 2, 500      # consumers; of so many messages one is never acknowledged
SOON_MS, MONTH_MS = 2_000, 30 * 24 * 3_600_000
PATIENCE = HANG_SECONDS


class Delays(Promises):
    """The promises about a number of delayed messages, each with its delivery time."""

    def __init__(self, topic: str, count: int):
        super().__init__(topic)
        self.due_ms = np.zeros(count, np.int64)
        self.has_come = np.zeros(count, bool)
        self.late_ms: list[int] = []           # of each, the first time

    def delivered(self, place: Place, number: int, data: bytes) -> None:
        now_ms = time.time() * 1000
        self._fault(self.found, "back", [place] if place in self.acked else [])
        if not 0 <= number < self.sent:
            self._fault(self.found, "unknown", [(place, data)])
            return
        due_ms = int(self.due_ms[number])
        self._fault(self.found, "early", [(number, due_ms - now_ms)] if due_ms > now_ms else [])
        if not self.has_come[number] and due_ms:
            self.late_ms.append(round(now_ms - due_ms))
        self.has_come[number] = True

    def missing(self, until_ms: float) -> list[int]:
        """Return the messages with a receipt that were due by `until_ms` and have not come."""
        receipted = np.fromiter(self.receipted, np.int64)
        return receipted[~self.has_come[receipted] & (self.due_ms[receipted] <= until_ms)].tolist()

    def last_due_ms(self) -> int:
        """Return the last delivery time, without those of next month."""
        return int(self.due_ms[self.due_ms < time.time() * 1000 + MONTH_MS / 2].max())

    def check(self, left: list[tuple[Place, int]]) -> Counter[str]:
        """Count broken promises after everything that is not for next month was due.  left: unacknowledged messages."""
        numbers, places = {number for _, number in left}, {place for place, _ in left}
        asked = set(self.asked.values())
        faults = Counter(self.found)
        self._fault(faults, "lost", sorted(self.receipted - numbers - asked))
        self._fault(faults, "back", sorted(self.acked & places))
        self._fault(faults, "missing", self.missing(self.last_due_ms()))
        self._fault(faults, "duplicates",
                    [number for number, count in Counter(number for _, number in left).items() if count > 1])
        return +faults


class DelayedPublisher(Publisher):
    """Publishes each number of its promises once, with a random delivery time."""

    def __init__(self, url: str, promises: Delays, chance: random.Random, spread_s: float):
        super().__init__(url, promises.topic, promises)
        self._chance, self._spread_ms = chance, spread_s * 1000

    def step(self) -> None:
        if self.promises.sent >= len(self.promises.due_ms) and self._answered >= self.promises.sent:
            self._over.wait(0.1)
        else:
            super().step()

    def _entry(self, number: int) -> bytes:
        if number >= len(self.promises.due_ms):      # the last burst may be longer: what is too much has no number
            self.promises.sent = len(self.promises.due_ms)
            return b""
        draw, now_ms = self._chance.random(), int(time.time() * 1000)
        after_ms = 0 if draw < 0.1 else self._chance.randrange(SOON_MS) if draw < 0.3 else \
            MONTH_MS + number if draw > 0.95 else self._chance.randrange(int(self._spread_ms))
        self.promises.due_ms[number] = due_ms = now_ms + after_ms if after_ms else 0
        delay = {"deliver_at_time": due_ms} if due_ms else {}
        return send(entry_of(message_metadata(sequence_id=number, publish_time=now_ms, **delay), b"%d" % number),
                    sequence_id=number)


def wants(number: int) -> bool:
    return number % LEFT_EACH != 3


class Kills:
    """A broker on a folder, one topic, its clients, and what they were promised."""

    def __init__(self, folder: Path, seed: int, *, messages: int, spread_s: float, pause_s: float):
        self.chance, self.pause_s = random.Random(seed), pause_s
        self.broker = Broker(folder / "data", "--owners", "1", "--workers", "1").start()
        self.promises = Delays(unique_topic("delayed"), messages)
        self.killed = 0
        url = self.broker.service_url
        publishing, consuming = (random.Random(self.chance.random()) for _ in range(2))
        self.clients = [
            GoingOn(lambda: Subscriber(url, self.promises.topic, wants, self.promises, kind=api.CommandSubscribe.Shared,
                                       consumers=CONSUMERS, chance=consuming)),
            GoingOn(lambda: DelayedPublisher(url, self.promises, publishing, spread_s))]

    def close(self) -> None:
        for client in self.clients:
            client.stop()
        self.broker.close()

    def kill_one(self) -> None:
        threading.Event().wait(self.chance.random() * self.pause_s)
        pid = self.broker.kill("owner")
        self.broker.wait_replaced("owner", 0, pid, PATIENCE)
        self.killed += 1
        if self.chance.random() < 0.7:        # else the next comes while this one is not over
            acked = len(self.promises.acked)
            eventually(lambda: len(self.promises.acked) > acked or self._is_idle, PATIENCE,
                       "an acknowledgement after a kill")

    @property
    def _is_idle(self) -> bool:
        return self.promises.sent == len(self.promises.due_ms) and not self.promises.missing(
            time.time() * 1000 + 10_000
        )

    def finish(self) -> Counter[str]:
        """Wait until everything of the next minutes was due, and count broken promises."""
        promises = self.promises
        eventually(lambda: promises.sent == len(promises.due_ms), 100 * PATIENCE, "the last message published")
        soon_ms = promises.last_due_ms()
        wait_s = max(0.0, soon_ms / 1000 - time.time()) + 10 * PATIENCE
        eventually(lambda: not promises.missing(soon_ms), wait_s, "what is due")
        for client in self.clients:
            client.stop()
        self.broker.kill_supervisor()
        self.broker.start()
        faults = promises.check(read(self.broker.service_url, promises.topic, "sub"))
        unexpected = [said for client in self.clients for said in client.unexpected]
        for said in promises.details + unexpected:
            print(f"{said!r}"[:1000])
        faults["unexpected"] += len(unexpected)
        return +faults


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.delayed", description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--spread", type=float, default=120, help="seconds over which most of them fall due")
    parser.add_argument("--pause", type=float, default=3, help="seconds between two kills, at most")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kills = Kills(Path(folder), options.seed, messages=options.messages, spread_s=options.spread,
                      pause_s=options.pause)
        try:
            for number in range(options.kills):
                kills.kill_one()
                print(f"\r{number + 1} of {options.kills} kills, {kills.promises.sent:,} messages published, "
                      f"{int(kills.promises.has_come.sum()):,} have come", end="", flush=True)
            faults = kills.finish()
        finally:
            kills.close()
    promises = kills.promises
    late = np.percentile(promises.late_ms, (50, 99)).astype(int).tolist()
    print(f"\n{kills.killed} kills; {len(promises.receipted):,} messages receipted, {int(promises.has_come.sum()):,} "
          "have come, "
          f"{len(promises.acked):,} acknowledged with a receipt; late p50 {late[0]} ms, p99 {late[1]} ms with all "
          "those kills; "
          f"faults: {dict(faults) or 'none'}")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())

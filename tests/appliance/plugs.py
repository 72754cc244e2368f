"""Power cuts: a box with Geminga under load of real and raw clients loses its power again and again.

    python -m tests.appliance.plugs --plugs 200 --seed 1

A round is a freshly installed box, a random configuration, some topics, and PLUGS power cuts.  Nobody does anything in
the box but switch it on.  After each start the messages with receipts since the last time are read, and in the end
everything is compared with what clients were promised.
"""
import argparse
import random
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from geminga.proto import pulsar_api_pb2 as api

from ..crash import rounds
from ..crash.clients import KINDS, Client
from ..crash.figures import configuration
from ..crash.promises import Promises
from ..crash.traffic import messages_of
from ..harness import eventually
from ..proto.client_frames import T, command
from ..workers.peer import Closed, Peer
from .box import Box
from .installed import add_options, begin, installed

PLUGS = 20                    # power cuts of a round
LOAD_SECONDS = 2.0            # at most, between a start and a power cut
BACK_SECONDS = 60             # in this time the broker has to be back; the real time is in the figures
EARLY = 0.25                  # the share of power cuts that are followed by one during the start


class Appliance:
    """The broker in a box, by its ports; it is started by switching the box on."""

    service_url, http_url = "pulsar://127.0.0.1:6650", "http://127.0.0.1:8080"

    def __init__(self, box: Box):
        self.box = box

    def start(self) -> None:
        """Switch on, and return when the broker serves.  Raises RuntimeError if it does not come back."""
        self.box.start()
        try:
            eventually(self._answers, BACK_SECONDS, "a broker that answers")
        except TimeoutError as late:
            raise RuntimeError(f"{late}; it said:\n{self.log()}") from late

    def _answers(self) -> bool:
        with suppress(Closed, OSError):
            Peer(self.service_url).socket.close()
            return True
        return False

    def log(self) -> str:
        """Return the log over all starts, also when the box is gone."""
        command = ["journalctl", f"--directory={self.box.upper / 'var/log/journal'}", "--no-pager", "--unit=geminga",
                   "--output=short-iso"]
        return subprocess.run(command, capture_output=True, text=True).stdout

    def close(self) -> None:
        self.box.close()


class Seen:
    """The content of a topic, as far as it was read."""

    def __init__(self, url: str, topic: str):
        self._url, self._topic = url, topic
        self._place: tuple[int, int] | None = None
        self._found: set[int] = set()

    def read_on(self) -> set[int]:
        """Read further; return the numbers of all messages that the topic has had so far."""
        start = (
            {"start_message_id": dict(zip(("ledgerId", "entryId"), self._place, strict=True))} if self._place else {}
        )
        with Peer(self._url) as peer:
            asked = peer.ask(T.SUBSCRIBE, topic=self._topic, subscription="seen",
                             subType=api.CommandSubscribe.Exclusive, consumer_id=1,
                             request_id=1, durable=False, initialPosition=api.CommandSubscribe.Earliest,
                             **start)
            assert asked.type == T.SUCCESS, asked
            last = peer.ask(T.GET_LAST_MESSAGE_ID, consumer_id=1, request_id=2).getLastMessageIdResponse.last_message_id
            peer.say(command(T.FLOW, consumer_id=1, messagePermits=1 << 30))
            while self._place is None or self._place < (last.ledgerId, last.entryId):
                heard, entry = peer.hear_frame()
                if heard.type == T.MESSAGE:
                    self._found.update(number for _, number, _ in messages_of(heard.message, entry))
                    self._place = heard.message.message_id.ledgerId, heard.message.message_id.entryId
        return self._found


class Round(rounds.Round):
    """One box under load and power cuts."""

    def __init__(self, folder: Path, seed: int, layers: list[Path]):
        chance = random.Random(seed)
        self.epoch, self.folder = 0, folder
        self.box = Box(folder / "box", layers)
        self.box.path("/etc/geminga/geminga.toml").write_text(configuration(chance, workers=2, owners=2))
        self._seen: list[tuple[Promises, list[Seen]]] = []
        super().__init__(Appliance(self.box), chance)

    def load(self) -> None:
        self.add_lanes("plug", 3)
        client = Client(self.broker, self.folder / "clients.log", self.chance.randrange(1 << 32), lambda: self.epoch,
                        **self.chance.choice(KINDS))
        self.clients.append(client)
        topics = [(lane.promises, [lane.promises.topic]) for lane in self.lanes if lane.promises.is_audited]
        topics.append((client.promises, client.parts))
        self._seen = [(promises, [Seen(self.broker.service_url, topic) for topic in parts])
                      for promises, parts in topics]

    def end(self) -> None:
        time.sleep(self.chance.random() * LOAD_SECONDS)
        self.epoch += 1
        receipted = [set(promises.receipted) for promises, _ in self._seen]
        begun = time.monotonic()
        self.box.pull_plug()
        self.figures.ends["plug pulled under load"] += 1
        while self.chance.random() < EARLY:
            self.box.start()
            time.sleep(self.chance.random() * 1.5)
            self.box.pull_plug()
            self.figures.ends["plug pulled during the start"] += 1
        self.epoch += 1
        self.start()
        sent = {lane: lane.promises.sent for lane in self.lanes}
        eventually(lambda: all(lane.promises.latest >= sent[lane] for lane in self.lanes), BACK_SECONDS,
                   "receipts on all topics")
        self.figures.took("return of publishing, plug and boot included", time.monotonic() - begun)
        for (promises, parts), answered in zip(self._seen, receipted, strict=True):
            missing = answered - set().union(*(part.read_on() for part in parts))
            if missing:
                self.figures.faults["missing after a plug"] += len(missing)
                print(f"{promises.topic}: missing after a plug: {sorted(missing)[:20]}", flush=True)

    def finish(self) -> None:
        self.box.pull_plug()
        self.figures.ends["plug pulled, all being quiet"] += 1
        self.start()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    add_options(parser)
    options = parser.parse_args()
    debian = begin(options)
    with tempfile.TemporaryDirectory(dir=options.cache, prefix="plugs-") as folder:
        layers = installed(Path(folder) / "installed", debian, options.package)
        return rounds.many(lambda place, seed: Round(place, seed, layers), options.plugs, PLUGS, options.seed,
                           Path(folder))


if __name__ == "__main__":
    raise SystemExit(main())

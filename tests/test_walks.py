"""Walks: the files that a SEND, a delivery and an ACK pass, in a worker and in an owner.

These are the files that somebody opens who follows a message through the source.  A profiler notes the functions that
a real worker and a real owner enter for one message.  docs/source-tour.md names all their files, and only bounds keep
a walk from growing by a file now and then.  No part of a walk are

- functions that are entered without any message too, by an empty pass or an empty envelope
- properties, which are fields for their reader
- the ground floor: layouts of bytes, checksums, counters, system calls
- statistics
"""
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from geminga.proto import envelope, responses

from .proto.client_frames import T, command, send
from .storage.rig import Rig
from .workers.played import PlayedWorker

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("proto/", "storage/", "workers/")
GROUND = ("proto/varints.py", "proto/rows.py", "proto/checksums.py", "storage/format.py", "storage/runtime/",
          "storage/disk/", "storage/ledgers/journal_ops.py", "storage/statistics/")
TOUR = (ROOT / "docs" / "source-tour.md").read_text()


class Walk:
    """The functions of ours that were entered, as (file, name), in order."""

    def __init__(self):
        self.entered: dict[tuple[str, str], None] = {}

    def during(self, call: Callable, *arguments):
        """Return what the call returns, and note what it enters."""
        sys.setprofile(self._note)
        try:
            return call(*arguments)
        finally:
            sys.setprofile(None)

    def _note(self, frame, event: str, _) -> None:
        if event != "call":
            return
        file, name = Path(frame.f_code.co_filename), frame.f_code.co_qualname.partition(".<locals>")[0]
        if ROOT not in file.parents:
            return
        file = str(file.relative_to(ROOT))
        if file.startswith(LAYERS) and not file.startswith(GROUND) and not _is_property(name, frame.f_globals):
            self.entered[file, name] = None

    def files(self, without: "Walk") -> dict[str, list[str]]:
        """Files with their functions, but for functions of the other walk."""
        files: dict[str, list[str]] = {}
        for file, name in self.entered:
            if (file, name) not in without.entered:
                files.setdefault(file, []).append(name)
        return files


def _is_property(name: str, found: dict) -> bool:
    for part in name.split("."):
        found = (found if isinstance(found, dict) else vars(found)).get(part)
        if not isinstance(found, type):
            return isinstance(found, property)
    return False


class Broker:
    """One worker with one client, and the owner of its topic.  They are told by hand what they say to each other."""

    def __init__(self, folder: Path, monkeypatch):
        self._rig, self._worker = Rig(folder), PlayedWorker(folder, monkeypatch)
        self._client, self._owner = self._worker.client(), self._worker.owners[0]
        topic = self._worker.topic(0)
        self.producer = self._rig.producer(topic, connection=self._client.number)
        self.consumer = self._rig.consumer(topic, connection=self._client.number)
        self._open(T.PRODUCER, envelope.PRODUCER_READY, self.producer, topic=topic, producer_id=self.producer.object_id)
        self._open(T.SUBSCRIBE, envelope.CONSUMER_READY, self.consumer, topic=topic, subscription="sub", subType=0,
                   consumer_id=self.consumer.object_id)
        self._idle = Walk()
        self._pass(self._idle)
        self._idle.during(self._owner.says)
        self._client.hear()

    def _open(self, kind, action: int, handle, **fields) -> None:
        self._client.say(command(kind, request_id=1, **fields))
        self._owner.replies(self._client, responses.success(1), request_id=1, action=action, object_id=handle.object_id,
                            handle=handle.number)

    def _pass(self, walk: Walk, *sections, dispatches: Walk | None = None) -> list:
        """One pass of the owner; its dispatch is a walk of its own, if that is given.  Return its envelopes."""
        passes = self._rig.owner.passes
        passes.begin(self._rig.now_ms)
        if sections:
            unsealed = envelope.unseal([bytes(part) for part in envelope.seal(list(sections))])[1]
            walk.during(passes.receive, self.consumer.worker, unsealed)
        walk.during(passes.decide)
        walk.during(passes.sync)
        return (dispatches or walk).during(passes.answer)

    def _say(self, walk: Walk, *frames: bytes) -> None:
        walk.during(self._client.say, *frames)
        walk.during(self._worker.turn)

    def _answer(self, walk: Walk, envelopes: list) -> list:
        """Commands that the client hears when the worker gets these envelopes."""
        for _, frames in envelopes:
            self._owner.link.socket.inbox.append([bytes(part) for part in frames])
            walk.during(self._worker.worker.owners.receive, self._owner.link)
        walk.during(self._worker.turn)
        return self._client.hear()

    def send(self, count: int) -> dict[str, list[str]]:
        """The walk of SENDs to their receipts."""
        walk = Walk()
        self._say(walk, *[send(producer_id=self.producer.object_id, sequence_id=number) for number in range(count)])
        envelopes = self._pass(walk, self._rig.sends(*[(self.producer, b"x")] * count), dispatches=Walk())
        assert [heard.type for heard in self._answer(walk, envelopes)] == [T.SEND_RECEIPT] * count
        return walk.files(self._idle)

    def deliver(self, count: int) -> tuple[dict[str, list[str]], list]:
        """(the walk of entries from the owner to the client, their ids)."""
        walk = Walk()
        envelopes = self._pass(Walk(), self._rig.flow(self.consumer, count), dispatches=walk)
        heard = self._answer(walk, envelopes)
        assert [one.type for one in heard] == [T.MESSAGE] * count
        return walk.files(self._idle), [one.message.message_id for one in heard]

    def acknowledge(self, ids: list) -> dict[str, list[str]]:
        """The walk of acknowledgements from the client to the cursor."""
        walk = Walk()
        self._say(walk, *[command(T.ACK, consumer_id=self.consumer.object_id, ack_type=0, message_id=[one])
                          for one in ids])
        self._pass(walk, self._rig.acks(self.consumer, *[(one.ledgerId, one.entryId) for one in ids]))
        return walk.files(self._idle)

    def close(self) -> None:
        self._worker.close()
        self._rig.close()


@pytest.fixture
def broker(tmp_path, monkeypatch):
    made = Broker(tmp_path, monkeypatch)
    yield made
    made.close()


def section(title: str) -> str:
    """A section of the tour."""
    return TOUR.partition(f"\n## {title}")[2].partition("\n## ")[0]


def shown(files: dict[str, list[str]]) -> str:
    return "".join(f"\n{number:3} {file}: {', '.join(names)}" for number, (file, names) in enumerate(files.items(), 1))


def check(files: dict[str, list[str]], title: str, *, in_owner: int, in_all: int) -> None:
    assert sum(file.startswith("storage/") for file in files) <= in_owner, shown(files)
    assert len(files) <= in_all, shown(files)
    assert [file for file in files if f"`{file}`" not in section(title)] == [], shown(files)


@pytest.mark.parametrize("count", [1, 50])
def test_walks_stay_short_and_the_tour_names_their_files(broker, count):
    """One message goes one by one, fifty as arrays; the first of each opens files and makes room."""
    for _ in range(2):
        sent = broker.send(count)
        delivered, ids = broker.deliver(count)
        acknowledged = broker.acknowledge(ids)
    check(sent, "A SEND, from socket to receipt", in_owner=8, in_all=16)
    check(delivered, "A delivery, from ledger to socket", in_owner=10, in_all=15)
    check(acknowledged, "An ACK", in_owner=10, in_all=17)

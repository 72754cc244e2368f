"""Takes back what redrives have sent to a subscription, before consumers have it.

    a job finds in the ledgers what redrives of the dead letter topic have sent     (tasks/redriven.py)
    a lane of the mover of dead letters attaches to the subscription                (workers/dead_letters/lane.py)
    a round: the owner makes those dead that nobody has; the lane publishes their letters and acknowledges them, in one
    transaction

When the lane's connection ends, the owner gives consumers what is not moved.  So a kill loses nothing, and repeats
nothing.
"""
import asyncio
import json
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from geminga.proto import names
from geminga.proto.names import TopicName
from geminga.storage.admin.questions import TakeBack
from geminga.storage.runtime import unix_sockets
from geminga.supervisor.admin.requests import jobs
from geminga.supervisor.admin.requests.owners import OWNERS
from geminga.workers.dead_letters.lane import Lane, LaneFailed, Source
from geminga.workers.pulsar_client.connection import ClientError

if TYPE_CHECKING:
    from geminga.supervisor.tasks.redriven import Asked

_ROUND = 200                     # entries that an owner is asked for at once
_ROUND_S = 0.2                   # with a rate, a round has as many entries as go in this time
Found = tuple[str, int, int]     # topic, of a partition; ledger; entry


@dataclass(frozen=True)
class Undo:
    """What is to be taken back."""

    letters: TopicName           # the dead letter topic
    topic: str                   # complete name of the topic that redrives have sent to
    subscription: str
    keeper: str                  # subscription of the dead letter topic that gets the letters if it is made anew
    count: int                   # end after so many
    rate: float                  # messages/s; 0: no limit
    conditions: dict[str, Any]   # as of tasks/redriven.py
    looks: bool                  # whether nothing is changed


@dataclass
class Undone:
    """Progress, in messages."""

    taken_back: int = 0
    held: int = 0
    chunks: int = 0
    complaints: list[str] = field(default_factory=list)

    @property
    def not_possible(self) -> dict[str, int]:
        """Numbers of messages that stay, by reason."""
        reasons = {"a consumer, a transaction or the quarantine has it": self.held,
                   "it is in chunks, which would not be together in another topic": self.chunks}
        return {why: count for why, count in reasons.items() if count}


async def undo(request: web.Request, folder: Path, asked: Undo) -> web.Response:
    """Take messages back, and answer with their number.  Raises 400, 409, Refusal."""
    work, question = _Work(request, folder, asked), _question(folder, asked)
    job = await asyncio.create_subprocess_exec(
        *jobs.command("supervisor.tasks.redriven"), env=jobs.environment(), stdin=PIPE, stdout=PIPE, stderr=DEVNULL,
        start_new_session=True)
    try:
        assert job.stdin is not None
        job.stdin.write(json.dumps(question).encode())
        job.stdin.close()
        async for places in _rounds(job, work):
            if not await work.round(places):
                break
    except (LaneFailed, ClientError, OSError) as error:
        raise web.HTTPConflict(text=f"{error}; {work.done.taken_back} were taken back; try again") from None
    finally:
        work.close()
        if job.returncode is None:
            job.kill()
        await job.wait()
    done = work.done
    return web.json_response({
        "topic": str(asked.letters), "dry_run": asked.looks, "undone_at": asked.topic,
        "subscription": asked.subscription, "taken_back": done.taken_back, "not_possible": done.not_possible,
        "complaints": done.complaints})


def _question(folder: Path, asked: Undo) -> "Asked":
    return {"folder": str(folder), "topic": asked.topic, "letters": str(asked.letters), **asked.conditions}      # type: ignore[typeddict-item]


async def _rounds(job: Process, work: "_Work") -> AsyncIterator[list[Found]]:
    """Yield what a job finds, as lists of places in one ledger, ascending.  Raises 400."""
    assert job.stdout is not None
    collected: list[Found] = []
    is_whole = False
    async for line in job.stdout:
        said = json.loads(line)
        if "wrong" in said:
            raise web.HTTPBadRequest(text=said["wrong"])
        if "complaint" in said:
            work.done.complaints.append(said["complaint"])
        is_whole = "end" in said
        if "at" not in said:
            continue
        at: Found = tuple(said["at"])
        if collected and (collected[-1][:2] != at[:2] or len(collected) >= work.size):
            yield collected
            collected = []
        collected.append(at)
    if collected:
        yield collected
    if not is_whole:
        work.done.complaints.append("the search took too long; name a time with --since")


class _Work:
    """Messages that are taken back, one partition after the other."""

    def __init__(self, request: web.Request, folder: Path, asked: Undo) -> None:
        self._owners, self._folder, self._asked = request.app[OWNERS], folder, asked
        self._lane: Lane | None = None
        self._partition = ""                  # of the lane
        self._began_s = asyncio.get_running_loop().time()
        self.done = Undone()

    def __repr__(self) -> str:
        return f"<_Work {self._asked.topic} {self.done}>"

    @property
    def size(self) -> int:
        """Entries of the next round."""
        most = min(_ROUND, self._asked.count - self.done.taken_back)
        return max(1, min(most, int(self._asked.rate * _ROUND_S)) if self._asked.rate else most)

    async def round(self, places: list[Found]) -> bool:
        """Take back those of some entries of a ledger that nobody has; return whether there may be more.

        Raises LaneFailed, ClientError, OSError, Refusal.
        """
        asked, [topic, ledger_id, _] = self._asked, places[0]
        entries = [entry_id for _, _, entry_id in places]
        question = TakeBack(names.parse(topic), subscription=asked.subscription, looks=True,
                            positions=[(ledger_id, entry_id) for entry_id in entries])
        answer = await self._owners.ask(question)
        if answer.free and not asked.looks:      # a lane only where there is something for it
            lane = await self._lane_at(topic)
            answer = await self._owners.ask(TakeBack(
                question.topic, subscription=asked.subscription, positions=question.positions, looks=False))
            if await lane.take_back(answer.free) < answer.free:
                raise LaneFailed("not all came in time: a transaction may have them")
        self.done.taken_back += answer.free
        self.done.held += answer.held
        self.done.chunks += answer.chunks
        if asked.rate and not asked.looks:
            due_s = self._began_s + self.done.taken_back / asked.rate
            await asyncio.sleep(max(0.0, due_s - asyncio.get_running_loop().time()))
        return self.done.taken_back < asked.count

    async def _lane_at(self, topic: str) -> Lane:
        if self._lane is None or self._partition != topic:
            self.close()
            self._lane = Lane(self._folder / unix_sockets.CLIENTS, Source(topic, self._asked.subscription),
                              str(self._asked.letters), self._asked.keeper, undoes=True)
            self._partition = topic
            await self._lane.open()
        return self._lane

    def close(self) -> None:
        """End the lane: what it has not moved goes to consumers."""
        if self._lane is not None:
            self._lane.close()
            self._lane = None

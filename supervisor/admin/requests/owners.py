"""Questions to owners: only the owner of a topic reads and changes its partitions, so administration asks it."""
import asyncio
import itertools
import json
from pathlib import Path
from typing import Any, TypeVar, cast

import zmq
from aiohttp import web

from geminga.proto import envelope
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.admin import typed_json
from geminga.storage.admin.questions import Question, TopicQuestion, answer_type
from geminga.storage.admin.table_questions import Listing
from geminga.storage.runtime import zmq_frames
from geminga.storage.runtime.routing import owner_of
from geminga.workers.owners.links import OwnerLink

Answer = TypeVar("Answer")
_ANSWER_SECONDS = 10


class Owners:
    """The admin process's links to all owners, and its questions without an answer yet."""

    def __init__(self, serial: int, owners: int, run_dir: Path):
        """Begin without links.  serial: this process's own number, by which owners tell their peers apart."""
        self._serial, self._run_dir = serial, run_dir
        self._context = zmq.Context()
        self._links: list[OwnerLink | None] = [None] * owners
        self._numbers = itertools.count(1)
        self._asked: dict[int, tuple[OwnerLink, asyncio.Future[dict[str, Any]]]] = {}
        self._is_up = [asyncio.Event() for _ in range(owners)]

    def __repr__(self) -> str:
        up = sum(link is not None for link in self._links)
        return f"<Owners up={up} of={len(self._links)} asked={len(self._asked)}>"

    @property
    def count(self) -> int:
        return len(self._links)

    def is_up(self, index: int) -> bool:
        return self._links[index] is not None

    async def ask(self, question: TopicQuestion[Answer]) -> Answer:
        """Ask the topic's owner a question, and return the answer.  Raises Refusal."""
        link = self._links[owner_of(str(question.topic), len(self._links))]
        if link is None:
            raise Refusal(api.ServiceNotReady, "The topic's owner is being started; try again")
        return await self._ask(link, question)

    async def ask_owner(self, index: int, question: Question[Answer]) -> Answer:
        """Ask the owner with this index a question, and return the answer.  Raises Refusal."""
        if (link := self._links[index]) is None:
            raise Refusal(api.ServiceNotReady, "The owner is being started; try again")
        return await self._ask(link, question)

    async def ask_all(self, question: Question[Answer]) -> list[Answer]:
        """Ask all owners a question, and return their answers in order of the owners.  Raises Refusal."""
        return await asyncio.gather(*(self.ask_owner(index, question) for index in range(len(self._links))))

    async def tell_all(self, question: Question[None]) -> None:
        """Tell all owners of a change, and wait until each has answered.

        An owner that is being started is told when it is up: it may have opened partitions before it could learn of the
        change. Raises Refusal if an owner does not answer in time.
        """
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await asyncio.gather(*(self._tell(index, question) for index in range(len(self._links))))
        except TimeoutError:
            raise Refusal(api.ServiceNotReady, "It is kept, but not all owners have taken notice yet") from None

    async def _tell(self, index: int, question: Question[None]) -> None:
        while True:
            await self._is_up[index].wait()
            try:
                link = self._links[index]
                assert link is not None, index      # an owner that is up has a link
                return await self._ask(link, question)
            except Refusal as refusal:
                if refusal.code != api.ServiceNotReady:      # else it ended, and its successor has to be told
                    raise

    async def _ask(self, link: OwnerLink, question: Question[Answer]) -> Answer:
        number, answered = next(self._numbers), asyncio.get_running_loop().create_future()
        self._asked[number] = link, answered
        link.question(number, question.encode())
        link.flush()
        # ZeroMQ's descriptor shows changes only: an answer that came with an earlier one would not be seen.
        self._receive(link)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                said = await answered
        except TimeoutError:
            raise Refusal(api.ServiceNotReady, "The topic's owner does not answer") from None
        finally:
            self._asked.pop(number, None)
        if "refused" in said:
            raise Refusal(said["refused"], said["text"])
        answer = said["answer"]
        read = answer if isinstance(answer, bytes) else typed_json.read(answer_type(type(question)), answer)
        return cast("Answer", read)      # it is of the type that the question names: `read` has compared them

    def owner_up(self, index: int, serial: int) -> None:
        """Connect to an owner that has started."""
        self.owner_gone(index)
        link = self._links[index] = OwnerLink(self._context, self._run_dir, serial, self._serial)
        asyncio.get_running_loop().add_reader(int(link.socket.getsockopt(zmq.FD)), self._receive, link)
        self._is_up[index].set()

    def owner_gone(self, index: int) -> None:
        """Close the link to an owner that has ended, and fail the questions that it has not answered."""
        link, self._links[index] = self._links[index], None
        self._is_up[index].clear()
        if link is None:
            return
        for asked, answered in list(self._asked.values()):
            if asked is link and not answered.done():
                answered.set_result({"refused": api.ServiceNotReady,
                                     "text": "The topic's owner ended before it answered"})
        asyncio.get_running_loop().remove_reader(int(link.socket.getsockopt(zmq.FD)))
        link.close()

    def _receive(self, link: OwnerLink) -> None:
        while not link.socket.closed and zmq_frames.has_come(link.socket):
            _, sections = envelope.unseal(zmq_frames.receive(link.socket))
            for kind, rows, data in sections:
                if kind == envelope.ANSWERS:
                    self._answered(rows.tolist(), data)

    def _answered(self, rows: list[tuple[int, int]], data: memoryview) -> None:
        at = 0
        for number, size in rows:
            _, answered = self._asked.get(number, (None, None))
            if answered is not None and not answered.done():
                answer = bytes(data[at:at + size])
                answered.set_result({"answer": answer} if answer.startswith(envelope.RAW) else json.loads(answer))
            at += size


async def whole_listing(owners: Owners, index: int, question: Question[Listing]) -> Listing:
    """Ask an owner for a listing until it has one.  Raises Refusal.

    An owner makes some rows in each of its passes, and answers without rows until all are made.
    """
    while (listing := await owners.ask_owner(index, question)).stale:
        pass
    return listing


OWNERS = web.AppKey("owners", Owners)

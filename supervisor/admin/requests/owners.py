"""Questions to the owners: what administration does to a topic is done by the one process that may."""
import asyncio
import itertools
import json
from pathlib import Path

import zmq
from aiohttp import web

from geminga.proto import envelope
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.storage.runtime import zmq_frames
from geminga.storage.runtime.routing import owner_of
from geminga.workers.owners.links import OwnerLink

_ANSWER_SECONDS = 10


class Owners:
    """The links to all owners, and the questions that are not answered yet."""

    def __init__(self, serial: int, owners: int, run_dir: Path):
        self._serial, self._run_dir = serial, run_dir
        self._context = zmq.Context()
        self._links: list[OwnerLink | None] = [None] * owners
        self._numbers = itertools.count(1)
        self._asked: dict[int, tuple[OwnerLink, asyncio.Future]] = {}
        self._is_up = [asyncio.Event() for _ in range(owners)]

    @property
    def count(self) -> int:
        return len(self._links)

    def is_up(self, index: int) -> bool:
        return self._links[index] is not None

    async def ask(self, question: str, topic: TopicName, **arguments):
        """The answer of the topic's owner.  Raises Refusal."""
        link = self._links[owner_of(str(topic), len(self._links))]
        if link is None:
            raise Refusal(api.ServiceNotReady, "The topic's owner is being started; try again")
        return await self._ask(link, {"ask": question, "topic": str(topic), **arguments})

    async def ask_owner(self, index: int, question: str, **arguments):
        """The answer of one owner, about no one topic.  Raises Refusal."""
        if (link := self._links[index]) is None:
            raise Refusal(api.ServiceNotReady, "The owner is being started; try again")
        return await self._ask(link, {"ask": question, **arguments})

    async def tell_all(self, question: str, **arguments) -> None:
        """Every owner has answered; one that is being started, when it is up, as it may have opened partitions before.

        Raises Refusal when one of them does not in good time.
        """
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await asyncio.gather(*(self._tell(index, {"ask": question, **arguments}) for index in range(len(self._links))))
        except TimeoutError:
            raise Refusal(api.ServiceNotReady, "It is kept, but not all owners have taken notice yet") from None

    async def _tell(self, index: int, question: dict) -> None:
        while True:
            await self._is_up[index].wait()
            try:
                link = self._links[index]
                assert link is not None      # an owner that is up has one
                return await self._ask(link, question)
            except Refusal as refusal:
                if refusal.code != api.ServiceNotReady:      # it ended; its successor is told
                    raise

    async def _ask(self, link: OwnerLink, question: dict):
        number, answered = next(self._numbers), asyncio.get_running_loop().create_future()
        self._asked[number] = link, answered
        link.question(number, json.dumps(question).encode())
        link.flush()
        self._receive(link)      # ZeroMQ's descriptor tells of changes only
        try:
            found = await asyncio.wait_for(answered, _ANSWER_SECONDS)
        except TimeoutError:
            raise Refusal(api.ServiceNotReady, "The topic's owner does not answer") from None
        finally:
            self._asked.pop(number, None)
        if "refused" in found:
            raise Refusal(found["refused"], found["text"])
        return found["answer"]

    def owner_up(self, index: int, serial: int) -> None:
        self.owner_gone(index)
        link = self._links[index] = OwnerLink(self._context, self._run_dir, serial, self._serial)
        asyncio.get_running_loop().add_reader(link.socket.getsockopt(zmq.FD), self._receive, link)
        self._is_up[index].set()

    def owner_gone(self, index: int) -> None:
        link, self._links[index] = self._links[index], None
        self._is_up[index].clear()
        if link is None:
            return
        for asked, answered in list(self._asked.values()):
            if asked is link and not answered.done():
                answered.set_result({"refused": api.ServiceNotReady, "text": "The topic's owner ended before it answered"})
        asyncio.get_running_loop().remove_reader(link.socket.getsockopt(zmq.FD))
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
                found = bytes(data[at:at + size])
                answered.set_result({"answer": found} if found.startswith(envelope.RAW) else json.loads(found))
            at += size


OWNERS = web.AppKey("owners", Owners)

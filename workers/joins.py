"""Commands that make producers and consumers, on their way to one owner: few of them are with it at a time, and clients take turns.

    PRODUCER, SUBSCRIBE -> there is room: the owner is asked
                        -> there is none: it waits in this worker, behind those of its client -> the client's turn, with room

An owner carries out what one envelope says before anybody's messages of the next.  Without the bound thousands of consumers that
subscribe at once would lie before everybody's messages for seconds.  A command takes room until the owner has looked at it, which the
credit of its next pass says, not until it is answered: answers may wait for other producers to go.
"""
from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from geminga.proto import pulsar_api_pb2 as api

if TYPE_CHECKING:
    from geminga.workers.client import Client
    from geminga.workers.links import OwnerLink

JOINING_BYTES = 2 << 20      # as a link counts them: 127 commands, which take an owner some thirty milliseconds


class Joins:
    """Those of all clients of a worker.  While the owner is being started, everything waits."""

    def __init__(self):
        self._queues: OrderedDict[Client, OrderedDict[int, api.BaseCommand]] = OrderedDict()     # the client whose turn is next first
        self._asked: deque[tuple[int, int]] = deque()      # (the link's `sent` behind it, its size) of commands not looked at
        self._size = 0

    def __repr__(self) -> str:
        return f"<Joins of {len(self._queues)} clients, {len(self._asked)} asked>"

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._queues

    def size(self, link: "OwnerLink") -> int:
        """Bytes in flight, as the link counts them, of what the owner was asked and has not looked at."""
        while self._asked and self._asked[0][0] <= link.taken:
            self._size -= self._asked.popleft()[1]
        return self._size

    def has_room(self, link: "OwnerLink") -> bool:
        """Whether the owner may be asked one more."""
        return self.size(link) < JOINING_BYTES

    def asked(self, link: "OwnerLink", since: int) -> None:
        """The owner is asked one more; the link's `sent` was `since` before."""
        self._asked.append((link.sent, link.sent - since))
        self._size += link.sent - since

    def owner_gone(self) -> None:
        """Its successor has been asked nothing."""
        self._asked.clear()
        self._size = 0

    def wait(self, client: "Client", number: int, command: api.BaseCommand) -> None:
        self._queues.setdefault(client, OrderedDict())[number] = command

    def withdraw(self, client: "Client", number: int) -> None:
        """It waits."""
        queue = self._queues[client]
        del queue[number]
        if not queue:
            del self._queues[client]

    def take(self) -> tuple["Client", int, api.BaseCommand]:
        """(client, number, command) of the one whose turn it is; it waits no more."""
        client, queue = self._queues.popitem(last=False)
        number, command = queue.popitem(last=False)
        if queue:
            self._queues[client] = queue      # behind all others
        return client, number, command

"""Commands that open producers and consumers, on their way to one owner: few of them are with it at a time, and clients
take turns.

    PRODUCER, SUBSCRIBE -> there is room: the owner is asked
                        -> there is none: it waits behind those of its client, until its client's turn comes

An owner carries out all commands of an envelope before anybody's messages of the next one.  Without this bound,
thousands of consumers that subscribe at once would delay everybody's messages for seconds.  A command takes room until
the owner has carried it out, as the credit of the owner's next pass says.  It does not take room until it is answered,
since an answer may wait for another producer to go.
"""
from collections import OrderedDict, deque
from typing import Any

from geminga.proto import pulsar_api_pb2 as api

OPENING_BYTES = 2 << 20      # as a link counts them: 127 commands, which take an owner some thirty milliseconds


class OpeningQueue:
    """PRODUCERs and SUBSCRIBEs of all clients of a worker that wait for one owner; clients take turns.

    While the owner's process is being restarted, all of them wait.
    """

    def __init__(self) -> None:
        # By client, the one whose turn is next first.
        self._queues: OrderedDict[object, OrderedDict[int, api.BaseCommand]] = OrderedDict()
        # (the link's `sent` behind it, its size) of commands not carried out
        self._asked: deque[tuple[int, int]] = deque()
        self._size = 0

    def __repr__(self) -> str:
        return f"<OpeningQueue of {len(self._queues)} clients, {len(self._asked)} asked>"

    @property
    def is_empty(self) -> bool:
        """Whether no command waits."""
        return not self._queues

    def size(self, taken: int) -> int:
        """Return the bytes in flight of PRODUCERs and SUBSCRIBEs that the owner was sent and has not looked at.

        taken: bytes that the owner has taken in, since its link was made.
        """
        while self._asked and self._asked[0][0] <= taken:
            self._size -= self._asked.popleft()[1]
        return self._size

    def has_room(self, taken: int) -> bool:
        """Whether the owner may be sent one more PRODUCER or SUBSCRIBE.  taken: see `size`."""
        return self.size(taken) < OPENING_BYTES

    def asked(self, since: int, sent: int) -> None:
        """Count one more command that was sent to the owner.  since, sent: the link's `sent` before and behind it."""
        self._asked.append((sent, sent - since))
        self._size += sent - since

    def owner_gone(self) -> None:
        """Forget the commands that were sent to the owner: its process has ended, and its successor was sent none."""
        self._asked.clear()
        self._size = 0

    def wait(self, client: object, number: int, command: api.BaseCommand) -> None:
        """Queue the command behind the others of its client.  number: names the command for `withdraw`."""
        self._queues.setdefault(client, OrderedDict())[number] = command

    def withdraw(self, client: object, number: int) -> None:
        """Remove a queued command."""
        queue = self._queues[client]
        del queue[number]
        if not queue:
            del self._queues[client]

    def take(self) -> tuple[Any, int, api.BaseCommand]:
        """Remove and return the command whose turn it is: (client, number, command).

        The client's next command queues behind all other clients.
        """
        client, queue = self._queues.popitem(last=False)
        number, command = queue.popitem(last=False)
        if queue:
            self._queues[client] = queue      # behind all others
        return client, number, command

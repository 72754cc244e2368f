"""The connections that a process makes when the supervisor names owners to it."""
import asyncio

from geminga.storage.runtime.control import control_pair
from geminga.workers.owners.following import follow


class Links:
    def __init__(self):
        self.calls = []

    def owner_up(self, index, serial):
        self.calls.append(("up", index, serial))

    def owner_gone(self, index):
        self.calls.append(("gone", index))


def test_an_owner_that_is_named_twice_is_connected_to_once():
    """An owner admits one socket of each identity: whoever asked on a second one would wait for ever."""
    async def play():
        ours, theirs = control_pair()
        links = Links()
        stopping = follow(theirs, links, lambda _: None, lambda: asyncio.sleep(0))
        for message in ({"owner": [0, 5]}, {"owner": [1, 6]}, {"owner": [0, 5]}, {"owner_gone": 0}, {"owner": [0, 7]},
                        {"owner": [0, 8]}, {"stop": True}):
            ours.send(**message)
        await asyncio.wait_for(stopping.wait(), 30)
        for end in (ours, theirs):
            end.close()
        return links.calls

    assert asyncio.run(play()) == [("up", 0, 5), ("up", 1, 6), ("gone", 0), ("up", 0, 7), ("up", 0, 8)]

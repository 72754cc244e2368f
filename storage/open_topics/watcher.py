"""Watchers: policies and limits that look at an owner's topics again and again."""
from typing import Protocol

from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Topic


class Watcher(Protocol):
    """One policy of an owner, for stored topics.  The owner calls all its watchers from one list."""

    def watch(self, topic: Partition, /) -> None:
        """Look at the topic from now on: it was opened, or its policies have changed."""
        return

    def release(self, topic: Partition, /) -> None:
        """Forget the topic: its owner gives it up."""
        return

    def tick(self, now_ms: int) -> None:
        """Do the work that is due at that time, in ms since the epoch; called once a second."""
        return


class TopicWatcher(Watcher, Protocol):
    """One policy of an owner, for stored and non-persistent topics."""

    def watch(self, topic: Topic, /) -> None:
        """Look at the topic from now on: it was opened, or its policies have changed."""
        return

    def release(self, topic: Topic, /) -> None:
        """Forget the topic: its owner gives it up."""
        return

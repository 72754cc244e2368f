"""Watchers: policies and limits that look at an owner's partitions again and again."""
from typing import Protocol

from geminga.storage.topics.subscription import Topic


class Watcher(Protocol):
    """One policy of an owner.  The owner calls all its watchers from one list."""

    watches_non_persistent: bool = False      # whether watch and release concern topics without a store too

    def watch(self, topic: Topic) -> None:
        """Look at the topic from now on: it was opened, or its policies have changed."""

    def release(self, topic: Topic) -> None:
        """Forget the topic: its owner gives it up."""

    def tick(self, now_ms: int) -> None:
        """Do what is due at that time; called once a second."""

"""Notices between owners about segments: JSON lists of a kind and its values, which arrive in a later pass.

    asked       (segment)                                   how far have its subscriptions come?
    drained     (segment, {subscription: is it drained})    to the owner of the topic's name
    silent      (segment, subscription)                     its consumer acknowledges nothing; see `drained.py`
    inherit     (segment, subscription, from its beginning, sealed segment)     make it, before it is made there
    inherited   (sealed segment, subscription, segment)     it is there

A notice to an owner that is being started may be lost.  Whoever waits for an answer asks again.
"""
import json
from typing import TYPE_CHECKING

from geminga.proto.rows import Rows
from geminga.storage.runtime.routing import owner_of
from geminga.storage.transactions.peers import Peers

if TYPE_CHECKING:
    from collections.abc import Callable

ASKED, DRAINED, SILENT, INHERIT, INHERITED = "asked", "drained", "silent", "inherit", "inherited"


class Notices:
    """The notices of one owner, from others and from itself."""

    def __init__(self, peers: Peers):
        self._peers = peers
        self.functions: dict[str, Callable[..., None]] = {}      # kind -> function of its values

    def __repr__(self) -> str:
        return f"<Notices of {sorted(self.functions)}>"

    def owner_index(self, name: str) -> int:
        """Return the index of the owner of a segment, or of a topic's name."""
        return owner_of(name, self._peers.owners)

    def send(self, name: str, kind: str, *values: object) -> None:
        """Send a notice to the owner of a segment or of a topic's name, when this pass is durable."""
        self._peers.tell(self.owner_index(name), json.dumps([kind, *values]).encode())

    def receive(self, rows: Rows, data: memoryview) -> None:
        """Apply the notices of another owner: rows (n,) NOTICE_ROW."""
        at = 0
        for [size] in rows.tolist():
            self._apply(bytes(data[at:at + size]))
            at += size

    def settle(self) -> None:
        """Apply the notices of this owner to itself, and those that follow from them."""
        while notices := self._peers.take_own_notices():
            for notice in notices:
                self._apply(notice)

    def _apply(self, notice: bytes) -> None:
        kind, *values = json.loads(notice)
        self.functions[kind](*values)

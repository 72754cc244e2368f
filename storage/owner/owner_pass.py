"""A pass, one round of an owner's loop: receive, decide, sync, answer.

    receive   SENDs and acknowledgements are buffered, and permits granted
              a command is executed at once, after everything that arrived before it; so is a message of another owner.
              Commands about transactions do not wait for SENDs of other transactions: one sync is for all of a pass
    decide    SENDs -> plan -> journal, synced -> ledgers -> receipts
              acknowledgements -> cursors -> ops
              once a second: watchers; notices to other owners about segments
    sync      ops -> journal, synced if an answer depends on them
              then changes of files that an older journal would need: holes, deleted ledgers
    answer    consumers' entries; one envelope for each worker

No answer leaves before `answer`, so each answer is durable when it leaves.
"""
import time
from collections.abc import Callable, Sequence
from typing import Any

from geminga.proto import envelope
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.rows import Rows
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.durability import Durability
from geminga.storage.open_topics.publish_gate import PublishGate
from geminga.storage.open_topics.session import Session
from geminga.storage.owner.dispatching import Dispatching
from geminga.storage.owner.publishing import Publishing
from geminga.storage.owner.requests import Requests, concerned
from geminga.storage.recurring.recurring import RecurringMessages
from geminga.storage.scalable.drained import SealedSegments
from geminga.storage.scalable.notices import Notices
from geminga.storage.transactions.exchange import Exchange
from geminga.storage.transactions.peers import Peers
from geminga.storage.upkeep.delayed_scheduler import DelayedScheduler
from geminga.storage.upkeep.trimming import Trimming

TICK_MS = 1_000             # between ticks of the watchers


class Pass:
    """The passes of one owner, one at a time."""

    def __init__(self, decisions: Decisions, tick: Callable[[], None], *, requests: Requests, publishing: Publishing,
                 dispatching: Dispatching, durability: Durability, trimming: Trimming, gate: PublishGate,
                 schedules: DelayedScheduler, exchange: Exchange, peers: Peers, segments: SealedSegments,
                 notices: Notices, recurring: RecurringMessages,
                 carry_out: Callable[[Session, api.BaseCommand], None]):
        """Prepare the first pass.

        tick: called once a second, to run the watchers.  carry_out: carries out a command that has waited.
        """
        self._decisions, self._tick = decisions, tick
        self._requests, self._publishing, self._dispatching = requests, publishing, dispatching
        self._durability, self._trimming, self._gate, self._schedules = durability, trimming, gate, schedules
        self._exchange, self._carry_out = exchange, carry_out
        self._peers, self._segments, self._notices, self._recurring = peers, segments, notices, recurring
        self.next_tick_ms = decisions.now_ms + TICK_MS

    def __repr__(self) -> str:
        return f"<Pass now_ms={self._decisions.now_ms} due_ms={self.due_ms()}>"

    def begin(self, now_ms: int) -> None:
        """Begin a pass at this wall-clock time, in ms since 1970."""
        if now_ms < self._decisions.now_ms:      # the clock was set back: due times may be hours ahead of it
            self.next_tick_ms = min(self.next_tick_ms, now_ms + TICK_MS)
            self._durability.clock_went_back(now_ms)
            self._dispatching.clock_went_back(now_ms)
            self._recurring.clock_went_back(now_ms)
        self._decisions.now_ms, self._decisions.began = now_ms, time.perf_counter()

    def receive(self, worker: int, sections: Sequence[tuple[int, Rows, memoryview]]) -> None:
        """Process the sections of one worker's envelope: (kind, rows, data), see proto/envelope.py."""
        for kind, rows, data in sections:
            if kind == envelope.SENDS:
                self._publishing.receive(worker, rows, data)
                self._decisions.take_credit(worker, len(data))
            elif kind == envelope.SENDS_IN_TRANSACTIONS:
                self._publishing.receive_in_transactions(worker, rows, data)
                self._decisions.take_credit(worker, len(data))
            elif kind == envelope.ACKS:
                self._dispatching.receive_acks(rows, data)
            elif kind == envelope.FLOWS:
                self._dispatching.grant(rows)
            elif kind == envelope.COMMANDS:
                self._decisions.take_credit(worker, envelope.COMMAND_COST * len(rows) + len(data))
                self._requests.carry_out_commands(worker, rows, data, self.apply_received_before_command)
                self._exchange.settle()
            elif kind == envelope.TRANSACTIONS:      # of another owner
                self.apply_received_before(set(rows["transaction"].tolist()))
                self._exchange.receive(rows)
            elif kind == envelope.NOTICES:           # likewise
                self.apply_received()
                self._notices.receive(rows, data)
            else:
                self.apply_received()
                self._requests.answer_questions(worker, rows, data)

    def apply_received(self) -> None:
        """Apply buffered acknowledgements, then publish buffered SENDs."""
        self._dispatching.acknowledge_received()
        self._publishing.publish_received()

    def apply_received_before_command(self, command: api.BaseCommand | None) -> None:
        """Apply what arrived before a command of a client, None: before an event of its connection."""
        if self._publishing.is_due:
            self.apply_received_before(concerned(command))
        else:
            self._dispatching.acknowledge_received()

    def apply_received_before(self, transactions: set[int] | None) -> None:
        """Apply what arrived before something that concerns these transactions only; None: everything.

        Each plan is synced by itself, so SENDs of other transactions wait for the end of the pass.
        """
        if transactions is None or self._publishing.has_received(transactions):
            self.apply_received()
        else:
            self._dispatching.acknowledge_received()

    def end(self) -> list[tuple[int, list[Any]]]:
        """Decide, sync and answer; return [(worker, frames of its envelope)].  Raises NotDurable, Interrupted."""
        self.decide()
        self.sync()
        return self.answer()

    def decide(self) -> None:
        """Apply buffered acknowledgements and SENDs; then watchers, transactions, schedules, markers of the broker's
        own, waiting producers and trimming.
        """
        self.apply_received()
        if self._decisions.now_ms >= self.next_tick_ms:
            self.next_tick_ms = self._decisions.now_ms + TICK_MS
            self._tick()
        if self._segments.sealed:
            self._segments.look()
        if self._peers.own_notices:
            self._notices.settle()
        self._exchange.decide(self._decisions.now_ms)
        if self._recurring.due_ms <= self._decisions.now_ms:
            self._recurring.publish_due(self._decisions.now_ms)
        self._publishing.publish_markers()
        self._gate.look(self._decisions.now_ms, self._carry_out)
        self._trimming.decide()

    def sync(self) -> None:
        """Make decisions durable if an answer of this pass depends on them; then change files, such as holes in
        ledgers.

        Ledgers that trimming removed from their chains are deleted here.
        """
        self._durability.commit()
        for action in self._decisions.take_actions():
            action()
        self._trimming.unlink_taken()

    def answer(self) -> list[tuple[int, list[Any]]]:
        """Dispatch entries to consumers; return [(worker, frames of its envelope)] with all answers of the pass."""
        if self._schedules.is_busy:
            self._schedules.work(self._decisions.now_ms)
        self._dispatching.dispatch_all()
        return self._decisions.seal_answers()

    def due_ms(self) -> int:
        """Return the time at which the next pass is due even if nothing arrives, in ms since 1970."""
        due_ms = self._decisions.now_ms
        if not (self._schedules.is_busy or self._decisions.has_actions):
            due_ms = min(self.next_tick_ms, self._dispatching.due_ms(), self._exchange.due_ms(due_ms),
                         self._recurring.due_ms)
        sync_ms = self._durability.due_ms()
        return due_ms if sync_ms is None else min(due_ms, sync_ms)

"""Worlds in which a policy keeps cleared backlogs: nothing else notices, and each is taken back as a whole or not."""
from geminga.storage.cursors.cursor import ACKNOWLEDGED, EVICTED, EXPIRED, SKIPPED
from geminga.storage.topics.cleared_backlog import ClearedBacklog

from . import checks
from .life import Life
from .model import Position, State, Subscription
from .world import Again

KEPT_S = 4 * 3_600


class ClearingLife(Life):
    def __init__(self, seed, folder):
        super().__init__(seed, folder)
        self.options |= {"deleted_retention_s": KEPT_S}

    def step(self) -> None:
        if self.chance.random() < 0.1:
            self._clear()
        elif self.chance.random() < 0.15:
            self._take_back()
        else:
            super().step()

    def _clear(self) -> None:
        subscription = self._some_subscription()
        if subscription is not None:
            unless_refused = self._unless_refused(subscription)
            self._change(subscription)
            subscription.acknowledge([position for position in subscription.topic.log
                                      if subscription.unacknowledged(position)], reason=SKIPPED)
            self.run(self.rig.question("clear", subscription.topic.name, subscription=subscription.name),
                     first=unless_refused)

    def _take_back(self) -> None:
        subscription = self._some_subscription()
        partition = checks.partition_of(self.rig, subscription.topic) if subscription is not None else None
        cleared = [one for one in partition.cleared if one.row.subscription == subscription.name] if partition else []
        if not cleared:
            return
        number = self.chance.choice(cleared).row.kept_id
        unless_refused = self._unless_refused(subscription)
        self.touched[subscription] = subscription.state.copy(), True
        subscription.vacate()
        for backlog in cleared:      # several were cleared at a time
            if backlog.row.kept_id == number:
                subscription.state = self._with(subscription, partition, backlog)
        self.count("taken back")
        self.run(self.rig.question("take_backlog_back", subscription.topic.name, subscription=subscription.name,
                                   number=number), first=unless_refused)

    def _with(self, subscription: Subscription, partition, backlog: ClearedBacklog) -> State:
        """Return the subscription's state with what its cleared backlog has left."""
        topic, state, cursor = subscription.topic, subscription.state.copy(), backlog.cursor
        gone, first = checks._gone(partition), partition.ledgers[0].ledger_id
        brought: dict[Position, int] = {}
        for position, entry in topic.log.items():
            if position > backlog.row.end or position in gone or position[0] < first \
                    or cursor.is_acknowledged(*position):
                continue
            before = subscription.unacknowledged(position)
            more = cursor.parts.get(position[0], {}).get(position[1], entry.whole) & ~before
            if more:
                state.left[position], brought[position] = before | more, more
            counts = cursor.redeliveries.of(position[0], range(position[1], position[1] + 1))
            if counts is not None:
                state.counts[position] = max(state.counts.get(position, 0), int(counts[0]))
        settled = [position for position in topic.log if not state.left.get(position, 1)]
        begins = next((position for position in topic.log if position not in settled), topic.end)
        state.since = min(state.since, sum(entry.messages for position, entry in topic.log.items()
                                           if position < begins))
        left = sum(state.left.get(position, entry.whole).bit_count() for position, entry in topic.log.items())
        missing = topic.messages - state.since - left - sum(state.totals)
        state.totals[SKIPPED] += max(0, missing)
        surplus = max(0, -missing)
        for reason in (SKIPPED, EXPIRED, EVICTED, ACKNOWLEDGED):
            taken = min(surplus, state.totals[reason])
            state.totals[reason] -= taken
            surplus -= taken
        return state

    def _everything_is_done(self) -> bool:
        """Wait, at the end, until the time of all cleared backlogs is over."""
        if not super()._everything_is_done():
            return False
        try:
            for _ in range(4):
                self.run(after_ms=KEPT_S * 1_000)
        except Again:
            return False
        return True

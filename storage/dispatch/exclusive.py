"""One consumer gets everything, in order."""
import numpy as np

from geminga.storage.ledger import Ledger
from geminga.storage.subscription import Consumer, Subscription

_FEW = 16      # entries that are cheaper to look at one by one than as an array

Run = tuple[Consumer, Ledger, int, int]     # first entry, count


def next_runs(subscription: Subscription, ledgers: list[Ledger]) -> list[Run]:
    """What the consumer gets now: all that is unacknowledged from the read position on, as far as its permits reach.

    ledgers: those from the read position's on.  Takes the permits and moves the read position.
    """
    if not subscription.consumers:
        return []
    consumer = subscription.consumers[0]
    runs: list[Run] = []
    for ledger in ledgers:
        first = subscription.read[1] if subscription.read[0] == ledger.ledger_id else 0
        for start, end in subscription.cursor.unacknowledged(ledger, first, ledger.entries):
            if consumer.permits <= 0:
                return runs
            count, messages = within_permits(ledger, start, end, consumer.permits)
            consumer.permits -= messages
            subscription.read = ledger.ledger_id, start + count
            runs.append((consumer, ledger, start, count))
        if consumer.permits <= 0:
            return runs
        subscription.read = ledger.ledger_id, ledger.entries
    return runs


def within_permits(ledger: Ledger, start: int, end: int, permits: int) -> tuple[int, int]:
    """(entries, messages) that permits for so many messages reach, from entry start on; a batch may exceed them once."""
    messages = ledger.messages[start:min(end, start + permits)]
    if len(messages) <= _FEW:
        total = count = 0
        for many in messages.tolist():
            if total >= permits:
                break
            total += many
            count += 1
        return count, total
    reach = np.cumsum(messages, dtype=np.int64)
    count = min(len(reach), int(np.searchsorted(reach, permits)) + 1)
    return count, int(reach[count - 1])

"""Bugs in cursors, acknowledgements and dispatch: what is given to whom, and what need not be given any more."""

from .bugs import of

_DISPATCH = "storage/test_dispatch_contract.py storage/test_subscriptions_model.py"
_SHARED = f"storage/test_dispatch_shared.py storage/test_costs.py {_DISPATCH}"
_KEY_SHARED = f"storage/test_dispatch_key_shared.py storage/test_sticky_ranges.py {_DISPATCH}"
_CURSOR = "storage/test_parts.py storage/test_cursor.py storage/test_cursor_totals.py storage/test_subscriptions_model.py"

BUGS = [
    *of(
        "storage/cursors/cursor.py",
        _CURSOR,
        (
            "for kept in (self.bitmaps, self.parts, self.redeliveries, self.deaths):",
            "for kept in (self.bitmaps, self.parts, self.redeliveries):",
            "a seek leaves entries parked",
            "storage/test_quarantine.py",
        ),
        (
            "for kept in (self.bitmaps, self.parts, self.redeliveries, self.deaths):",
            "for kept in (self.bitmaps, self.redeliveries, self.deaths):",
            "a seek leaves batches acknowledged in part",
            "storage/test_parts.py",
        ),
        (
            "if first <= entry_id < end and not self.is_acknowledged",
            "if first < entry_id < end and not self.is_acknowledged",
            "the first entry counts whole though part of it is acknowledged",
            "storage/test_parts.py",
        ),
        (
            "if first <= entry_id < end and not self.is_acknowledged",
            "if first <= entry_id <= end and not self.is_acknowledged",
            "parts of the entry behind are taken off",
            "storage/test_parts.py",
        ),
        (
            "if (ledger_id, entry_id) <= self.mark_delete:",
            "if (ledger_id, entry_id) < self.mark_delete:",
            "the mark-delete position is not acknowledged",
        ),
        (
            "entry_ids = entry_ids[entry_ids > self.mark_delete[1]]",
            "entry_ids = entry_ids[entry_ids >= self.mark_delete[1]]",
            "what is acknowledged already counts again",
        ),
        ("fresh = (bitmap[entry_ids >> 3] & bits) == 0", "fresh = (bitmap[entry_ids >> 3] & bits) != 0", "what is new counts as known"),
        (
            "np.bitwise_or.at(bitmap, entry_ids >> 3, bits)",
            "bitmap[entry_ids >> 3] |= bits",
            "of entries in one byte only the last is marked",
        ),
        (
            "remains = left if before is None else before & left",
            "remains = left",
            "what was acknowledged of a batch comes back",
            "storage/test_parts.py",
        ),
        (
            "if done < ledger.last_entry or not ledger.is_sealed:",
            "if done < ledger.last_entry:",
            "the mark-delete position goes behind an open ledger",
            "",
            "the open ledger is the last: there is nothing behind it",
        ),
        (
            "if int(entry_ids[0]) != follows + 1 or",
            "if int(entry_ids[0]) < follows + 1 or",
            "a gap is passed over",
            "",
            "entries are sorted and each once, so the last of them says where the first is",
        ),
        (
            "found[:max(0, self.mark_delete[1] + 1 - first)] = True",
            "found[:max(0, self.mark_delete[1] - first)] = True",
            "the last of what is acknowledged is not",
        ),
        (
            "first = max(first, self.mark_delete[1] + 1)\n        if first >= end:",
            "first = max(first, self.mark_delete[1])\n        if first >= end:",
            "the mark-delete position is given out again",
        ),
        (
            "first = self.mark_delete[1] + 1 if ledger.ledger_id == self.mark_delete[0] else 0",
            "first = 0",
            "holes are counted that lie before the mark-delete position",
        ),
        (
            "self.redeliveries.forget(ledger_id)",
            "pass",
            "counts of deleted ledgers stay",
            "storage/test_dispatch_shared.py storage/test_memory.py",
            "ledger ids are not used again: memory that stays, in a process that has deleted the ledger",
        ),
    ),
    *of(
        "storage/cursors/batch_acks.py",
        "storage/test_parts.py",
        (
            "return bits if bits.bit_length() <= messages else bits & ((1 << messages) - 1)",
            "return bits",
            "bits behind the batch count as messages",
        ),
        ("found[numbers] = some\n", "found[numbers] |= some\n", "words never lose a bit again"),
        ("numbers[1:] <= numbers[:-1]", "numbers[1:] < numbers[:-1]", "two notes of one word are one"),
    ),
    *of(
        "storage/cursors/entry_counts.py",
        "storage/test_dispatch_shared.py storage/test_quarantine.py",
        ("counts[entries] += counts[entries] < _MAX", "counts[entries] += 1", "the count wraps to 0"),
        ("np.flatnonzero(counts >= count)", "np.flatnonzero(counts > count)", "one death more is needed"),
    ),
    *of(
        "storage/cursors/pending_acks.py",
        _SHARED,
        (
            "held.out -= int(np.count_nonzero(seats)) - again",
            "held.out -= int(np.count_nonzero(seats))",
            "a ledger is dropped while something is out",
            "storage/test_dispatch_shared.py storage/test_dispatch_key_shared.py storage/test_subscriptions_model.py",
        ),
        ("held.lowest = min(held.lowest, first) if held.again else first", "held.lowest = first", "what comes back earlier is overlooked"),
        ("if not held.out and not held.again:", "if not held.out:", "what is to be given again is forgotten"),
        (
            "seats = self._ledgers[other].seats[:entry_id + 1] if other == ledger_id",
            "seats = self._ledgers[other].seats[:entry_id] if other == ledger_id",
            "the last entry of a cumulative move stays out",
            "storage/test_dispatch_contract.py storage/test_expiry.py storage/test_positions.py storage/test_subscriptions_model.py",
        ),
        ("mine = known[held.seats[known] == seat]", "mine = known[held.seats[known] != NOBODY]", "a consumer gives back what others have"),
        (
            "np.flatnonzero(held.seats[at:at + _PIECE] == AGAIN)[:left] + at",
            "np.flatnonzero(held.seats[at:at + _PIECE] == AGAIN) + at",
            "more is looked at than asked for",
            "storage/test_dispatch_shared.py",
            "callers take no more of it than they have permits for: only time",
        ),
    ),
    *of(
        "storage/topics/acknowledge.py",
        _CURSOR + " storage/test_dispatch_contract.py",
        ("entry_id - 1 if flags & envelope.PARTIAL else entry_id", "entry_id", "part of a batch, cumulatively, is all of it"),
        (
            "elif not flags & (envelope.PARTIAL | envelope.NOTHING):",
            "elif not flags & envelope.PARTIAL:",
            "an ACK of nothing acknowledges 0:0",
            "storage/test_dispatch_contract.py storage/test_owner_consuming.py",
            "no ledger has the id 0, so the entry is nowhere",
        ),
        ("if acks.up_to > before:", "if acks.up_to:", "a cumulative acknowledgement goes back"),
        ("if subscription.is_spread and acks.cumulative:", "if False:", "consumers that share acknowledge for others"),
        (
            "for position in sorted(acks.cumulative, reverse=True)",
            "for position in acks.cumulative",
            "the first of several counts, not the highest",
        ),
        (
            "for passed in [ledger_id for ledger_id in cursor.bitmaps if ledger_id < position[0]]:",
            "for passed in []:",
            "bitmaps of ledgers before stay",
            "storage/test_cursor_totals.py storage/test_cursor.py storage/test_memory.py",
            "memory that stays until the ledger is deleted",
        ),
        (
            'ops["value"][known] = there[numbers[known]].view(np.int64)',
            'ops["value"] = 1',
            "large parts come back as others after a crash",
            "storage/test_parts.py",
        ),
        (
            "_note_part(owner, subscription, position, before or 0, remains)\n\n\ndef begin",
            "_note_part(owner, subscription, position, 0, remains)\n\n\ndef begin",
            "words that became 0 come back after a crash",
            "storage/test_parts.py",
        ),
        (
            'ops["value"] = np.diff(starts, append=len(entries)) - 1',
            'ops["value"] = np.diff(starts, append=len(entries))',
            "the journal acknowledges one more",
            "storage/test_costs.py storage/test_cursor_totals.py storage/test_owner_crashes.py",
        ),
        (
            "return sorted({entry_id for entry_id in entries if entry_id < ledger.entries})",
            "return sorted({entry_id for entry_id in entries if entry_id <= ledger.entries})",
            "an entry that is not there yet is acknowledged",
        ),
        (
            "known = entries[entries < ledger.entries].astype(np.int64)",
            "known = entries[entries <= ledger.entries].astype(np.int64)",
            "likewise of many",
        ),
    ),
    *of(
        "storage/topics/permits.py",
        _DISPATCH,
        ("if total >= permits:\n                break", "if total > permits:\n                break", "permits are exceeded by one entry"),
        (
            "int(np.searchsorted(reach, permits)) + 1)",
            'int(np.searchsorted(reach, permits, side="right")) + 1)',
            "likewise where there are many",
        ),
    ),
    *of(
        "storage/topics/subscription.py",
        _DISPATCH,
        (
            "subscription.read < (ledgers[-1].ledger_id, ledgers[-1].entries)",
            "subscription.read <= (ledgers[-1].ledger_id, ledgers[-1].entries)",
            "a subscription that has read all is hungry",
            "storage/test_rates.py storage/test_dispatch_contract.py",
            "it is looked at for nothing",
        ),
    ),
    *of(
        "storage/dispatch/exclusive.py",
        _DISPATCH,
        (
            "subscription.read = ledger.ledger_id, int(entries[count - 1]) + 1",
            "subscription.read = ledger.ledger_id, int(entries[count - 1])",
            "the last entry is given twice",
        ),
        (
            "def detach(self, consumer: Consumer) -> None:\n        self.subscription.rewind()",
            "def detach(self, consumer: Consumer) -> None:\n        pass",
            "what a consumer had is lost to the next",
            "storage/test_dispatch_failover.py storage/test_dispatch_contract.py",
            "Failover has its own; of Exclusive the last to leave empties the subscription, which rewinds it",
        ),
    ),
    *of(
        "storage/dispatch/failover.py",
        f"storage/test_dispatch_failover.py {_DISPATCH}",
        ("top = min(consumer.priority", "top = max(consumer.priority", "the highest level is active"),
        ("candidates[partition % len(candidates)]", "candidates[0]", "all partitions go to one consumer"),
        ("self._news += [(consumer, False) for consumer in newcomers]", "pass", "whoever joins is not told how it stands"),
        ("subscription.rewind()\n", "pass\n", "what the one before had is not given again"),
        ("- at & _RING_MASK", "& _RING_MASK", "the ring begins at 0 for all topics"),
        ("if consumer is self.active else []", "", "who stands by has everything given again"),
    ),
    *of(
        "storage/dispatch/shared.py",
        _SHARED,
        (
            "if (ledger_id, entry_id) < self.subscription.read and",
            "if (ledger_id, entry_id) <= self.subscription.read and",
            "what is released comes twice",
            "storage/test_quarantine.py",
        ),
        ("heapq.heappush(self._free, consumer.seat)", "pass", "seats of those who left are never free again", "storage/test_costs.py"),
        (
            "        self.pending.take_back(consumer.seat)\n        self._seats",
            "        self._seats",
            "what a leaving consumer had is lost",
        ),
        ("room = min(room, limit - self.unacknowledged)", "room = min(room, limit)", "all together may have too much"),
        ("unacknowledged >= (limit // 2 + 1 if was else limit)", "unacknowledged >= limit", "who was blocked goes on too early"),
        (
            "if not self.pending.again and not self.has_unread(ledgers):",
            "if not self.has_unread(ledgers):",
            "what came back waits for something new",
        ),
        (
            "subscription.read = ledger.ledger_id, int(entries[done - 1]) + 1",
            "subscription.read = ledger.ledger_id, int(entries[done - 1])",
            "the last entry is given twice",
        ),
        ("consumer.seat <= self._last_served", "consumer.seat < self._last_served", "the same is first again"),
        ("consumer.permits -= messages\n", "consumer.permits -= 1\n", "a batch takes one permit"),
    ),
    *of(
        "storage/dispatch/key_shared.py",
        _KEY_SHARED,
        ("seats = np.where(is_draining, NOBODY, seats)", "pass", "a key is at two consumers at a time"),
        ("if not is_again and is_left.any():", "if False:", "what was passed over is lost"),
        ("self.draining[found].blocked += count", "self.draining[found].blocked += 1", "of many that wait one counts"),
        ("            consumer.hashes_cleared += 1", "            pass", "no key is ever done with"),
        ("self._have_theirs, self._is_stale = frozenset(), True", "self._have_theirs = frozenset()", "nobody looks whose keys moved"),
        (
            "if number in self._draining:\n                    self._draining[number].entries += count",
            "if number in self._draining:\n                    pass",
            "entries of a second ledger do not count",
        ),
        ('order = np.argsort(seats, kind="stable")', 'order = np.argsort(seats, kind="stable")[::-1]', "many consumers get keys backwards"),
        ("self._have_theirs.issuperset(", "not self._have_theirs.isdisjoint(", "what was withheld is overtaken"),
    ),
    *of(
        "storage/dispatch/ranges.py",
        _KEY_SHARED,
        (
            'self._seats[np.searchsorted(self._ends, hashes, side="right")]',
            "self._seats[np.searchsorted(self._ends, hashes)]",
            "the last hash of a region is the next one's",
        ),
        ("is_last = at[0] == len(seats) - 1 and len(seats) > 1", "is_last = False", "what the last one leaves is nobody's"),
        ("self._holders[at[is_known]] = holders[is_known]", "pass", "those that share a point do not take turns"),
        ("there[point % len(there)][1]", "there[0][1]", "a shared point is always the first one's"),
        ("<= lasts)", "< lasts)", "ranges may touch in one hash"),
        (
            "at = np.searchsorted(self._lasts, firsts) ",
            'at = np.searchsorted(self._lasts, firsts, side="right") ',
            "likewise at the other end",
        ),
    ),
    *of(
        "storage/enforcement/message_ttl.py",
        "storage/test_expiry.py",
        (
            "first = min((subscription.cursor.mark_delete",
            "first = max((subscription.cursor.mark_delete",
            "the slowest subscription keeps what is old",
        ),
    ),
    *of(
        "storage/enforcement/backlog_quota.py",
        "storage/test_quota.py",
        (
            "return _BARRIERS[policies.quota_age_action]",
            "return _BARRIERS[policies.quota_bytes_action]",
            "the quota of age acts as that of size",
        ),
    ),
    *of(
        "storage/enforcement/inactive_topics.py",
        "storage/test_limits.py",
        (
            "return any(subscription.cursor.backlog",
            "return all(subscription.cursor.backlog",
            "a topic is deleted while one of its subscriptions lags",
        ),
    ),
    *of(
        "storage/cursors/producer_sequences.py",
        "storage/test_deduplication.py",
        (
            "self._found[producer] = progress\n        self._found.move_to_end(producer)",
            "self._found[producer] = progress",
            "who came first is forgotten though it publishes",
        ),
        ("return first, max(first, highest", "return first, min(first, highest", "a batch counts by its first message only"),
        ("if first <= self.last:", "if first < self.last:", "the last message is stored again"),
        ("is_new = chunk >= following or", "is_new = chunk > following or", "the next chunk is taken for one that came"),
    ),
]

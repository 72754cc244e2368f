"""The promises, one function each.  Each compares what an owner holds, or has just answered, with the model, and raises
Broken.
"""
import numpy as np

from geminga.proto import names
from geminga.storage import format
from geminga.storage.dispatch.ranges import hashes_of
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import SubType

from ..storage.files import read_mapped
from .model import SLACK_MS, Broken, Consumer, Position, State, Subscription, Topic, demand

# -- what a consumer was given

def given(
    subscription: Subscription, consumer: Consumer, position: Position, redeliveries: int, words: list[int],
    now_ms: int, *, is_by_priority: bool = False,
) -> None:
    """Check a delivery: the entry was due and free, and its redelivery count and ack set are right.

    The model then has the entry with this consumer.  is_by_priority: Shared consumers get the highest priority first.
    """
    topic = subscription.topic
    demand(position in topic.log, "only what was published is delivered", position)
    entry, left = topic.log[position], subscription.unacknowledged(position)
    demand(left != 0, "nothing is delivered that is acknowledged", f"{subscription.name} {position}")
    bits = sum(word << 64 * number for number, word in enumerate(words))
    demand(bits == (left if left != entry.whole else 0), "what is left of a batch is said",
           f"{subscription.name} {position} {bits:b}")
    demand(redeliveries == subscription.state.counts.get(position, 0), "redelivery counts are exact",
           f"{subscription.name} {position}: {redeliveries}")
    demand(consumer.permits > 0, "permits are not exceeded", f"{subscription.name} {position}")
    consumer.permits -= left.bit_count()
    if not subscription.is_spread:
        demand(consumer is subscription.active, "one consumer is active", consumer.name)
        demand(position > subscription.read, "nothing is delivered twice", f"{subscription.name} {position}")
        demand(position == subscription.due(now_ms)[0], "entries are delivered in order",
               f"{subscription.name} {position}")
        subscription.read = position
        return
    demand(position not in subscription.out, "nothing is delivered twice", f"{subscription.name} {position}")
    demand(entry.deliver_at <= now_ms, "nothing is delivered before its time", f"{subscription.name} {position}")
    if subscription.kind == SubType.Shared and is_by_priority:
        before = [other for other in subscription.due(now_ms - SLACK_MS)
                  if (-topic.log[other].priority, other) < (-entry.priority, position)
                  and not subscription.holders_of_chunks(other)]      # the rest of a message waits for its consumer
        demand(not before, "the highest priority goes first", f"{subscription.name} {position} {before[:3]}")
    if subscription.kind == SubType.Key_Shared and entry.key is not None:
        of_key = [other for other, one in topic.log.items() if one.key == entry.key
                  and subscription.unacknowledged(other)]
        holders = {subscription.out[other].name for other in of_key if other in subscription.out}
        demand(holders <= {consumer.name}, "a key is at one consumer at a time",
               f"{entry.key}: {holders} and {consumer.name}")
        # The rest of a message goes to the consumer that has the beginning, though its key has moved.
        demand(consumer in subscription.holders_of_chunks(position) or all(other in subscription.out for other in of_key
                   if other < position and other[0] >= topic.first_ledger
                   and topic.log[other].deliver_at <= now_ms - SLACK_MS),
               "a key's entries are delivered in order", f"{entry.key} {position}")
    subscription.out[position] = consumer


def delivered_bytes(data_dir, partition_id: int, ledger_id: int, entries: list[int], topic: Topic) -> None:
    """Check that the ledger's bytes are those that were published."""
    first, last = min(entries), max(entries)
    found = read_mapped(format.partition_folder(data_dir, partition_id), ledger_id, first, last - first + 1)
    for entry_id in entries:
        if (ledger_id, entry_id) in topic.log:
            demand(found[entry_id - first] == topic.log[ledger_id, entry_id].data, "entries keep their bytes",
                   (ledger_id, entry_id))


def nothing_held_back(subscription: Subscription, partition: Partition, now_ms: int) -> None:
    """Check that every due entry that a consumer with permits could get was delivered."""
    able = [consumer for consumer in subscription.consumers if consumer.permits > 0]
    waiting = subscription.due(now_ms - SLACK_MS if subscription.is_spread else now_ms) if able else []
    if not waiting:
        return
    found = partition.subscriptions[subscription.name, subscription.is_durable]
    if subscription.kind == SubType.Key_Shared:
        hashes, owner = _owners(subscription, partition)
        rooms = {consumer.handle: found.dispatcher.room(consumer) for consumer in found.consumers}
        able = [consumer for consumer in able if rooms[consumer.handle] > 0]
        by_handle = {consumer.handle: consumer for consumer in subscription.consumers}
        # Whoever works on entries that were skipped or have expired keeps their keys too.
        removed = [(number, by_handle[found.dispatcher._slots[slot].handle]) for _, rows in found.dispatcher.removed
                   for number, slot in zip(rows["hash"].tolist(), rows["slot"].tolist(), strict=True)]
        for position in waiting:
            holders = {holder for other, holder in subscription.out.items() if hashes.get(other) == hashes[position]}
            holders |= {holder for number, holder in removed if number == hashes[position]}
            demand(owner[position] not in able or bool(holders - {owner[position]}), "what is due is delivered",
                   f"{subscription.name} {position}")
    elif subscription.is_spread:
        rooms = {consumer.handle: found.dispatcher.room(consumer) for consumer in found.consumers}
        able = [room for room in rooms.values() if room > 0]
        for position in waiting if able else ():      # the rest of a message waits for who has the beginning
            demand(any(rooms[holder.handle] <= 0 for holder in subscription.holders_of_chunks(position)),
                   "what is due is delivered", f"{subscription.name} {position}")
    else:
        demand(subscription.active not in able, "what is due is delivered", f"{subscription.name} {waiting[0]}")


def _owners(subscription: Subscription, partition: Partition) -> tuple[dict, dict]:
    """Return ({position: hash of its key}, {position: consumer that may get it})."""
    dispatcher, hashes, owner = partition.subscriptions[subscription.name, subscription.is_durable].dispatcher, {}, {}
    by_handle = {consumer.handle: consumer for consumer in subscription.consumers}
    for ledger in partition.ledgers:
        if ledger.entries:
            found = hashes_of(ledger, np.arange(ledger.entries))
            for entry_id, (hash_, slot) in enumerate(zip(found.tolist(), dispatcher.ranges.slots(found).tolist(),
                                                         strict=True)):
                hashes[ledger.ledger_id, entry_id] = hash_
                owner[ledger.ledger_id, entry_id] = by_handle[dispatcher._slots[slot].handle]
    return hashes, owner


# -- what an owner holds

def state_of(topic: Topic, partition: Partition, name: str, is_durable: bool) -> State | None:
    """Return a subscription's state in the broker, in the model's terms; None if there is no such subscription."""
    found = partition.subscriptions.get((name, is_durable))
    if found is None:
        return None
    cursor, state = found.cursor, State(found.cursor.since, totals=list(found.cursor.totals))
    waiting = {(ledger.ledger_id, entry_id) for ledger in partition.ledgers
               for start, end in cursor.unacknowledged(ledger, 0, ledger.entries) for entry_id in range(start, end)}
    for position in topic.log:
        if position not in waiting:
            state.left[position] = 0
    for ledger_id, entries in cursor.parts.items():
        for entry_id, bits in entries.items():
            if (ledger_id, entry_id) in waiting:
                state.left[ledger_id, entry_id] = bits
    for ledger_id, counts in cursor.redeliveries.arrays.items():
        for entry_id in np.flatnonzero(counts).tolist():
            if (ledger_id, entry_id) in waiting:
                state.counts[ledger_id, entry_id] = int(counts[entry_id])
    return state


def subscription_is(subscription: Subscription, partition: Partition) -> None:
    """Check that a subscription holds exactly what the model says, as long as its process lives."""
    topic, mine = subscription.topic, subscription.state
    found = state_of(topic, partition, subscription.name, subscription.is_durable)
    demand(found is not None, "subscriptions stay", subscription.name)
    for position, entry in topic.log.items():
        demand(found.left.get(position, entry.whole) == mine.left.get(position, entry.whole)
               or position[0] < topic.first_ledger, "acknowledgements are exact", f"{subscription.name} {position}")
        if position[0] >= topic.first_ledger and mine.left.get(position, 1):
            demand(found.counts.get(position, 0) == mine.counts.get(position, 0), "redelivery counts are exact",
                   f"{subscription.name} {position}: {found.counts.get(position, 0)} for "
                   f"{mine.counts.get(position, 0)}")
    if subscription.is_durable:
        demand(found.since == mine.since, "totals begin where the subscription does",
               f"{subscription.name} {found.since} {mine.since}")
        demand(found.totals == mine.totals, "totals are the model's own",
               f"{subscription.name} {found.totals} {mine.totals}")
    stored = partition.subscriptions[subscription.name, subscription.is_durable]
    permits = {consumer.handle: consumer.permits for consumer in stored.consumers}
    demand(permits == {consumer.handle: consumer.permits for consumer in subscription.consumers}, "permits are exact",
           permits)


def totals_add_up(topic: Topic, partition: Partition) -> None:
    """Check published = acknowledged + expired + skipped + evicted + backlog, by the owner's numbers and the
    model's.
    """
    demand(partition.next_message == topic.messages, "messages are counted",
           f"{partition.next_message} {topic.messages}")
    for subscription in partition.subscriptions.values():
        cursor = subscription.cursor
        if subscription.is_durable:
            backlog = cursor.backlog_messages(partition.ledgers)
            demand(partition.next_message - cursor.since == sum(cursor.totals) + backlog, "totals add up",
                   f"{subscription.name}: {partition.next_message} - {cursor.since}, {cursor.totals}, backlog "
                   f"{backlog}")


def agrees_with_itself(partition: Partition) -> None:
    """Check the invariants of the partition's ledgers and subscriptions."""
    try:
        partition.check()
    except AssertionError as error:
        raise Broken("what an owner holds agrees with itself", repr(error)) from error


def chain(topic: Topic, partition: Partition) -> None:
    """Check that ledgers are deleted from the first on, after all durable subscriptions are done, and the open one
    stays.
    """
    first, gone = partition.ledgers[0].ledger_id, _gone(partition)
    demand(first >= topic.first_ledger, "ledgers that were deleted stay so", first)
    topic.first_ledger = first
    for subscription in topic.subscriptions.values():
        if subscription.is_durable and subscription.state is not None:
            for position in topic.log:
                demand((position[0] >= first and position not in gone) or not subscription.unacknowledged(position),
                       "nothing unacknowledged is deleted", f"{subscription.name} {position}")
    demand([ledger.ledger_id for ledger in partition.ledgers]
           == sorted({ledger.ledger_id for ledger in partition.ledgers}),
           "ledgers are in order")


def _gone(partition: Partition) -> set[tuple[int, int]]:
    """Return the positions whose space was given back within their ledgers."""
    return {
        (ledger.ledger_id, number)
        for ledger in partition.ledgers
        for number in np.flatnonzero(partition.discarded.acknowledged(ledger.ledger_id, 0, ledger.entries)).tolist()
    }


def entries_are_there(topic: Topic, partition: Partition, data_dir) -> None:
    """Check that every entry with a receipt is stored once, in order, with its bytes.

    Other stored entries belong to a pass that did not end.
    """
    first, gone, found = partition.ledgers[0].ledger_id, _gone(partition), {}
    for ledger in partition.ledgers:
        entries = read_mapped(format.partition_folder(data_dir, partition.partition_id), ledger.ledger_id, 0,
                              ledger.entries)
        found.update({(ledger.ledger_id, number): data for number, data in enumerate(entries)})
    for position, entry in topic.log.items():
        if position[0] >= first and position not in gone:
            demand(position in found, "receipted entries are there", f"{topic.name} {position}")
            demand(found[position] == entry.data, "entries keep their bytes", f"{topic.name} {position}")
    at, known = -1, {entry.data: number for number, entry in enumerate(topic.attempted)}
    for position, data in found.items():
        if position not in topic.log and position not in gone:
            demand(data in known, "only what was sent is stored, once", f"{topic.name} {position} {data[:40]}")
            number = known.pop(data)
            demand(number > at, "entries are stored in order", f"{topic.name} {position}")
            at = number
            topic.add(position, topic.attempted[number])
    topic.attempted = []


def whoever_waited_goes_on(topic: Topic, partition: Partition) -> None:
    """Check after a crash that every subscription is in its last durable state, or in one that was asked for since."""
    stored = {name for name, is_durable in partition.subscriptions if is_durable}
    for subscription in [one for one in topic.subscriptions.values() if one.is_durable]:
        found = state_of(topic, partition, subscription.name, True)
        stored.discard(subscription.name)
        mine, filtered = subscription.filtered(found), subscription.filtered
        candidates = [(filtered(low), filtered(high)) for low, high in subscription.candidates]
        demand(any(mine is low if None in (low, mine) else mine.lies_between(low, high, topic.log)
                   for low, high in candidates),
               "what was acknowledged stays so, and nothing else is",
               f"{topic.name} {subscription.name}: {[_difference(mine, low, high) for low, high in candidates]}")
        subscription.state = found
        subscription.candidates = [(found, found)]
    demand(not stored, "subscriptions that are deleted stay so", stored)
    demand(partition.is_terminated in topic.is_terminated, "a topic that was terminated stays so", topic.name)
    topic.is_terminated = {partition.is_terminated}


def _difference(found: State | None, low: State | None, high: State | None) -> str:
    if None in (found, low, high):
        return f"{found}, not {low} to {high}"
    return "; ".join(f"{name} {key}: {mine}, not {first} to {last}" for name, values in (
        ("left", [(key, *(state.left.get(key, "all") for state in (found, low, high)))
                  for key in found.left | low.left | high.left]),
        ("count", [(key, *(state.counts.get(key, 0) for state in (found, low, high)))
                   for key in found.counts | low.counts | high.counts]),
        ("totals", [("", found.totals, low.totals, high.totals)]),
        ("since", [("", found.since, low.since, high.since)]))
        for key, mine, first, last in values if not mine == first == last)


def space_is_given_back(partition: Partition, *, has_failed: bool) -> None:
    """Check that one ledger is left, after everything was acknowledged and something was published since.

    has_failed: a sync failed.  It may have lost the record of a deletion that was under way, and one of two files may
    be left then.
    """
    demand(len(partition.ledgers) == 1, "space is given back",
           [partition.ledgers, *(f"{one.name} {one.cursor.mark_delete}" for one in partition.subscriptions.values())])
    others = {path.name for path in partition.folder.iterdir()
              if path.suffix in (".ledger", ".index") and path.stem != str(partition.open_ledger.ledger_id)}
    demand(has_failed or not others, "no file is left behind", others)


def counters(rig, topics: list[Topic]) -> None:
    """Check that no counter is below zero, and that counts of present things are right."""
    numbers = rig.counters.read()
    demand(min(numbers.values()) >= 0, "counters are not below zero", numbers)
    demand(numbers["partitions_open"] == len(rig.owner.topics.by_name), "counters are right", numbers)
    consumers = sum(len(subscription.consumers) for topic in topics for subscription in topic.subscriptions.values())
    demand(numbers["consumers"] == consumers, "counters are right", f"{numbers['consumers']} for {consumers} consumers")
    producers = sum(producer.handle != 0 for topic in topics for producer in topic.producers)
    demand(numbers["producers"] == producers, "counters are right", f"{numbers['producers']} for {producers} producers")


def partition_of(rig, topic: Topic) -> Partition | None:
    """Return the topic's partition if the owner has opened it, else None."""
    return rig.owner.topics.by_name.get(names.parse(topic.name))


def stored_once(topic: Topic) -> None:
    """Check that messages which a producer sent again are stored once."""
    seen: set[tuple[str, int, int]] = set()
    for entry in topic.log.values():
        if topic.deduplicates and entry.producer:
            key = entry.producer, entry.sequence_id, entry.chunk
            demand(key not in seen, "what is sent again is stored once", key)
            seen.add(key)



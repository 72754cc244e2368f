"""Sentences for people about a subscription that stands still: what is in the way, who holds what, and what to do.

The input is the answer of /ops/v1/why: an object for each partition. Partitions of which the same can be said are told
together, with their numbers added.
"""
import shlex
import time
from collections.abc import Callable, Iterator
from typing import Any, TypedDict

from geminga.storage.runtime.units import instant
from geminga.supervisor.wording.human import ago, count, length, short
from geminga.workers.pulsar_client.rest import plain

_CURSOR = "pulsar.repl."      # replication cursors; proto/names.py has it too, and loads protobuf, which takes long
_SHOWN_MAX = 10              # consumers and ids that are listed
_SUMMED = ("messages", "held_back")
Cause = dict[str, Any]       # {"cause": ..., and details}


class Holder(TypedDict):
    """A consumer, and what it holds; see Holder in storage/admin/figures.py."""

    name: str
    address: str
    library: str
    connected_ms: int
    acknowledged_ms: int
    consumed_ms: int
    messages: int
    permits: int
    is_active: bool


class Standstill(TypedDict):
    """The state of a subscription of one partition, or of all; see Standstill in storage/admin/questions.py."""

    topic: str
    subscription: str
    type: str
    backlog: int
    oldest_ms: int | None
    messages: dict[str, int]
    causes: list[Cause]
    consumers: list[Holder]
    consumer_count: int
    waiting: dict[str, int]


def backlog_of(partitions: list[Standstill]) -> int:
    """Return the number of unacknowledged messages, of entries where messages are not counted."""
    return sum(part["messages"].get("backlog", part["backlog"]) for part in partitions)


def holders_of(partitions: list[Standstill]) -> list[Holder]:
    """Return the consumers, those of all partitions as one, with the most unacknowledged messages first."""
    holders: dict[tuple[str, str], Holder] = {}
    for holder in (holder for part in partitions for holder in part["consumers"]):
        before = holders.get((holder["name"], holder["address"]))
        if before is None:
            holders[holder["name"], holder["address"]] = holder.copy()
            continue
        before["messages"] += holder["messages"]
        before["permits"] += holder["permits"]
        before["is_active"] |= holder["is_active"]
        before["acknowledged_ms"] = max(before["acknowledged_ms"], holder["acknowledged_ms"])
        before["consumed_ms"] = max(before["consumed_ms"], holder["consumed_ms"])
    return sorted(holders.values(), key=lambda holder: -holder["messages"])


def tell(partitions: list[Standstill], topic: str, subscription: str) -> list[str]:
    """Return the lines about a subscription of a topic.  topic: as people call it."""
    groups = _alike(partitions)
    whole = _merged(partitions)
    lines = [f"{plain(topic)}, subscription {plain(subscription)} ({whole['type']}): {_backlog(whole)}"]
    if whole["messages"]:
        lines.append("  " + _account(whole["messages"]))
    if any(whole["waiting"].values()):
        lines.append("  " + _by_priority(whole["waiting"]))
    for group in groups:
        indent = "  "
        if len(groups) > 1:
            lines.append(f"  {_partitions(group)}: {_backlog(_merged(group))}")
            indent = "    "
        lines += [indent + line for line in _group(_merged(group), topic)]
    return lines


def in_short(partitions: list[Standstill]) -> str:
    """Return one line about a subscription: its backlog, and the first thing that is in the way."""
    whole = _merged(partitions)
    line = f"{plain(whole['subscription'])} ({whole['type']}): {_backlog(whole)}"
    return f"{line} {reason(partitions)}".rstrip()


def reason(partitions: list[Standstill]) -> str:
    """Return a sentence about one thing that is in a subscription's way, a damaged part before others; "" if none."""
    whole = _merged(partitions)
    causes = [cause for cause in whole["causes"] if cause["cause"] != "no backlog"]
    causes.sort(key=lambda cause: cause["cause"] != "unusable files")
    return _sentence(causes[0], whole) if causes else ""


# -- partitions

def _alike(partitions: list[Standstill]) -> list[list[Standstill]]:
    """Return partitions in groups with the same causes and consumers; those with a cause come first."""
    groups: dict[Any, list[Standstill]] = {}
    for part in partitions:
        causes = frozenset((cause["cause"], cause.get("consumer")) for cause in part["causes"]
                           if cause["cause"] != "schedule")
        groups.setdefault(causes, []).append(part)
    idle = frozenset({("no backlog", None)})
    return [groups[key] for key in sorted(groups, key=lambda key: key == idle)]


def _partitions(group: list[Standstill]) -> str:
    """Return the numbers of a group's partitions or segments, such as "partitions 0, 2 to 4"."""
    numbers = sorted(int(part["topic"].rpartition("-")[2]) for part in group)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [f"{first}" if first == last else f"{first} to {last}" for first, last in runs]
    kind = "segment" if group[0]["topic"].startswith("segment://") else "partition"
    return f"{kind}{'s' if len(numbers) > 1 else ''} {', '.join(texts)}"


_TOLD_APART = "cause", "consumer", "key", "hash", "message", "rule", "waiting", "transaction", "error", "schedule"


def _merged(group: list[Standstill]) -> Standstill:
    """Return partitions as one: numbers are added, the oldest times kept, causes and consumers told once."""
    causes: dict[Any, Cause] = {}
    account: dict[str, int] = {}
    waiting: dict[str, int] = {}
    for part in group:
        for name, number in part.get("waiting", {}).items():      # a broker of an older version does not say it
            waiting[name] = waiting.get(name, 0) + number
        for name, number in part["messages"].items():
            account[name] = account.get(name, 0) + number
        for cause in part["causes"]:
            key = tuple(cause.get(name) for name in _TOLD_APART)
            if key not in causes:
                causes[key] = dict(cause)
                continue
            before = causes[key]
            for name in _SUMMED:
                if name in cause:
                    before[name] += cause[name]
            for name in ("until_ms", "since_ms"):
                if name in cause:
                    before[name] = min(before[name], cause[name])
    holders = holders_of(group)
    return {"topic": group[0]["topic"], "subscription": group[0]["subscription"], "messages": account,
            "waiting": waiting,
            "causes": list(causes.values()),
            "type": next((part["type"] for part in group if part["type"] != "None"), "type not known"),
            "backlog": sum(part["backlog"] for part in group), "consumers": holders,
            "consumer_count": max([len(holders), *(part["consumer_count"] for part in group)]),
            "oldest_ms": min((part["oldest_ms"] for part in group if part["oldest_ms"]), default=None)}


# -- sentences

def _backlog(whole: Standstill) -> str:
    if all(cause["cause"] == "no subscription" for cause in whole["causes"]) and whole["causes"]:
        return "without this subscription."
    number = whole["messages"].get("backlog", whole["backlog"])
    if not number:
        return "everything is acknowledged."
    oldest = f", and the oldest has waited {ago(whole['oldest_ms'])}" if whole["oldest_ms"] else ""
    return f"{_messages(number)} not acknowledged{oldest}."


def _messages(number: int, verb: str = "is") -> str:
    if verb == "is":
        return f"{count(number)} message{' is' if number == 1 else 's are'}"
    return f"{count(number)} message{'' if number == 1 else 's'}"


def _account(messages: dict[str, int]) -> str:
    parts = [f"{count(number)} {name}" for name, number in messages.items()
             if number and name not in ("published", "backlog")]
    published = f"{_messages(messages['published'], '')} published since the subscription began"
    return f"{published}: {', '.join([*parts, count(messages['backlog']) + ' in the backlog'])}."


def _by_priority(waiting: dict[str, int]) -> str:
    parts = [f"{count(number)} of priority {priority}" for priority, number in sorted(waiting.items(), reverse=True)
             if number]
    return f"The highest priority is next: {', '.join(parts)}."


def _group(whole: Standstill, topic: str) -> list[str]:
    """Return the lines about one group of partitions: causes with next steps, then the consumers that hold messages."""
    lines = []
    parked = [cause for cause in whole["causes"] if cause["cause"] == "parked"]
    if parked:
        ids = ", ".join(cause["message"] for cause in parked[:_SHOWN_MAX])
        others = f" and {len(parked) - _SHOWN_MAX} others" if len(parked) > _SHOWN_MAX else ""
        lines += [f"{_messages(len(parked))} in quarantine, because {parked[0]['deaths']} consumers died over each: "
                  f"{ids}{others}.",
                  f"Deliver again: geminga admin topics release-parked {shlex.quote(short(topic))} "
                  f"-s {shlex.quote(whole['subscription'])}"]
    for cause in whole["causes"]:
        if cause["cause"] != "parked" and not (
                cause["cause"] in ("no backlog", "no subscription") and len(whole["causes"]) == 1):
            lines.append(_sentence(cause, whole))
            if step := _next_step(cause, whole, topic):
                lines.append(step)
    holding = [holder for holder in whole["consumers"] if holder["messages"]]
    lines += [_holder(holder) for holder in holding[:_SHOWN_MAX]]
    if len(holding) > _SHOWN_MAX:
        lines.append(f"{len(holding) - _SHOWN_MAX} other consumers hold messages.")
    return lines


def _consumer(name: str, whole: Standstill) -> str:
    """Return a consumer as people know it: its name, with address and library."""
    return next((_described(holder) for holder in whole["consumers"] if holder["name"] == name),
                f"consumer {plain(name)}")


def _described(holder: Holder) -> str:
    where = ", ".join(plain(text) for text in (holder["address"], holder["library"]) if text)
    return f"consumer {plain(holder['name'])}" + (f" ({where})" if where else "")


def _address(name: str | None, whole: Standstill) -> str:
    return next((holder["address"] for holder in whole["consumers"] if holder["name"] == name), "")


def _holder(holder: Holder) -> str:
    """Return a line about a consumer that holds messages."""
    last_ms = holder["acknowledged_ms"]
    since = f"it last acknowledged {ago(last_ms)} ago" if last_ms else "it has acknowledged nothing"
    standby = "" if holder["is_active"] else ", as a standby"
    return f"{_capital(_described(holder))} holds {_messages(holder['messages'], '')}; " \
           f"{since}, and is connected for {ago(holder['connected_ms'])}{standby}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _sentence(cause: Cause, whole: Standstill) -> str:
    """Return what a cause means."""
    make = _SENTENCES.get(cause["cause"])
    if make is None:
        details = ", ".join(f"{name} {value}" for name, value in cause.items() if name != "cause")
        return _capital(f"{cause['cause']}{': ' if details else ''}{details}.")
    return _capital(make(cause, whole))


def _no_consumer(_cause: Cause, whole: Standstill) -> str:
    return "no consumer is connected."


def _no_permits(cause: Cause, whole: Standstill) -> str:
    return f"{_consumer(cause['consumer'], whole)} asks for no more: its receive queue is full of messages that the " \
           "application has not taken."


def _no_acknowledgements(cause: Cause, whole: Standstill) -> str:
    if "consumer" in cause:
        return f"everything is delivered to {_consumer(cause['consumer'], whole)}, which has to acknowledge."
    if not whole["consumers"] or not cause.get("messages"):
        if any(other["cause"] == "dead letters" for other in whole["causes"]):
            return "nothing else waits for consumers, unless they have just given it back."
        return "everything is delivered, and nobody holds it: it is about to be delivered again."
    return f"everything is delivered: {_messages(cause['messages'])} with consumers that have to acknowledge."


def _too_many(cause: Cause, whole: Standstill) -> str:
    return f"{_consumer(cause['consumer'], whole)} gets no more: it holds {count(cause['messages'])} unacknowledged " \
           f"messages, and {count(cause['limit'])} are allowed for a consumer."


def _too_many_together(cause: Cause, whole: Standstill) -> str:
    what = cause["cause"].rpartition(" ")[2]
    return f"consumers together hold {count(cause['messages'])} unacknowledged messages, and {count(cause['limit'])} " \
           f"are allowed for the {what}."


def _delayed(cause: Cause, whole: Standstill) -> str:
    until, now = cause["until_ms"], time.time_ns() // 1_000_000
    wait = f"in {length((until - now) / 1_000)}" if until > now else "now"
    plural = "s wait for their delivery times" if cause["messages"] != 1 else " waits for its delivery time"
    return f"{count(cause['messages'])} message{plural}; the next is due {wait}, at {instant(until)}."


def _draining(cause: Cause, whole: Standstill) -> str:
    key = f"key {cause['key']!r}" if cause.get("key") is not None else f"the messages with key hash {cause['hash']}"
    taker = f"consumer {plain(cause['waiting'])}" if cause["waiting"] else "another consumer"
    return f"{key} belongs to {taker} now, which waits until {_consumer(cause['consumer'], whole)} has acknowledged " \
           f"{_messages(cause['messages'], '')} of it, held since {ago(cause['since_ms'])} (the first is " \
           f"{cause['message']})."


def _gaps(cause: Cause, whole: Standstill) -> str:
    ranges = ", ".join(f"{first} to {last}" for first, last in cause["ranges"][:_SHOWN_MAX])
    return f"no consumer takes keys with the hashes {ranges}."


def _rate(cause: Cause, whole: Standstill) -> str:
    what = "delivery" if cause["cause"] == "dispatch rate" else "publishing"
    held = f"; {count(cause['held_back'])} entries wait" if cause.get("held_back") else ""
    since = f" since {ago(cause['since_ms'])}" if cause.get("since_ms") else ""
    return f"a rate throttles {what}{since}: {plain(cause['rule'])}{held}."


def _open_transaction(cause: Cause, whole: Standstill) -> str:
    verb, since = "waits" if cause["messages"] == 1 else "wait", ago(cause["since_ms"])
    return f"transaction {cause['transaction']} is open, and published its first message here {since} ago; " \
           f"{_messages(cause['messages'], '')}, from that one on, {verb} for its end."


def _pending(cause: Cause, whole: Standstill) -> str:
    verb, they = ("is", "it comes") if cause["messages"] == 1 else ("are", "they come")
    return f"{_messages(cause['messages'], '')} {verb} acknowledged in transaction {cause['transaction']}, which is " \
           f"open; {they} again if it aborts."


def _reason(cause: Cause) -> str:
    """Return why the replicator does not go on, behind a colon; nothing if it says no reason."""
    return f": {plain(cause['error'])}" if cause.get("error") else ""


def _chunks(cause: Cause, whole: Standstill) -> str:
    count = cause["chunks"]
    what = "1 chunk waits" if count == 1 else f"{count:,} chunks wait"
    return f"{what} for permits of consumer {plain(cause['consumer'])}, which has the first ones of the messages."


def _dead_letters(cause: Cause, whole: Standstill) -> str:
    what = f"{count(cause['entries'])} dead letter{' is' if cause['entries'] == 1 else 's are'}"
    if cause["error"]:
        return f"{what} kept here, because the last attempt to move them failed: {plain(cause['error'])}."
    return f"{what} on the way to the dead letter topic."


def _schedule(cause: Cause, whole: Standstill) -> str:
    said = f"schedule {plain(cause['schedule'])}"
    dropped = f"; {count(cause['dropped'])} planned times were dropped" if cause["dropped"] else ""
    last = f"; its last message was for {cause['last']}" if cause["last"] else ""
    if cause["waiting"]:
        return f"{said} cannot publish, and tries again: {plain(cause['waiting'])}{last}{dropped}."
    if cause["paused"] or not cause["next"]:
        why = "is paused" if cause["paused"] else "has no more times"
        return f"{said} publishes nothing, as it {why}{last}{dropped}."
    return f"{said} publishes next at {cause['next']}{last}{dropped}."


_SENTENCES: dict[str, Callable[[Cause, Standstill], str]] = {
    "no backlog": lambda cause, whole: "there is nothing to deliver.",
    "end of topic": lambda cause, whole: "the topic is terminated, and everything in it is acknowledged.",
    "no subscription": lambda cause, whole: "a part of the topic does not have the subscription.",
    "unusable files": lambda cause, whole: f"its files cannot be used, and it is refused: {plain(cause['error'])}.",
    "sealed segments": lambda cause, whole:
        f"stream consumers get it when everything in segment {' and '.join(map(str, cause['segments']))} is "
        "acknowledged.",
    "no consumer": _no_consumer, "no permits": _no_permits, "no acknowledgements": _no_acknowledgements,
    "unacknowledged messages of a consumer": _too_many,
    "unacknowledged messages of the subscription": _too_many_together,
    "unacknowledged messages of the broker": _too_many_together,
    "delayed messages": _delayed, "draining key": _draining, "hashes that no consumer takes": _gaps,
    "chunks": _chunks,
    "dispatch rate": _rate, "publish rate": _rate, "open transaction": _open_transaction,
    "acknowledged in a transaction": _pending,
    "filter": lambda cause, whole:
        f"{_messages(cause['messages'], '')} since the topic was opened did not match its filter, "
        f"{plain(cause['filter'])}.",
    "parked": lambda cause, whole: "messages are in quarantine.",
    "dead letters": _dead_letters,
    "schedule": _schedule,
    "no replicator": lambda cause, whole:
        f"no replicator reads the topic for cluster {plain(cause['cluster'])}{_reason(cause)}.",
    "no answer of the cluster": lambda cause, whole:
        f"messages are on their way, and cluster {plain(cause['cluster'])} has not confirmed them yet{_reason(cause)}.",
}


# -- what to do

def _next_step(cause: Cause, whole: Standstill, topic: str) -> str:
    """Return a line with the next step, "" where there is none."""
    kind, name = cause["cause"], short(topic)
    words, classic = shlex.quote(name), shlex.quote(name.removeprefix("topic://"))      # policies have classic names
    if kind == "no consumer":
        verb = "topics unsubscribe" if classic == words else "scalable-topics delete-subscription"
        return f"Start its application; if nobody needs the subscription: geminga admin {verb} " \
               f"{words} -s {shlex.quote(whole['subscription'])}"
    if kind in ("no permits", "draining key") and (address := _address(cause.get("consumer"), whole)):
        return f"Look at that application; give its messages to others: geminga clients close {address}"
    if kind == "unacknowledged messages of a consumer":
        return "Allow more: geminga admin topicPolicies set-max-unacked-messages-per-consumer " \
               f"-m {2 * cause['limit']} {classic}"
    if kind == "unacknowledged messages of the subscription":
        return "Allow more: geminga admin topicPolicies set-max-unacked-messages-per-subscription " \
               f"-m {2 * cause['limit']} {classic}"
    if kind == "delayed messages":      # of segments there is no list
        return f"List them: geminga admin delayed list {words}" if classic == words else ""
    if kind in ("open transaction", "acknowledged in a transaction"):
        return "Look at the application that began it; or give the transaction up: " \
               f"geminga transactions abort {cause['transaction'].strip('()')}"
    if kind in ("no replicator", "no answer of the cluster"):
        return f"See its addresses: geminga admin clusters get {shlex.quote(cause['cluster'])}; give up what it does " \
               f"not have: geminga admin topics clear-backlog {words} -s {shlex.quote(whole['subscription'])}"
    if kind == "schedule" and cause["paused"]:
        return f"Let it go on: geminga schedule resume {words} {shlex.quote(cause['schedule'])}"
    if kind == "dispatch rate" and whole["subscription"].startswith(_CURSOR):
        return f"See the rate: geminga admin topicPolicies get-replicator-dispatch-rate {classic}"
    if kind == "dispatch rate":
        return f"See the rate: geminga admin topicPolicies get-dispatch-rate {classic}"
    return ""


def lines_of_all(subscriptions: list[list[Standstill]], topic: str) -> Iterator[str]:
    """Yield the lines about all subscriptions of a topic, in short."""
    if not subscriptions:
        yield f"{plain(topic)} has no subscriptions."
        return
    yield f"{plain(topic)}:"
    for partitions in subscriptions:
        yield f"  {in_short(partitions)}"
    yield f"More about one: geminga why {shlex.quote(topic)} SUBSCRIPTION"

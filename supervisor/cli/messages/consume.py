"""`geminga consume`: prints the messages of topics, as a reader or by a subscription."""
import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from geminga.supervisor.cli import running
from geminga.supervisor.cli.completion import complete_subscription, complete_topic
from geminga.supervisor.cli.messages import printing
from geminga.supervisor.cli.output import Converted, remark
from geminga.supervisor.configuration import target
from geminga.workers.messages.filters import Filter, filter_options

if TYPE_CHECKING:
    from geminga.supervisor.cli.messages.printing import Printer
    from geminga.supervisor.cli.messages.reading import Plan, Reading
    from geminga.workers.messages.decoding import Decoder
    from geminga.workers.messages.message import Message
    from geminga.workers.messages.values import Values
    from geminga.workers.pulsar_client.entries import Entry
    from geminga.workers.pulsar_client.rest import Broker

_KINDS = ("exclusive", "shared", "failover", "key_shared")
_POSITION = re.compile(r"(\d{1,18}):(\d{1,18})")
_LOOK_S = 2.0                           # limit for a question whether a subscription exists
_TOGETHER_MAX = 2_000                   # messages that are decoded before they are printed
_PRINTED_MAX = 256 << 10                # bytes that are written together
_PRINTED_MAX_ACKNOWLEDGED = 4 << 10     # with a subscription: a pipe that closes leaves few acknowledged and not read


class Wish(NamedTuple):
    """The choice and the form of the messages that are printed."""

    plan: "Plan"
    chosen: Filter
    form: str
    parts: frozenset[str]
    is_hex: bool
    limit: int | None          # of messages
    since_ms: int              # of --from
    acknowledges: bool


def _parts(text: str) -> frozenset[str]:
    parts = frozenset(filter(None, text.split(",")))
    if "all" in parts:
        return frozenset(printing.PARTS)
    if wrong := parts - set(printing.PARTS):
        raise ValueError(f"{sorted(wrong)[0]!r} is none of {', '.join(printing.PARTS)}, all")
    return parts


@click.command(epilog="\b\nExamples:\n"
                      "  geminga consume orders\n"
                      "  geminga consume orders --follow --from latest --show key\n"
                      "  geminga consume orders --from -1h --grep 'error|failed' -o jsonl\n"
                      "  geminga consume orders -s billing --type shared -n 5\n\n"
                      "Exit status: 0 messages were printed as far as was asked; 1 not all, with a line for each "
                      "entry that was not, or no such topic; 2 wrong usage; 3 not reachable.")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topic)
@click.option("--subscription", "-s", metavar="NAME", shell_complete=complete_subscription,
              help="Consume by this subscription, and acknowledge what was printed.  A new one begins with what comes "
                   "next, unless --from earliest.")
@click.option("--type", "kind", type=click.Choice(_KINDS), show_default="exclusive",
              help="Type of the subscription.")
@click.option("--no-ack", is_flag=True, help="With -s: acknowledge nothing.")
@click.option("--from", "first", metavar="WHERE", show_default="earliest",
              help="Begin at earliest, latest, a time such as -1h or 2026-01-31T12:00:00Z, or LEDGER:ENTRY.")
@click.option("--count", "-n", type=click.IntRange(1), metavar="N", help="End after so many messages.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes, until interrupted.")
@click.option("--compacted", is_flag=True, help="Of each key that was compacted, only the newest message.")
@click.option("--show", "parts", metavar="PARTS", type=Converted("parts", _parts), default="",
              help="Columns before the payload, separated by commas: key, properties, position, times, topic or all.")
@click.option("--hex", "is_hex", is_flag=True, help="Print payloads that are not printable in hexadecimal.")
@click.option("--output", "-o", "form", type=click.Choice(printing.FORMS), default="lines", show_default=True,
              help="Payloads a line each, a table, or whole messages for programs.")
@filter_options
@target.service_options
def consume(topics: tuple[str, ...], subscription: str | None, kind: str | None, no_ack: bool, first: str | None,
            count: int | None, follow: bool, compacted: bool, parts: frozenset[str], is_hex: bool, form: str,
            **values: Any) -> int:
    """Print the messages of topics, or of a subscription.

    The messages that the topics hold are printed, and with --follow those that come.  A TOPIC may be partitioned, or a
    pattern such as public/default/orders-* or persistent://public/default/.*  No topic is created.  Without a
    subscription nothing is acknowledged or left behind.
    """
    from geminga.supervisor.cli.messages.reading import Plan
    from geminga.workers.pulsar_client.consumers import Manner
    chosen = Filter.of(values)
    if subscription == "":
        raise click.UsageError("--subscription is empty: omit it to read without one")
    if not subscription and (kind or no_ack):
        raise click.UsageError(f"{'--type' if kind else '--no-ack'} needs --subscription")
    if compacted and kind in ("shared", "key_shared"):
        raise click.UsageError(f"--compacted works with a reader, exclusive or failover, not with {kind}")
    start = _start(first, subscription, is_follow=follow)
    manner = Manner(subscription or "", kind or "exclusive", compacted)
    wish = Wish(Plan(topics, manner, start, follow), chosen, form, parts, is_hex, count, start.since_ms,
                bool(subscription) and not no_ack)
    broker = target.of(values)
    if subscription and values.get("url") is None:      # else the address of administration may be another broker's
        _tell_of_subscription(broker.broker(_LOOK_S), topics, subscription, first)
    try:
        return running.run(broker, lambda: _consumed(broker, wish))
    except KeyboardInterrupt:
        return 0


def _tell_of_subscription(broker: "Broker", topics: tuple[str, ...], subscription: str, first: str | None) -> None:
    """Tell that a subscription will be created, or that --from does not move one that exists.

    Topics that are named by patterns, and brokers that do not answer the question, are passed over.
    """
    from geminga.workers.pulsar_client.rest import NotReachable, Refused, plain, topic_path
    for topic in topics:
        try:
            subscriptions = broker.ask("GET", f"/admin/v2/{topic_path(topic)}/subscriptions").value()
        except (NotReachable, Refused, ValueError):
            continue
        if subscription not in subscriptions:
            where = "the oldest message" if first == "earliest" else "what comes next"
            remark(f"the subscription {plain(subscription)} of {plain(topic)} is new: it begins with {where}, and "
                     "keeps messages until they are acknowledged or it is deleted (geminga admin topics unsubscribe)")
        elif first is not None:
            remark(f"--from {first} is for a new subscription: {plain(subscription)} of {plain(topic)} goes on "
                     "where it stands; geminga admin topics reset-cursor moves it")


def _start(text: str | None, subscription: str | None, *, is_follow: bool) -> Any:
    """Return the Start that --from asks for.  Raises click.UsageError."""
    from geminga.storage.runtime import units
    from geminga.workers.pulsar_client.consumers import Start
    if text is None:
        return Start(is_earliest=not subscription)
    if text in ("earliest", "latest"):
        if text == "latest" and not subscription and not is_follow:
            raise click.UsageError("--from latest prints nothing without --follow")
        return Start(is_earliest=text == "earliest")
    if subscription:
        raise click.UsageError(f"--from {text}: a subscription has a position of its own; "
                               "geminga admin topics reset-cursor changes it")
    if position := _POSITION.fullmatch(text):
        return Start(first=(int(position[1]), int(position[2])))
    now_ms = time.time_ns() // 1_000_000
    try:
        since_ms = units.moment(text, now_ms)
    except ValueError as error:
        raise click.UsageError(f"--from is earliest, latest, LEDGER:ENTRY or a time: {error}") from None
    if since_ms > now_ms:
        raise click.UsageError(f"--from {text} is in the future; an hour ago is -1h")
    return Start(since_ms=since_ms)


async def _consumed(broker: target.Target, wish: Wish) -> int:
    """Print messages as wished, and return the exit status."""
    from geminga.supervisor.cli.messages.printing import OutputClosed, Printer
    from geminga.supervisor.cli.messages.reading import Reading
    from geminga.workers.messages.decoding import Decoder
    from geminga.workers.messages.values import Values
    decoder, printer = Decoder(), Printer(wish.form, wish.parts, is_hex=wish.is_hex)
    reading = Reading(broker, wish.plan, decoder)
    work = _Consuming(wish, reading, decoder, Values(reading.schema), printer)
    try:
        try:
            await work.run()
        finally:
            printer.close()
            await reading.close()
    except OutputClosed:
        return 0
    return work.status


class _Consuming:
    """Messages on their way from entries to standard output."""

    def __init__(self, wish: Wish, reading: "Reading", decoder: "Decoder", values: "Values",
                 printer: "Printer") -> None:
        self.status = 0
        self._wish, self._reading, self._decoder = wish, reading, decoder
        self._values, self._printer = values, printer
        self._left = wish.limit                     # messages still to print, None: all
        self._size_max = _PRINTED_MAX_ACKNOWLEDGED if wish.acknowledges else _PRINTED_MAX
        self._printed: list[tuple[Entry, Message]] = []      # not acknowledged yet

    def __repr__(self) -> str:
        return f"<_Consuming {self._reading} left={self._left}>"

    async def run(self) -> None:
        async for deliveries in self._reading.deliveries():
            for topic, entry in deliveries:
                if entry.metadata.publish_time >= self._wish.since_ms:
                    await self._show(topic, entry)
                if self._left == 0:
                    break
            self._flush()
            self._complain()
            if self._left == 0:
                return
        self._decoder.end()
        self._complain()

    async def _show(self, topic: str, entry: "Entry") -> None:
        """Print those messages of an entry that match, some at a time: a batch may have millions."""
        messages: list[Message] = []
        for message in self._decoder.messages(topic, entry):
            messages.append(message)
            if len(messages) >= _TOGETHER_MAX:
                await self._print(entry, messages)
                messages = []
            if self._left == 0:
                return
        await self._print(entry, messages)

    async def _print(self, entry: "Entry", messages: "list[Message]") -> None:
        await self._values.decode(messages)
        chosen, printer = self._wish.chosen, self._printer
        is_open, acknowledges = chosen.is_open, self._wish.acknowledges
        for message in messages:
            if self._left == 0:
                return
            if not is_open and not chosen.matches(message):
                continue
            printer.add(message)
            if self._left is not None:
                self._left -= 1
            if acknowledges:
                self._printed.append((entry, message))
            if printer.size >= self._size_max:
                self._flush()

    def _flush(self) -> None:
        """Write what was printed, then acknowledge it: no interruption comes between."""
        self._printer.flush()
        if self._printed:
            self._acknowledge()

    def _acknowledge(self) -> None:
        consumers = self._reading.consumers
        assert consumers is not None
        whole: dict[str, list[tuple[int, int]]] = {}
        in_batches: dict[int, tuple[str, Entry, list[int]]] = {}
        for entry, message in self._printed:
            if message.batch_index < 0:
                whole.setdefault(message.topic, []).extend(
                    message.chunks or ((message.ledger_id, message.entry_id),))
            else:
                in_batches.setdefault(id(entry), (message.topic, entry, []))[2].append(message.batch_index)
        for topic, positions in whole.items():
            consumers.acknowledge(topic, positions)
        for topic, entry, indexes in in_batches.values():
            consumers.acknowledge_in_batch(topic, entry, indexes)
        self._printed.clear()

    def _complain(self) -> None:
        """Print a line for each entry that has no messages to show, and for schemas that do not fit."""
        lines = self._decoder.left_out + self._values.complaints
        self.status |= bool(self._decoder.left_out)
        for line in lines:
            remark(line)
        self._decoder.left_out.clear()
        self._values.complaints.clear()

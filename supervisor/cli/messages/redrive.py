"""`geminga redrive`: sends dead letters back to where they came from."""
import contextlib
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypedDict
from urllib.parse import urlencode

import click

from geminga.storage.runtime import units
from geminga.supervisor.cli import options, running
from geminga.supervisor.cli.completion import complete_topic
from geminga.supervisor.cli.output import FORM, Converted, Output, remark
from geminga.supervisor.configuration import target
from geminga.supervisor.wording import human
from geminga.workers.messages.filters import Filter, filter_options

if TYPE_CHECKING:
    from geminga.supervisor.cli.progress import Progress
    from geminga.supervisor.configuration.target import Target
    from geminga.supervisor.tasks.redriving import Choice, Redrive, Redriven
    from geminga.workers.messages.message import Message

_UNDONE_MAX = 100_000        # messages that one request takes back
_UNDO_S = 3_600.0            # for the answer: a rate may be low


@click.command(epilog="""\b
Examples:
  geminga redrive orders-billing-DLQ --dry-run          what would go where
  geminga redrive orders-billing-DLQ --rate 100
  geminga redrive all-DLQ -s billing --reason Timeout --age 1h
  geminga redrive orders-billing-DLQ --to orders-again -n 10
  geminga redrive orders-billing-DLQ --undo orders      take back what no consumer has yet

The command can be repeated, also after it was killed: each letter is sent once.  Exit status: 0 all chosen letters are
sent; 1 not all, or interrupted; 2 wrong usage; 3 not reachable.""")
@click.argument("topic", metavar="DEAD-LETTER-TOPIC", shell_complete=complete_topic)
@click.option("--to", metavar="TOPIC", shell_complete=complete_topic,
              help="Send all to this topic; else each letter goes to the topic, and partition, that its property "
                   "REAL_TOPIC names.")
@click.option("--to-all", is_flag=True,
              help="Give letters to all subscriptions of their topic, not only to the one that lost them; needed on a "
                   "broker other than Geminga.")
@click.option("--subscription", "-s", metavar="NAME", default="",
              help="Only letters of this subscription: by their property REAL_SUBSCRIPTION, else by the name "
                   "TOPIC-SUBSCRIPTION-DLQ of their topic.")
@click.option("--reason", metavar="TEXT", default="", help="Only letters with this text in a property whose name has "
                                                           "reason, error or exception in it.")
@click.option("--age", "age_ms", type=Converted("time", units.millis), metavar="TIME",
              help="Only letters that are dead for this time, such as 1h.")
@filter_options
@click.option("--from-subscription", metavar="NAME", default="geminga-redrive", show_default=True,
              help="Subscription of the dead letter topic: gives the letters, and forgets those that are sent.  It is "
                   "made at the first letter if missing.")
@click.option("--count", "-n", type=click.IntRange(1), metavar="N", help="End after so many letters.")
@click.option("--rate", callback=options.rate, metavar="N[/TIME]",
              help="At most so many letters a second, or in a time.")
@click.option("--undo", metavar="TOPIC", shell_complete=complete_topic,
              help="Take back what redrives have sent to this topic, for the subscription that lost it: messages that "
                   "no consumer has are acknowledged, and are dead letters again.")
@click.option("--dry-run", is_flag=True, help="Only show how many letters would go where, or would be taken back.")
@FORM
@target.options
def redrive(topic: str, to: str | None, to_all: bool, subscription: str, reason: str, age_ms: int | None,
            from_subscription: str, count: int | None, rate: float, undo: str | None, dry_run: bool, form: str,
            **others: Any) -> int:
    """Give subscriptions their dead letters back, once each.

    Other subscriptions of the topic get them only with --to-all, or if a letter does not say which one lost it.  This
    holds also if the command is killed and repeated.  Letters that are sent are acknowledged on a subscription of
    the dead letter topic.  What clients noted in their properties is removed, so that consumers count deliveries anew.
    """
    from geminga.proto import names
    from geminga.proto.errors import Refusal
    from geminga.supervisor.cli.progress import progress
    from geminga.supervisor.tasks.redriving import Choice
    from geminga.workers.messages import topics
    if undo is not None:
        if to or to_all or reason or age_ms is not None:
            raise click.UsageError("--undo goes without --to, --to-all, --reason and --age; --until names a time")
        return _undo(topic, undo, {"subscription": subscription, "from_subscription": from_subscription, "count": count,
                                   "rate": rate}, others, Output(form), is_dry=dry_run)
    chosen, oldest_ms = Filter.of(others), None if age_ms is None else time.time_ns() // 1_000_000 - age_ms
    broker = target.of(others)
    try:
        name, to = names.parse(topic), str(names.parse(to)) if to else ""
    except Refusal as error:
        raise click.UsageError(str(error)) from None

    def matches(letter: "Message") -> bool:
        return (oldest_ms is None or letter.publish_time_ms <= oldest_ms) and chosen.matches(letter)

    choice = Choice(matches, subscription, reason, to, limit=count, needs_value=chosen.needs_value, is_for_all=to_all)
    work = _Work(broker, from_subscription, choice, rate, is_dry=dry_run)

    async def run() -> int:
        with contextlib.closing(await broker.connect()) as connection:
            partitions = await topics.partitions(connection, name)
        with progress("redriving", count) as bar:
            await work.run(map(str, map(name.partition_name, range(partitions)) if partitions else (name,)), bar)
        return work.tell(str(name), Output(form))

    return running.run(broker, run)


def _undo(topic: str, undo: str, asked: dict[str, Any], others: dict[str, Any], output: Output, *, is_dry: bool) -> int:
    """Have the broker take back what redrives have sent, print its answer, and return the exit status."""
    from geminga.proto import names
    from geminga.proto.errors import Refusal
    from geminga.workers.pulsar_client.rest import topic_path
    texts = {name: others.pop(name) for name in ("key", "grep", "where", "since", "until")}
    properties = list(others.pop("properties"))
    try:
        letters, asked = names.parse(topic), asked | {"undo": str(names.parse(undo))}
    except Refusal as error:
        raise click.UsageError(str(error)) from None
    asked |= {"count": asked["count"] or _UNDONE_MAX}
    values = {name: value for name, value in (asked | texts).items() if value}
    broker, path = target.of(others).broker(_UNDO_S), f"/ops/v1/redrive/{topic_path(str(letters))}"
    if is_dry:
        query = urlencode([*values.items(), *(("properties", text) for text in properties)])
        figures = broker.ask("GET", f"{path}?{query}").value()
    else:
        figures = broker.ask("POST", path, body=values | {"properties": properties}).value()
    for line in figures["complaints"]:
        remark(line)
    output.value(figures, _undone_as_text)
    return int(bool(figures["not_possible"] or figures["complaints"]))


def _undone_as_text(figures: dict[str, Any]) -> str:
    from geminga.workers.pulsar_client.rest import plain
    verb = "would be taken back" if figures["dry_run"] else "taken back"
    return "\n".join([f"{human.count(figures['taken_back'])} {verb} from {plain(figures['undone_at'])}", *(
        f"{human.count(count)} stay: {plain(why)}" for why, count in figures["not_possible"].items())])


class _Work:
    """A redrive of the partitions of a dead letter topic, one after the other."""

    def __init__(self, broker: "Target", subscription: str, choice: "Choice", rate: float, *, is_dry: bool) -> None:
        from geminga.supervisor.tasks.redriving import Redriven
        self._broker, self._subscription, self._choice, self._rate = broker, subscription, choice, rate
        self._is_dry, self._is_stopped = is_dry, False
        self._totals, self._left_out = Redriven(), list[str]()

    def __repr__(self) -> str:
        return f"<_Work {self._totals}>"

    async def run(self, parts: Iterable[str], bar: "Progress") -> None:
        """Redrive until all is done, the limit is reached, or a signal comes.  Raises ClientError, OSError."""
        from dataclasses import replace

        from geminga.supervisor.tasks.redriving import Redrive
        choice = self._choice
        for part in parts:
            if self._is_stopped or choice.limit == 0:
                break
            redrive = Redrive(self._broker, part, self._subscription, choice, self._rate)
            if self._is_dry:
                await redrive.look(has_subscription=_has_subscription(self._broker, part, self._subscription))
            else:
                self._is_stopped = await _run_until_stopped(redrive, bar.advance)
            self._totals.add(redrive.redriven)
            self._left_out += redrive.left_out
            if self._choice.limit is not None:
                choice = replace(choice, limit=self._choice.limit - self._totals.count)

    def tell(self, topic: str, output: Output) -> int:
        """Print what was done, and return the exit status."""
        for line in self._left_out:
            remark(line)
        output.value(_as_json(topic, self._totals, is_dry=self._is_dry), _as_text)
        if self._is_stopped:
            remark("interrupted; repeat the command to go on")
        return int(bool(self._totals.failed or self._left_out or self._is_stopped))


def _has_subscription(broker: "Target", topic: str, subscription: str) -> bool:
    """Return whether a topic has a subscription.  A look at the broker's protocol would make it."""
    from geminga.workers.pulsar_client.rest import topic_path
    return subscription in broker.broker().ask("GET", f"/admin/v2/{topic_path(topic)}/subscriptions").value()


async def _run_until_stopped(redrive: "Redrive", advance: Any) -> bool:
    """Run a redrive, and return whether a signal has stopped it between two rounds."""
    import asyncio
    import signal
    loop = asyncio.get_running_loop()

    def stop() -> None:
        redrive.is_stopped = True
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    await redrive.run(advance)
    return redrive.is_stopped


class Figures(TypedDict):
    """What a redrive did, or would do."""

    topic: str
    dry_run: bool
    sent: int
    sent_before: int
    to_all_subscriptions: int
    not_chosen: int
    targets: dict[str, int]
    not_possible: dict[str, int]      # reason -> letters


def _as_json(topic: str, totals: "Redriven", *, is_dry: bool) -> Figures:
    return {"topic": topic, "dry_run": is_dry, "sent": totals.sent.total(), "sent_before": totals.already,
            "to_all_subscriptions": totals.for_all, "not_chosen": totals.skipped, "targets": dict(totals.sent),
            "not_possible": dict(totals.failed)}


def _as_text(figures: Figures) -> str:
    from geminga.workers.pulsar_client.rest import plain
    verb = "would go" if figures["dry_run"] else "sent"
    lines = [f"{human.count(count)} {verb} to {plain(topic)}" for topic, count in figures["targets"].items()]
    if not lines:
        lines = [f"0 {verb}"]
    if figures["sent_before"]:
        lines.append(f"{human.count(figures['sent_before'])} were sent by an interrupted redrive before")
    if figures["to_all_subscriptions"]:
        lines.append(f"{human.count(figures['to_all_subscriptions'])} of these for all subscriptions of the topic")
    if figures["not_chosen"]:
        lines.append(f"{human.count(figures['not_chosen'])} not chosen")
    lines += [f"{human.count(count)} not possible: {plain(why)}" for why, count in figures["not_possible"].items()]
    return "\n".join(lines)

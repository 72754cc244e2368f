"""`geminga bench`: puts a load on a broker, and prints rates and latencies."""
import contextlib
import dataclasses
import secrets
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import click

from geminga.storage.runtime import units
from geminga.supervisor.cli import options, running
from geminga.supervisor.cli.completion import complete_subscription, complete_topic
from geminga.supervisor.cli.output import FORM, Converted, Failed, Output, remark
from geminga.supervisor.configuration import target
from geminga.supervisor.wording import human
from geminga.workers.pulsar_client.rest import namespace_path

if TYPE_CHECKING:
    from geminga.proto.names import TopicName
    from geminga.supervisor.configuration.target import Target
    from geminga.supervisor.load.plan import BrokerAddress, Plan
    from geminga.supervisor.load.running import Look

_CODECS = "none", "lz4", "zlib", "zstd", "snappy"
_KINDS = "exclusive", "shared", "failover", "key_shared"
_CLIENTS = "raw", "pulsar-client"
_BUSY = 0.9          # of a core: beyond, the generator may be what limits a rate
_NOT_FOUND = 404
_KEPT = 0.98         # of a rate: below, the load was not what was asked for
_LONGEST_S = 10 * 365 * 86_400.0


def _time(least_ms: int) -> Converted:
    """Return the type of a time in seconds that is not shorter."""
    def seconds(text: str) -> float:
        if not least_ms <= (time_ms := units.millis(text)) <= _LONGEST_S * 1_000:
            raise ValueError(f"{text!r} is no time to measure, such as 10s or 5m")
        return time_ms / 1_000
    return Converted("time", seconds)


def _namespace(text: str) -> str:
    namespace_path(text)
    return text


def _size(text: str) -> int:
    if not 0 < (size := units.size(text)) <= 128 << 20:
        raise ValueError("a message has 1 byte to 128 MiB")
    return size


@click.command(epilog="""\b
Examples:
  geminga bench                                       as much as goes, on a topic of its own
  geminga bench --rate 5000 --duration 1m             latencies at a rate
  geminga bench -c 0 --size 1K --batch 100 -p 4       publish only
  geminga bench orders -p 0 -s billing -n 100000      read what a topic holds

Exit status: 0 done, and every message arrived; 1 refused or lost; 2 wrong usage; 3 not reachable.""")
@click.argument("topic", required=False, shell_complete=complete_topic)
@click.option("--producers", "-p", type=click.IntRange(0, 10_000), metavar="N", default=1, show_default=True,
              help="Connections with a producer on each topic.")
@click.option("--consumers", "-c", type=click.IntRange(0, 10_000), metavar="N", default=1, show_default=True,
              help="Connections with a consumer on each topic.")
@click.option("--size", type=Converted("size", _size), metavar="SIZE", default="100", show_default=True,
              help="Size of a message, such as 1K.")
@click.option("--batch", type=click.IntRange(1, 10_000), metavar="N", default=1, show_default=True,
              help="Messages in an entry.")
@click.option("--keys", type=click.IntRange(0, 100_000_000), metavar="N", default=0, help="Different keys, in turn.")
@click.option("--compression", type=click.Choice(_CODECS), default="none", show_default=True,
              help="Compression of payloads.")
@click.option("--rate", callback=options.rate, metavar="N[/TIME]",
              help="Messages a second, or in a time, of all producers together; else as many as go.")
@click.option("--duration", "-d", "seconds", type=_time(1), default="10s", show_default=True, metavar="TIME",
              help="How long to measure.")
@click.option("--warmup", "warmup_s", type=_time(0), default="2s", show_default=True, metavar="TIME",
              help="How long the load runs before that.")
@click.option("--count", "-n", type=click.IntRange(1), metavar="N",
              help="Measure so many messages, from first to last, instead.")
@click.option("--topics", type=click.IntRange(1, 10_000), metavar="N", default=1, show_default=True,
              help="Topics of its own.")
@click.option("--partitions", type=click.IntRange(0, 1_000), metavar="N", default=0,
              help="Partitions of each topic of its own.")
@click.option("--namespace", type=Converted("namespace", _namespace), metavar="NAMESPACE", default="public/default",
              show_default=True, help="Namespace of topics of its own.")
@click.option("--keep", is_flag=True, help="Do not remove topics of its own at the end.")
@click.option("--type", "kind", type=click.Choice(_KINDS), help="Subscription type; else exclusive for one consumer, "
              "shared for more.")
@click.option("--subscription", "-s", metavar="NAME", shell_complete=complete_subscription,
              help="A subscription of TOPIC, created at the end of it if missing; else one that is removed at the end.")
@click.option("--window", type=click.IntRange(1, 100_000), metavar="N", default=5_000, show_default=True,
              help="Entries without a receipt, of each producing connection.")
@click.option("--permits", type=click.IntRange(1, 1_000_000), metavar="N", default=20_000, show_default=True,
              help="Messages that a consumer has asked for.")
@click.option("--lead", type=click.IntRange(0), metavar="N", default=10_000, show_default=True,
              help="Without --rate, producers wait while more messages are on their way to consumers; 0: never.")
@click.option("--processes", type=click.IntRange(1, 1_000), metavar="N",
              help="Processes for producers, and as many for consumers; else one per connection, up to the cores.")
@click.option("--client", type=click.Choice(_CLIENTS), default="raw", show_default=True,
              help="Sockets, or the library that applications use.")
@FORM
@target.options
def bench(topic: str | None, size: int, batch: int, keys: int, compression: str, seconds: float, warmup_s: float,
          count: int | None, topics: int, partitions: int, namespace: str, keep: bool, client: str, form: str,
          **others: Any) -> None:
    """Put a load on a broker, and print rates and latencies.

    Without TOPIC the load has topics of its own, which are made over HTTP and removed at the end.  A latency counts
    from the time at which a message was due by --rate, also where the broker held up its producer.
    """
    from geminga.proto import pulsar_api_pb2 as api
    from geminga.supervisor.load import blocks, plan, real_client, running
    from geminga.supervisor.load.link import BrokerError
    if client != "raw" and not real_client.is_installed():
        raise click.UsageError(real_client.INSTALL)
    load = {name: others.pop(name) for name in ("producers", "consumers", "window", "permits", "lead")}
    rate, kind, subscription, processes = (others.pop(name) for name in ("rate", "kind", "subscription", "processes"))
    broker = target.of(others, may_be_local=client == "raw")
    _check(load, kind, subscription, topic, topics, partitions, processes)
    signal.signal(signal.SIGTERM, _interrupt)      # topics of its own are removed then, too
    try:
        with _topics(broker, topic, namespace, topics, partitions, keep) as all_topics:
            made = plan.Plan(
                broker.url, {}, blocks.Message(size, batch, keys, getattr(api, compression.upper())), **load,
                processes=processes or 0, rate=rate, count=count or 0,
                subscription=subscription or f"bench-{secrets.token_hex(4)}",
                kind=kind or ("exclusive" if load["consumers"] < 2 else "shared"),
                starts_at_end=topic is not None and load["producers"] > 0, credentials=broker.credentials,
                tls=broker.credentials.context_for(broker.url))
            places = _topics_by_broker(broker, all_topics, with_partitions=client == "raw")
            made = dataclasses.replace(made, topics=places)
            links = max(load["producers"], load["consumers"]) * len(places)
            if links > running.LINKS_MAX * (processes or running.process_count(links)):
                raise click.UsageError(f"a process has {running.LINKS_MAX} connections at most: give --processes")
            with _removed_subscription(broker, made, is_own=topic is not None and not subscription
                                       and load["consumers"] > 0), _Line(made) as line:
                figures = running.measure(
                    made, warmup_s=warmup_s, seconds=_LONGEST_S if count else seconds, is_real=client != "raw",
                    expects_all=not subscription and all(one.is_persistent for one in all_topics), tell=line)
    except BrokerError as error:
        raise Failed(1, f"{broker.url}: {error}") from None
    except KeyboardInterrupt:
        raise Failed(1, "interrupted") from None
    figures = {"topics": [str(name) for name in all_topics], **_settings(made, client), **figures}
    Output(form).value(figures, _as_text)


def _check(load: dict[str, int], kind: str | None, subscription: str | None, topic: str | None, topics: int,
           partitions: int, processes: int | None) -> None:
    if not load["producers"] and not load["consumers"]:
        raise click.UsageError("there is nothing to do without producers and consumers")
    if not load["producers"] and topic is None:
        raise click.UsageError("without producers a TOPIC with messages is needed")
    if topic is not None and (topics != 1 or partitions):
        raise click.UsageError("--topics and --partitions are for topics of its own, without TOPIC")
    if topic is None and subscription:
        raise click.UsageError("--subscription is one of TOPIC")
    if kind == "exclusive" and load["consumers"] > 1:
        raise click.UsageError("an exclusive subscription has one consumer: give --type shared, failover or key_shared")


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _topics(broker: "Target", topic: str | None, namespace: str, topics: int, partitions: int,
            keep: bool) -> Iterator[list["TopicName"]]:
    """Give the topics of the load, made for it unless one is named, and remove them then."""
    from geminga.proto import names
    from geminga.proto.errors import Refusal
    from geminga.workers.pulsar_client.rest import NotReachable, Refused, topic_path
    if topic is not None:
        try:
            yield [names.parse(topic)]
        except Refusal as error:
            raise click.UsageError(str(error)) from None
        return
    run, made = secrets.token_hex(4), list[str]()
    try:
        for number in range(topics):
            name = f"persistent://{namespace}/bench-{run}-{number}"
            path = f"/admin/v2/{topic_path(name)}" + ("/partitions" if partitions else "")
            made.append(path)      # before it is: an interruption may come before the broker's answer
            try:
                broker.broker().ask("PUT", path, body=partitions or None)
            except (NotReachable, Refused) as error:
                made.pop()
                if isinstance(error, Refused):
                    raise
                raise type(error)(f"{error}; topics are made over HTTP, name a TOPIC to do without") from None
        yield [names.parse(f"persistent://{namespace}/bench-{run}-{number}") for number in range(topics)]
    finally:
        for path in [] if keep else made:
            try:
                broker.broker().ask("DELETE", path, {"force": True})
            except (NotReachable, Refused) as error:
                if isinstance(error, Refused) and error.status == _NOT_FOUND:
                    continue      # it was not made before the interruption
                remark(f"{path.removeprefix('/admin/v2/')} is still there: {error}")


def _topics_by_broker(broker: "Target", topics: list["TopicName"], *,
                      with_partitions: bool) -> dict["BrokerAddress", tuple[str, ...]]:
    """Return topics and partitions by the place of their broker.  Raises Failed."""
    from geminga.supervisor.load.plan import BrokerAddress
    from geminga.workers.messages import topics as existing
    from geminga.workers.pulsar_client.connection import ClientError
    places: dict[BrokerAddress, tuple[str, ...]] = {}

    async def look_up() -> int:
        for topic in topics:
            with contextlib.closing(await broker.connect()) as connection:
                count = await connection.partitions(str(topic))
                hint = await existing.question(connection, topic) if count is None else ""
            if count is None:
                hint = hint or "; without TOPIC, topics are made for the load"
                raise ClientError(f"there is no topic {topic}{hint}")
            if not with_partitions:
                places[BrokerAddress(broker.url)] = (*places.get(BrokerAddress(broker.url), ()), str(topic))
                continue
            for part in map(topic.partition_name, range(count)) if count else (topic,):
                connection = await broker.connect_to_topic(str(part))
                connection.close()
                place = BrokerAddress(*connection.place)
                places[place] = (*places.get(place, ()), str(part))
        return 0
    running.run(broker, look_up)
    return places


@contextlib.contextmanager
def _removed_subscription(broker: "Target", plan: "Plan", *, is_own: bool) -> Iterator[None]:
    """Remove the load's subscription from the topic at the end, if the load made it."""
    async def remove() -> int:
        for topic in (topic for topics in plan.topics.values() for topic in topics):
            with contextlib.closing(await broker.connect_to_topic(topic)) as connection:
                for part in await _parts(connection, topic):
                    await connection.unsubscribe(await connection.subscribe(part, plan.subscription))
        return 0
    try:
        yield
    finally:
        if is_own:
            try:
                running.run(broker, remove)
            except Failed as error:      # what was measured is not lost for that
                remark(error)


async def _parts(connection: Any, topic: str) -> list[str]:
    from geminga.proto import names
    name = names.parse(topic)
    count = await connection.partitions(topic)
    return [str(name.partition_name(number)) for number in range(count)] if count else [topic]


def _settings(plan: "Plan", client: str) -> dict[str, Any]:
    return {"client": client, "producers": plan.producers, "consumers": plan.consumers, "size": plan.message.size,
            "batch": plan.message.batch, "keys": plan.message.keys,
            "type": plan.kind if plan.consumers else None}


class _Line:
    """Shows the load's rates of the last second, in one line of a terminal."""

    def __init__(self, plan: "Plan"):
        self._plan, self._is_shown, self._began_at = plan, sys.stderr.isatty(), 0.0

    def __call__(self, before: "Look", now: "Look") -> None:
        if not self._is_shown:
            return
        from geminga.supervisor.load import latencies
        seconds = now.at - before.at
        self._began_at = self._began_at or before.at
        shown = [f"{now.at - self._began_at:4.0f} s"]
        if self._plan.producers:
            shown.append(f"published {human.rate((now.published - before.published) / seconds)}/s")
        if self._plan.consumers:
            shown.append(f"received {human.rate((now.arrived - before.arrived) / seconds)}/s")
        for name, counts in (("publish p99", now.publish_counts - before.publish_counts),
                             ("end to end p99", now.arrival_counts - before.arrival_counts)):
            if figures := latencies.percentiles_ms(counts):
                shown.append(f"{name} {_ms(figures['p99'])} ms")
        print("\r\x1b[K" + "   ".join(shown), end="", file=sys.stderr, flush=True)

    def __enter__(self) -> "_Line":
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _as_text(figures: dict[str, Any]) -> str:
    """Return figures as text for people."""
    from geminga.supervisor.cli.output import Column, table
    lines = []
    for name, what in (("published", "published"), ("consumed", "received")):
        if figures[name]:
            lines.append(f"{what:<11}{human.rate(figures[f'{name}_rate'])} messages/s, "
                         f"{human.size(figures[f'{name}_bytes_rate'])}/s, {human.count(figures[name])} messages in "
                         f"{figures['seconds']:.1f} s")
    rows = [{"latency in ms": what, **{part: _ms(value) for part, value in figures[name].items()}}
            for name, what in (("publish_ms", "publish to receipt"), ("end_to_end_ms", "publish to arrival"))
            if figures[name]]
    if rows:
        lines += ["", *table(rows, [Column(key, is_number=number > 0) for number, key in enumerate(rows[0])])]
    return "\n".join([*lines, *_notes(figures)])


def _notes(figures: dict[str, Any]) -> list[str]:
    """Return warnings about figures: full queues, a rate that was not kept, a busy load process."""
    notes = []
    if figures["asked_rate"] is None and figures["published"]:
        notes.append("Without --rate all queues are full, and latencies are the time in them.")
    elif figures["asked_rate"] and figures["published_rate"] < figures["asked_rate"] * _KEPT:
        notes.append(f"The rate was not kept: {human.rate(figures['asked_rate'])} messages/s were asked for, and "
                     f"{human.count(figures['behind'])} that were due were not sent at the end.")
    if figures["busiest_process"] >= _BUSY:
        notes.append("A process of the load was busy all the time: more --producers, --consumers or --processes, or "
                     "another host, may give more.")
    return ["", *notes] if notes else []

"""The rows of the table: what each puts on a broker, and the figures that it measures."""
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from closed import WARM_UP, ClosedLoop
from link import CLOCK, Load, RequestRefused
from load import Figures, measure, measure_backlog, topic_names
from transaction_loop import TOGETHER, TransactionLoop
from usage import memory_bytes, thread_seconds

BATCH = {"batch": 100, "window": 5000, "lead": 1_000_000}
TOPICS, TOPICS_PERMITS, TOPICS_RATE = 500, 1000, 10_000
MANY_TOPICS, MANY_SUBSCRIPTIONS, MANY_PERMITS = 10_000, 5, 100
PACED_RATE, SLOW_RATE = 2000, 200
KEYS = 1000
CROWD_TOPICS = 100
FAN_OUT = 10
CLOSED_BURST_S = 0.01       # what a burst of the closed loops takes, about
TRANSACTIONS_ROUND_S = 0.04     # likewise, and a round of transactions with its warm-up
# The same in all brokers and rounds: a name decides whether a transaction's coordinator is also the topic's owner.
TRANSACTIONS_TOPIC = ("persistent://public/default/bench-transactions",)
# seconds of rest before memory is read; long against the times after which brokers drop cached entries
SETTLE_S = 5.0
REFUSED = "refused"

Cells = dict[str, float | str]  # figure -> value


@dataclass(frozen=True, slots=True)
class Broker:
    name: str
    host: str
    port: int
    pid: int | None = None
    tls_port: int = 0           # with the file of the authority that its certificate is checked by
    trusted: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    seconds: float
    warmup_s: float
    backlog: int
    soak: int


def _load(broker: Broker, *, topics: int = 1, **changes: object) -> Load:
    return Load(broker.host, broker.port, topic_names(topics), **changes)


def _run(broker: Broker, settings: Settings, **changes: object) -> Figures:
    return measure(_load(broker, **changes), pid=broker.pid, warmup_s=settings.warmup_s, seconds=settings.seconds)


def _throughput(figures: Figures, *, published: bool = False) -> Cells:
    rate = figures.published_rate if published else figures.arrived_rate
    return {"messages/s": rate, "broker CPU us/message": figures.cpu_us, "own CPU us/message": figures.own_cpu_us}


def idle(broker: Broker, settings: Settings) -> Cells:
    return {"PSS MiB": memory_bytes(broker.pid, "pss") / 2**20 if broker.pid else math.nan}


def publish(broker: Broker, settings: Settings) -> Cells:
    return _throughput(_run(broker, settings, consumers=0), published=True)


def e2e(broker: Broker, settings: Settings, **changes: object) -> Cells:
    return _throughput(_run(broker, settings, **changes))


def backlog(broker: Broker, settings: Settings) -> Cells:
    """Measure reading a backlog; the warm-up reads one too, a tenth as long."""
    measure_backlog(_load(broker), settings.backlog // 10, pid=None)
    return {"messages/s": measure_backlog(_load(broker), settings.backlog, pid=broker.pid).arrived_rate}


def topics(broker: Broker, settings: Settings) -> Cells:
    cells = _throughput(_run(broker, settings, topics=TOPICS, permits=TOPICS_PERMITS))
    paced = _run(broker, settings, topics=TOPICS, permits=TOPICS_PERMITS, rate=TOPICS_RATE)
    return cells | {f"at {TOPICS_RATE}/s: {figure}": value for figure, value in _at_a_rate(paced).items()}


def many_topics(broker: Broker, settings: Settings) -> Cells:
    """Measure a little on each of very many topics; a message is delivered to all subscriptions of its topic."""
    figures = _run(broker, settings, topics=MANY_TOPICS, permits=MANY_PERMITS, rate=TOPICS_RATE,
                   consumers=MANY_SUBSCRIPTIONS, subscriptions=MANY_SUBSCRIPTIONS, lead=0)
    cells = _at_a_rate(figures) | {"broker CPU us/message": figures.cpu_us * MANY_SUBSCRIPTIONS}
    if broker.pid:
        cells["PSS KiB/topic"] = memory_bytes(broker.pid, "pss") / MANY_TOPICS / 2**10
    return cells


def paced(broker: Broker, settings: Settings, *, rate: float) -> Cells:
    return _at_a_rate(_run(broker, settings, rate=rate))


def _at_a_rate(figures: Figures) -> Cells:
    cells: Cells = {f"publish p{part:g} ms": _percentile(figures.publish_ms, part) for part in (50, 99, 99.9)}
    if len(figures.arrival_ms):
        cells["arrival p50 ms"] = _percentile(figures.arrival_ms, 50)
    return cells | {"broker CPU us/message": figures.cpu_us}


def closed(broker: Broker, settings: Settings, *, messages: int, topics: int) -> Cells:
    """Measure bursts of so many messages, each awaited whole."""
    if broker.pid is None:
        return {"broker CPU us/message": math.nan}
    loop = ClosedLoop(_load(broker, topics=topics), messages)
    loop.run(WARM_UP)
    bursts = max(1, round(settings.seconds / CLOSED_BURST_S))
    before = thread_seconds(broker.pid)
    loop.run(bursts)
    used = thread_seconds(broker.pid) - before
    loop.close()
    return {"broker CPU us/message": used / (bursts * messages) * 1e6}


def transactions(broker: Broker, settings: Settings, *, consumes: bool) -> Cells:
    """Measure transactions of a message each that is published, and of another one that is acknowledged."""
    loop = TransactionLoop(replace(_load(broker), topics=TRANSACTIONS_TOPIC), consumes=consumes)
    rounds = max(1, round(settings.seconds / TRANSACTIONS_ROUND_S))
    loop.feed(2 * rounds)
    loop.run(rounds)
    before, began = thread_seconds(broker.pid) if broker.pid else math.nan, CLOCK()
    loop.run(rounds)
    took, used = CLOCK() - began, thread_seconds(broker.pid) - before if broker.pid else math.nan
    loop.close()
    count = rounds * TOGETHER
    return {"transactions/s": count / took, "broker CPU us/transaction": used / count * 1e6}


def crowd(broker: Broker, settings: Settings, *, connections: int, rate: float) -> Cells:
    """Measure very many connections that publish a little each."""
    return _at_a_rate(_run(broker, settings, topics=CROWD_TOPICS, crowd=connections, rate=rate, consumers=0))


def fan_out(broker: Broker, settings: Settings) -> Cells:
    """Measure ten subscriptions of one topic beside one, in deliveries."""
    one = e2e(broker, settings)
    ten = e2e(broker, settings, consumers=FAN_OUT, subscriptions=FAN_OUT)
    return {"deliveries/s": ten["messages/s"], "broker CPU us/delivery": ten["broker CPU us/message"],
            "deliveries/s to those of one": ten["messages/s"] / one["messages/s"]}


def tls(broker: Broker, settings: Settings) -> Cells:
    """Measure messages of 1 KiB, without TLS and with it."""
    plain = e2e(broker, settings, size_bytes=1024)
    secured = e2e(replace(broker, port=broker.tls_port), settings, size_bytes=1024, trusted=broker.trusted)
    ratios = {f"{figure} to that without": secured[figure] / plain[figure] for figure in plain}
    return {"messages/s": secured["messages/s"], "broker CPU us/message": secured["broker CPU us/message"]} | ratios


def soak(broker: Broker, settings: Settings) -> Cells:
    """Measure private memory after a warm-up and after the messages, both at rest."""
    if not broker.pid:
        return {"private memory growth MiB": math.nan}
    _run(broker, replace(settings, seconds=1.0))
    time.sleep(SETTLE_S)
    before = memory_bytes(broker.pid, "uss")
    arrived_rate = measure(_load(broker, limit=settings.soak), pid=broker.pid, warmup_s=1.0, seconds=0).arrived_rate
    time.sleep(SETTLE_S)
    after = memory_bytes(broker.pid, "uss")
    return {"private memory growth MiB": (after - before) / 2**20, "private memory MiB": after / 2**20,
            "messages/s": arrived_rate}


def shared(broker: Broker, settings: Settings, *, kind: str) -> Cells:
    cells: Cells = {}
    exclusive = _run(broker, settings, keys=KEYS).arrived_rate
    for consumers in (1, 4, 32):
        label = f"{consumers} consumer{'s' if consumers > 1 else ''}: "
        try:
            figures = _run(broker, settings, kind=kind, keys=KEYS, consumers=consumers)
            some = _throughput(figures) | {"rate to that of Exclusive": figures.arrived_rate / exclusive,
                                           "least share of a consumer": figures.least_share}
        except RequestRefused as error:
            say(f"{broker.name} refused: {error}")
            some = dict.fromkeys(("messages/s", "broker CPU us/message"), REFUSED)
        cells |= {label + figure: value for figure, value in some.items()}
    return cells


def _percentile(times_ms: np.ndarray, part: float) -> float:
    return float(np.percentile(times_ms, part)) if len(times_ms) else math.nan


# Memory at rest is measured first, as it is that of a broker nobody has used yet.
ROWS: dict[str, tuple[str, Callable[[Broker, Settings], Cells]]] = {
    "idle": ("idle memory", idle),
    "publish": ("publish, one connection", publish),
    "e2e": ("publish and consume", e2e),
    "batch": ("publish and consume, 100 to a batch", partial(e2e, **BATCH)),
    "backlog": ("read a backlog", backlog),
    "topics": (f"publish and consume, {TOPICS} topics", topics),
    "paced": (f"one topic at {PACED_RATE}/s", partial(paced, rate=PACED_RATE)),
    "slow": (f"one topic at {SLOW_RATE}/s", partial(paced, rate=SLOW_RATE)),
    "closed": ("bursts of 1, one topic", partial(closed, messages=1, topics=1)),
    "closed_10": ("bursts of 10, one topic", partial(closed, messages=10, topics=1)),
    "closed_topics": (f"bursts of 50, {TOPICS} topics", partial(closed, messages=50, topics=TOPICS)),
    "transactions": ("transactions of 1 message", partial(transactions, consumes=False)),
    "transactions_consume": ("1 consumed, 1 published", partial(transactions, consumes=True)),
    "steady": (f"one topic at {TOPICS_RATE}/s", partial(paced, rate=TOPICS_RATE)),
    "soak": ("memory after many messages", soak),
    "shared": ("shared subscription", partial(shared, kind="shared")),
    "key_shared": ("key_shared subscription", partial(shared, kind="key_shared")),
    "fan_out": (f"{FAN_OUT} subscriptions of one topic", fan_out),
    "crowd": ("1,000 connections, 20/s each", partial(crowd, connections=1_000, rate=20)),
    "large_crowd": ("10,000 connections, 2/s each", partial(crowd, connections=10_000, rate=2)),
    "many_topics": (f"{MANY_TOPICS:,} topics with {MANY_SUBSCRIPTIONS} subscriptions at {TOPICS_RATE:,}/s",
                    many_topics),
    "tls": ("1 KiB by TLS", tls),
}
ONLY_WHEN_ASKED = ("closed", "closed_10", "closed_topics", "transactions", "transactions_consume", "soak", "steady",
                   "shared", "key_shared", "fan_out", "crowd", "large_crowd", "many_topics", "tls")


def say(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)

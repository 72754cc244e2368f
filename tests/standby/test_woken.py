"""A broker that hung while its standby was promoted: woken, it answers nobody."""
import signal
import threading
from contextlib import suppress

import psutil
import pulsar
import pytest

from ..harness import HANG_SECONDS, eventually, request, unique_topic
from .test_promotion import publish, read

pytestmark = pytest.mark.slow


def processes(broker):
    return [psutil.Process(broker.pid), *psutil.Process(broker.pid).children(recursive=True)]


def send(signal_number, some):
    """Send a signal to all that still live: a feed whose standby is gone ends by itself."""
    for process in some:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal_number)


def hang(some):
    send(signal.SIGSTOP, some)


def wake(some):
    send(signal.SIGCONT, some)


def test_a_broker_that_is_woken_behind_a_promotion_answers_nobody_and_is_superseded(run):
    """Clients have written to it, and asked it, while it hung."""
    broker = run("first")
    standby = run("second", broker.service_url)
    topic, receipts, ready = unique_topic(), [], []
    sent = publish(broker.service_url, topic, [b"1", b"2"])
    standby.wait_complete()
    client = pulsar.Client(broker.service_url)
    producer = client.create_producer(topic, send_timeout_millis=0, batching_enabled=False)
    hung = processes(broker)
    hang(hung)
    for number in range(50):
        producer.send_async(b"%d" % number, lambda result, _: receipts.append(result))

    def ask():
        with suppress(OSError):
            ready.append(request("GET", f"{broker.http_url}/ready")[0])

    asking = threading.Thread(target=ask)
    asking.start()
    promoted = standby.promote()
    assert promoted.returncode == 0 and '"stopped": false' in promoted.stdout, promoted.stderr
    wake(hung)
    assert broker.ended() == 2
    asking.join(HANG_SECONDS)
    client.close()
    assert pulsar.Result.Ok not in receipts and 200 not in ready
    assert [message for message, _ in read(standby.service_url, topic, 2)] == sent
    assert publish(standby.service_url, topic, [b"more"])


def test_a_broker_that_its_standby_could_not_reach_is_superseded_when_it_can_ask(run):
    """Only the processes that hear of a promotion hang, until the supervisor replaces them."""
    broker = run("first")
    standby = run("second", broker.service_url)
    standby.wait_complete()
    admin = broker.child("admin")
    hung = [process for process in processes(broker)
            if process.pid == admin or "standby.feed" in " ".join(process.cmdline())]
    hang(hung)
    assert standby.promote().returncode == 0
    assert broker.ended() == 2
    wake(hung)      # the feed, which ends with its broker


def test_a_broker_that_hung_serves_on_while_its_standby_follows_or_is_gone(run):
    broker = run("first")
    standby = run("second", broker.service_url)
    topic = unique_topic()
    standby.wait_complete()
    for is_there in (True, False):
        if not is_there:
            standby.kill_all()
        client = pulsar.Client(broker.service_url)
        producer = client.create_producer(topic)
        hung = processes(broker)
        hang(hung)
        if is_there:
            eventually(lambda: not standby.state()["connected"])
        else:
            began = threading.Event()
            began.wait(9)      # longer than any lease
        wake(hung)
        assert producer.send(b"after")
        client.close()
    assert "does not tell whether it was promoted" in broker.log()

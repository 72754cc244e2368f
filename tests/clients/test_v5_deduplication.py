"""Deduplication of the client of Pulsar 5 over splits and merges: of ids that programs set, and that it counts."""
import pytest

from ..harness import HANG_SECONDS, eventually, request
from .java import JavaTools, fetch_v5_jars
from .test_v5_scalable import OWN_OPTIONS, post, url_of

pytestmark = [pytest.mark.slow, pytest.mark.java]


@pytest.fixture
def broker(start_broker):
    """A broker that looks for duplicates in the namespace public/default."""
    started = start_broker(*OWN_OPTIONS)
    url = f"{started.http_url}/admin/v2/namespaces/public/default/deduplication"
    assert request("POST", url, b"true")[0] == 204
    return started


@pytest.fixture
def java(broker, tmp_path):
    return JavaTools(fetch_v5_jars(), tmp_path, broker.service_url, broker.http_url)


@pytest.fixture
def folder(tmp_path):
    """A folder for classes and logs of programs."""
    made = tmp_path / "classes"
    made.mkdir()
    return made


@pytest.mark.parametrize("kills", [False, True])
def test_messages_that_are_sent_again_after_splits_and_merges_are_stored_once(broker, java, folder, kills):
    """The producer's name has one sequence over all segments, also behind kills of the whole broker and of owners."""
    topic = "topic://public/default/resent"
    with java.running(folder, "Resending", topic) as process:
        assert process.stdout.readline() == "published 19\n"
        for number, path in enumerate(("split/0", "split/1", "merge/4/2", "rebucket/3?bucketCount=2")):
            eventually(lambda path=path: post(f"{url_of(broker, topic)}/{path}") == 204)
            if kills and number % 2:
                broker.kill("owner", number // 2)
            elif kills:
                broker.kill_supervisor()
                broker.start()
        process.stdin.write("\n")
        assert process.stdout.readline() == f"{list(range(40))}\n"
        assert process.wait(HANG_SECONDS) == 0


def test_a_program_that_is_killed_and_started_again_behind_a_split_sends_again_in_vain(broker, java, folder):
    topic = "topic://public/default/restarted"
    with java.running(folder, "Resending", topic) as process:
        assert process.stdout.readline() == "published 19\n"
        assert post(f"{url_of(broker, topic)}/split/0") == 204
        process.kill()
        process.wait()
    with java.running(folder, "Resending", topic, "again") as process:
        assert process.stdout.readline() == f"{list(range(40))}\n"


@pytest.mark.parametrize("kills", [False, True])
def test_messages_that_the_client_counts_anew_behind_splits_and_merges_are_stored(broker, java, folder, kills):
    """With `initialSequenceId` it does so on each segment; what a kill finds stored on a child holds behind it.

    A kill between the change and the first message on a child makes no difference.
    """
    topic = "topic://public/default/counted"
    with java.running(folder, "Counting", topic, "0") as process:
        assert process.stdout.readline() == "published\n"
        for number, path in enumerate(("split/0", "split/1", "merge/4/2", "rebucket/3?bucketCount=2")):
            eventually(lambda path=path: post(f"{url_of(broker, topic)}/{path}") == 204)
            if kills and number % 2:
                broker.kill("owner", number // 2)
            elif kills:
                broker.kill_supervisor()
                broker.start()
            process.stdin.write("\n")
            assert process.stdout.readline() == "published\n"
        broker.kill_supervisor()
        broker.start()
        process.stdin.write("\n")
        assert process.stdout.readline() == "published\n"
        process.stdin.close()
        assert process.stdout.readline() == f"{list(range(60))}\n"
        assert process.wait(HANG_SECONDS) == 0


def test_a_process_that_begins_in_the_middle_behind_a_split_loses_nothing(broker, java, folder):
    """It goes on from a place of its application that is before the last message of the former process."""
    topic = "topic://public/default/begun-again"
    with java.running(folder, "Counting", topic, "0") as process:
        assert process.stdout.readline() == "published\n"
        assert post(f"{url_of(broker, topic)}/split/0") == 204
        process.stdin.close()
        assert process.stdout.readline() == f"{list(range(10))}\n"
    with java.running(folder, "Counting", topic, "5") as process:
        assert process.stdout.readline() == "published\n"
        process.stdin.close()
        got = process.stdout.readline()
    assert got in [f"{list(range(first, 15))}\n" for first in range(5, 11)]

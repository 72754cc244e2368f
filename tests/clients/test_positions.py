"""Where consumers and readers of the Java client begin: it asks in ways that other clients do not."""
from pathlib import Path

import pytest

from ..harness import unique_topic
from .java import JavaTools, fetch_jars

pytestmark = pytest.mark.java

PROGRAM = Path(__file__).parent / "java_sources" / "Positions.java"
ALL = [str(number) for number in range(10)]


@pytest.fixture
def given(broker, tmp_path):
    """The messages that each consumer and reader of one run of the Java program received."""
    java = JavaTools(fetch_jars(), tmp_path, broker.service_url, broker.http_url)
    return lambda what: [line.split() for line in java.program(PROGRAM, unique_topic(), what).split("\n")[:-1]]


def test_what_lies_before_the_message_of_a_batch_that_was_sought_does_not_come_again(given):
    """After a seek into a batch (F201), the messages before the target come neither to this consumer nor to the next
    one.
    """
    assert given("seek") == [ALL[5:], []]


def test_readers_with_ranges_of_hashes_share_keys_out(given):
    """Readers with hash ranges (F078) each get the keys of their range, and together they get every key once."""
    lower, upper = given("ranges")
    assert sorted(lower + upper) == ALL and lower and upper


def test_a_reader_goes_back_in_time(given):
    """startMessageFromRollbackDuration (F078) takes precedence over the message id in the same request."""
    assert given("rollback") == [ALL, []]

"""Names and patterns of topics, as commands take them, to the topics that exist.  No topic is created."""
import re
from collections.abc import Callable
from fnmatch import fnmatchcase

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.runtime.similar_names import question_of_topic
from geminga.workers.pulsar_client.client import BrokerConnection
from geminga.workers.pulsar_client.connection import ClientError

_REGEX_SIGNS = (".*", ".+", "\\", "(", "|", "^", "$", "{")     # of regular expressions; else * is a shell's
_PATTERN_SIGNS = re.compile(r"[*?\[(|\\^$+{]")
_MEMORY_MAX = 8 << 20           # bytes of a compiled pattern with its cache


class NoTopic(ClientError):
    """An error: no topic has this name, or matches this pattern.  The text has the nearest name."""


def is_pattern(text: str) -> bool:
    """Whether a text chooses topics by a pattern of their names, and is not a name itself."""
    return _PATTERN_SIGNS.search(text.rpartition("/")[2]) is not None


async def partitions(connection: BrokerConnection, name: names.TopicName) -> int:
    """Return the number of a topic's partitions, 0 if it is not partitioned.  Raises NoTopic, ClientError."""
    count = await connection.partitions(str(name))
    if count is None:
        raise NoTopic(f"there is no topic {name}{await question(connection, name)}")
    return count


async def existing(connection: BrokerConnection, text: str) -> list[str]:
    """Return the names of a topic, its partitions or segments, or all topics of a pattern, in order.

    Raises NoTopic, ClientError, Refusal.
    """
    name = names.parse(text)
    if name.is_scalable:
        return await segments(connection, name)
    count = await connection.partitions(str(name))
    if count is not None:
        return [str(name.partition_name(number)) for number in range(count)] if count else [str(name)]
    if is_pattern(text):
        if chosen := await matching(connection, text):
            return chosen
        raise NoTopic(f"no topic of {name.namespace} matches {text}")
    raise NoTopic(f"there is no topic {name}{await question(connection, name)}")


async def segments(connection: BrokerConnection, name: names.TopicName) -> list[str]:
    """Return the names of a scalable topic's segments, in order.  Raises NoTopic, ClientError."""
    try:
        segments = await connection.segments(str(name), may_create=False)
    except ClientError as error:
        if error.code != api.TopicNotFound:
            raise
        raise NoTopic(f"there is no topic {name}") from None
    return [one.legacy_topic_name or str(name.segment_name(one.segment_id, one.hash_start, one.hash_end))
            for one in segments]


async def matching(connection: BrokerConnection, text: str) -> list[str]:
    """Return the persistent topics whose names match a pattern; partitions for partitioned ones.

    The pattern is a regular expression as in Pulsar if it has .* or another of its signs, else one of a shell.  It
    counts for the name behind the namespace.  Raises ClientError, Refusal.
    """
    name = names.parse(text)
    matches = _test(name.local_name)
    topics = {topic: names.without_partition(topic.rpartition("/")[2])
              for topic in await connection.topics(name.namespace) if not names.is_system(topic)}
    return sorted((topic for topic, local in topics.items() if matches(local)), key=_in_order)


def _test(pattern: str) -> Callable[[str], object]:
    """Return the function that tells whether a name matches a pattern.  Raises ClientError."""
    if not any(sign in pattern for sign in _REGEX_SIGNS):
        return lambda local: fnmatchcase(local, pattern)
    import re2  # its patterns take time in proportion to the names
    options = re2.Options()
    options.log_errors, options.max_mem = False, _MEMORY_MAX
    try:
        matches: Callable[[str], object] = re2.compile(pattern, options).fullmatch
    except re2.error as error:
        why = error.args[0].decode(errors="replace") if error.args else "RE2 refuses it"
        raise ClientError(f"{pattern} is not a pattern of topics: {why}") from None
    return matches


def _in_order(topic: str) -> tuple[str, int]:
    return names.without_partition(topic), names.parse(topic).partition


async def question(connection: BrokerConnection, name: names.TopicName, *, is_slip: bool = False) -> str:
    """Return a question for the topic whose name is most like this one, such as ".  Did you mean ...?"; "" without one.

    is_slip: only a name that a slip of the fingers would change to this one.  Raises ClientError if the connection
    ended.
    """
    try:
        topics = await connection.topics(name.namespace) if name.is_persistent else []
    except ClientError as error:
        if error.code is None:
            raise
        return ""      # no such namespace, or no right to list it
    asked = question_of_topic(str(name), {names.without_partition(topic.rpartition("/")[2]) for topic in topics
                                          if not names.is_system(topic)}, is_slip=is_slip)
    return f".{asked}" if asked else ""


async def nearest_to_new(connection: BrokerConnection, topic: names.TopicName) -> str | None:
    """Return a question for the topic's likest neighbour if the topic does not exist, else "" or None."""
    if topic.is_scalable or not topic.is_persistent or await connection.partitions(str(topic)) is not None:
        return None
    return await question(connection, topic, is_slip=True)

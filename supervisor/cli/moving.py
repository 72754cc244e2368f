"""`geminga import` and `geminga export`: copies of topics from and to another running Pulsar.

The client and numpy are imported when a command runs, because help, manual page and completion do not need them.
"""
import asyncio
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.supervisor.pulsar_client import credentials, reasons
from geminga.supervisor.pulsar_client.rest import NOT_REACHABLE, REFUSED, WRONG_USAGE, Broker, Refused, topic_path

if TYPE_CHECKING:
    from geminga.supervisor.tasks import moving

_TOLD_S = 2          # time between two lines of progress
_EPILOG = ("The command can be repeated, also after an interruption: messages that are there are not copied again.  "
           "Exit status: 0 all is copied; 1 not all, with a line for each topic; 2 wrong usage; 3 not reachable.")
_subscriptions = click.option("--subscription", "-s", "subscriptions", multiple=True, metavar="NAME",
                              help="create it on the target, before the first message; may be repeated")


def _of_side(variable: Any, side: str) -> str | None:
    """Return the environment variable of an option for the other cluster, such as GEMINGA_FROM_AUTH_PLUGIN."""
    return str(variable).replace("GEMINGA_", f"GEMINGA_{side.upper()}_") if variable else None


def _other_side(side: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the options for the other cluster's address and credentials.

    side: "from" or "to".
    """
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        function = click.option(f"--{side}", "url_there", required=True, metavar="URL",
                                help="address of the other cluster: pulsar://HOST:PORT")(function)
        for option in credentials.parameters():
            names_there = [f"--{side}-{name.removeprefix('--')}" for name in option.opts if name.islower()]
            ours = f"--{names_there[0].removeprefix(f'--{side}-')}"
            add_option = click.option(
                *names_there, f"{option.name}_there", is_flag=option.is_flag, metavar=option.metavar,
                envvar=_of_side(option.envvar, side), help=f"as {ours}, for the other cluster")
            function = add_option(function)
        return function
    return add


_url = click.option("--url", default="pulsar://127.0.0.1:6650", show_default=True)


@click.command("import", epilog=_EPILOG)
@click.argument("topics", nargs=-1, required=True)
@_other_side("from")
@_url
@click.option("--admin-url", "--http-url", default="http://127.0.0.1:8080", show_default=True,
              help="to create partitioned topics at")
@_subscriptions
@credentials.options
def bring(topics: tuple[str, ...], url_there: str, url: str, admin_url: str, subscriptions: tuple[str, ...],
          **who: Any) -> int:
    """Copy the messages of topics from a running Pulsar to this broker.

    TOPICS are names of topics, or of namespaces for all their topics.
    """
    theirs, ours = _credentials(who)
    return _move(_cluster(url_there, theirs), _cluster(url, ours), topics, subscriptions,
                 lambda: Broker(admin_url, credentials=ours))


@click.command(epilog=_EPILOG)
@click.argument("topics", nargs=-1, required=True)
@_other_side("to")
@click.option("--to-admin-url", metavar="URL",
              help="http://HOST:PORT of the other cluster, to create partitioned topics at")
@_url
@_subscriptions
@credentials.options
def export(topics: tuple[str, ...], url_there: str, to_admin_url: str | None, url: str,
           subscriptions: tuple[str, ...], **who: Any) -> int:
    """Copy the messages of topics from this broker to a running Pulsar.

    TOPICS are names of topics, or of namespaces for all their topics.
    """
    theirs, ours = _credentials(who)

    def admin() -> Broker:
        if to_admin_url is None:
            raise click.UsageError("--to-admin-url is needed, to create partitioned topics there")
        return Broker(to_admin_url, credentials=theirs)

    return _move(_cluster(url, ours), _cluster(url_there, theirs), topics, subscriptions, admin)


def _credentials(who: dict[str, Any]) -> tuple[credentials.Credentials, credentials.Credentials]:
    """Return (credentials for the other cluster, credentials for this one) from the values of the options."""
    theirs = {name.removesuffix("_there"): value for name, value in who.items() if name.endswith("_there")}
    ours = {name: value for name, value in who.items() if not name.endswith("_there")}
    return credentials.of(**theirs), credentials.of(**ours)


def _cluster(url: str, given: credentials.Credentials) -> "moving.Cluster":
    from geminga.supervisor.tasks import moving
    scheme, _, rest = url.partition("://")
    if scheme not in ("pulsar", "pulsar+ssl") or not rest:
        raise click.UsageError(f"{url!r} is no address such as pulsar://127.0.0.1:6650")
    return moving.Cluster(url, given.method, given.data, given.context_for(url))


def _move(source: "moving.Cluster", target: "moving.Cluster", wanted: tuple[str, ...], subscriptions: tuple[str, ...],
          admin: Callable[[], Broker]) -> int:
    try:
        asked = [_parsed(text) for text in wanted]
    except Refusal as error:
        print(f"geminga: {error}", file=sys.stderr)
        return WRONG_USAGE
    return asyncio.run(_move_all(source, target, asked, subscriptions, admin))


def _parsed(text: str) -> names.TopicName | str:
    """Return a topic's name as TopicName, or a namespace's as str.  Raises Refusal."""
    if "://" not in text and text.count("/") == 1:
        return names.parse_namespace(text)
    topic = names.parse(text)
    if not topic.is_persistent:
        raise Refusal(api.InvalidTopicName, f"{text} is not persistent: it holds nothing")
    return topic


async def _move_all(source: "moving.Cluster", target: "moving.Cluster", asked: list[names.TopicName | str],
                    subscriptions: tuple[str, ...], admin: Callable[[], Broker]) -> int:
    """Copy topics one after the other, print a line for each partition, and return the exit status."""
    from geminga.supervisor.pulsar_client.client import ClientError
    from geminga.supervisor.tasks import moving
    failed = 0
    for cluster in (source, target):
        try:
            (await cluster.connect()).close()
        except OSError as error:
            print(f"geminga: {cluster.url}: {reasons.of(error, is_secure=cluster.tls is not None)}", file=sys.stderr)
            return NOT_REACHABLE
        except ClientError as error:
            print(f"geminga: {cluster.url}: {error}", file=sys.stderr)
            return REFUSED
    topics = []
    for one in asked:
        try:
            topics += await _topics_of(source, one) if isinstance(one, str) else [one]
        except (ClientError, OSError) as error:
            failed += 1
            print(f"geminga: {one}: {error}", file=sys.stderr)
    for topic in topics:
        try:
            for part in await _parts(source, target, topic, admin):
                began, progress = time.monotonic(), _Progress(str(part))
                copied = await moving.copy_topic(source, target, str(part), subscriptions, progress)
                print(f"{part}: {copied.messages} messages in {copied.entries} entries, {copied.bytes} bytes, "
                      f"copied in {time.monotonic() - began:.1f} s", flush=True)
        except (ClientError, Refused, OSError) as error:
            failed += 1
            print(f"geminga: {topic}: {error}", file=sys.stderr)
    return REFUSED if failed else 0


async def _topics_of(source: "moving.Cluster", namespace: str) -> list[names.TopicName]:
    """Return the namespace's topics except system topics; a partitioned topic counts as one."""
    from geminga.supervisor.pulsar_client.client import ClientError
    connection = await source.connect()
    try:
        all_topics = {names.parse(text).base for text in await connection.topics(namespace)}
    finally:
        connection.close()
    topics = sorted((topic for topic in all_topics if not topic.local_name.startswith("__")), key=str)
    if not topics:
        raise ClientError("there are no topics in it")
    return topics


async def _parts(source: "moving.Cluster", target: "moving.Cluster", topic: names.TopicName,
                 admin: Callable[[], Broker]) -> list[names.TopicName]:
    """Return the partitions of a topic, or the topic itself if it has none.

    Partitions that the target lacks are created there.
    """
    from geminga.supervisor.pulsar_client.client import ClientError
    count = await _partitions(source, topic)
    if count is None:
        raise ClientError("there is no such topic")
    if not count:
        return [topic]
    there = await _partitions(target, topic)
    if there != count:
        admin().ask("POST" if there else "PUT", f"/admin/v2/{topic_path(str(topic))}/partitions", body=count)
    return [topic.partition_name(number) for number in range(count)]


async def _partitions(cluster: "moving.Cluster", topic: names.TopicName) -> int | None:
    connection = await cluster.connect()
    try:
        return await connection.partitions(str(topic))
    finally:
        connection.close()


class _Progress:
    """Prints the progress of a copy every two seconds."""

    def __init__(self, topic: str) -> None:
        self._topic, self._next = topic, time.monotonic() + _TOLD_S

    def __repr__(self) -> str:
        return f"<_Progress {self._topic}>"

    def __call__(self, copied: "moving.Copied") -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _TOLD_S
            print(f"{self._topic}: {copied.messages} messages, {copied.bytes} bytes so far", file=sys.stderr,
                  flush=True)

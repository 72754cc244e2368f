"""`geminga import` and `geminga export`: copies of topics from and to another running Pulsar, and rows of tables.

The client and numpy are imported when a command runs, because help, manual page and completion do not need them.
"""
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from geminga.storage.runtime.unix_sockets import UNIX
from geminga.supervisor.cli import output, table_import
from geminga.supervisor.cli.completion import complete_topic
from geminga.supervisor.cli.progress import Progress, progress
from geminga.supervisor.pulsar_client import credentials, target
from geminga.supervisor.pulsar_client.rest import (
    NOT_REACHABLE,
    REFUSED,
    WRONG_USAGE,
    Broker,
    NotReachable,
    Refused,
    topic_path,
)
from geminga.supervisor.wording.human import count, size

if TYPE_CHECKING:
    import asyncio

    from geminga.proto import names
    from geminga.supervisor.tasks import moving

_EPILOG = ("The command can be repeated, also after an interruption: messages that are there are not copied again.  "
           "Exit status: 0 all is copied; 1 not all, with a line for each topic; 2 wrong usage; 3 not reachable.")
_subscriptions = click.option("--subscription", "-s", "subscriptions", multiple=True, metavar="NAME",
                              help="Create it on the target, before the first message; repeatable.")


def _of_side(variable: Any, side: str) -> str | None:
    """Return the environment variable of an option for the other cluster, such as GEMINGA_FROM_AUTH_PLUGIN."""
    return str(variable).replace("GEMINGA_", f"GEMINGA_{side.upper()}_") if variable else None


def _other_side(side: str, *, is_required: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the options for the other cluster's address and credentials.

    side: "from" or "to".
    """
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        function = click.option(f"--{side}", "url_there", required=is_required, metavar="URL",
                                help="Address of the other cluster: pulsar://HOST:PORT.")(function)
        for option in target.credentials_options():
            names_there = [f"--{side}-{name.removeprefix('--')}" for name in option.opts if name.islower()]
            ours = f"--{names_there[0].removeprefix(f'--{side}-')}"
            add_option = click.option(
                *names_there, f"{option.name}_there", is_flag=option.is_flag, metavar=option.metavar,
                envvar=_of_side(option.envvar, side), help=f"As {ours}, for the other cluster.")
            function = add_option(function)
        return function
    return add


@click.command("import", epilog="\b\nExamples:\n"
                                "  geminga import --from pulsar://HOST:PORT public/default\n"
                                "  geminga import --from-table orders.parquet --key-column id orders\n\n" + _EPILOG)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC|NAMESPACE...")
@_other_side("from", is_required=False)
@table_import.options
@_subscriptions
@output.FORM
@target.options
@click.pass_context
def bring(context: click.Context, topics: tuple[str, ...], url_there: str, subscriptions: tuple[str, ...], form: str,
          **who: Any) -> int:
    """Copy topics of a Pulsar, or a table, to a broker.

    A namespace means all its topics.  A table is a Parquet file or a folder of such files, and each row becomes a
    message of one topic.
    """
    values = {name: who.pop(name) for name in table_import.NAMES}
    table_import.check(context, values)
    theirs, ours = _sides(who)
    if values["table"] is not None:
        return table_import.run(ours, topics[0], subscriptions, values, output.Output(form))
    sides = _Sides(_cluster(url_there, theirs), _cluster(ours.url, ours.credentials), ours.broker)
    return _move(sides, topics, subscriptions, output.Output(form))


@click.command(epilog=_EPILOG)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC|NAMESPACE...", shell_complete=complete_topic)
@_other_side("to")
@click.option("--to-admin-url", metavar="URL",
              help="HTTP address of the other cluster, http://HOST:PORT, to create partitioned topics at.")
@_subscriptions
@output.FORM
@target.options
def export(topics: tuple[str, ...], url_there: str, to_admin_url: str | None, subscriptions: tuple[str, ...],
           form: str, **who: Any) -> int:
    """Copy topics from this broker to a running Pulsar.

    A namespace means all its topics.
    """
    theirs, ours = _sides(who)

    def admin() -> Broker:
        if to_admin_url is None:
            raise click.UsageError("--to-admin-url is needed, to create partitioned topics there")
        return Broker(to_admin_url, credentials=theirs)

    sides = _Sides(_cluster(ours.url, ours.credentials), _cluster(url_there, theirs), admin, _counting(ours.broker()))
    return _move(sides, topics, subscriptions, output.Output(form))


class _Sides(NamedTuple):
    """The two clusters of a copy."""

    source: "moving.Cluster"
    target: "moving.Cluster"
    admin: Callable[[], Broker]      # the target's HTTP address, to create partitioned topics at
    entries_of: Callable[[str], int | None] = lambda topic: None      # of a topic at the source, if it can be asked


def _counting(broker: Broker) -> Callable[[str], int | None]:
    """Return a function that asks this broker how many entries a topic has, so that a copy can tell how far it is."""
    def entries(topic: str) -> int | None:
        try:
            return int(broker.ask("GET", f"/admin/v2/{topic_path(topic)}/internalStats").value()["numberOfEntries"])
        except (NotReachable, Refused):
            return None
    return entries


def _sides(who: dict[str, Any]) -> tuple[credentials.Credentials, target.Target]:
    """Return (credentials for the other cluster, this broker) from the values of the options."""
    theirs = {name.removesuffix("_there"): value for name, value in who.items() if name.endswith("_there")}
    ours = {name: value for name, value in who.items() if not name.endswith("_there")}
    return credentials.of(**theirs), target.of(ours)


def _cluster(url: str, given: credentials.Credentials) -> "moving.Cluster":
    from geminga.supervisor.tasks import moving
    scheme, _, rest = url.partition("://")
    if not url.startswith(UNIX) and (scheme not in ("pulsar", "pulsar+ssl") or not rest):
        raise click.UsageError(f"{url!r} is no address such as pulsar://127.0.0.1:6650")
    return moving.Cluster(url, given.method, given.data, given.context_for(url))


def _move(sides: _Sides, wanted: tuple[str, ...], subscriptions: tuple[str, ...], shown: output.Output) -> int:
    """Copy topics and namespaces, print a row for each partition, and return the exit status."""
    import asyncio

    from geminga.proto.errors import Refusal
    try:
        asked = [_parsed(text) for text in wanted]
    except Refusal as error:
        print(f"geminga: {error.message}", file=sys.stderr)
        return WRONG_USAGE
    with asyncio.Runner() as runner:
        if status := runner.run(_unreachable(sides)):
            return status
        copies = _Copies(runner, sides, subscriptions)
        shown.stream(copies.made(asked), lambda row: row, _line)
        return REFUSED if copies.failed else 0


def _line(row: dict[str, Any]) -> str:
    return f"{row['topic']}: {count(row['messages'])} messages in {count(row['entries'])} entries, " \
           f"{size(row['bytes'])}, copied in {row['seconds']:.1f} s"


def _parsed(text: str) -> "names.TopicName | str":
    """Return a topic's name as TopicName, or a namespace's as str.  Raises Refusal."""
    from geminga.proto import names
    from geminga.proto import pulsar_api_pb2 as api
    from geminga.proto.errors import Refusal
    if "://" not in text and text.count("/") == 1:
        return names.parse_namespace(text)
    topic = names.parse(text)
    if not topic.is_persistent:
        raise Refusal(api.InvalidTopicName, f"{text} is not persistent: it holds nothing")
    return topic


async def _unreachable(sides: _Sides) -> int:
    """Connect to both clusters once.  If one fails, print the reason and return the exit status, else return 0."""
    from geminga.supervisor.pulsar_client import reasons
    from geminga.supervisor.pulsar_client.client import ClientError, NoAddress, NoBroker
    for cluster in sides.source, sides.target:
        try:
            (await cluster.connect()).close()
        except NoAddress as error:
            print(f"geminga: {error}", file=sys.stderr)
            return WRONG_USAGE
        except (OSError, NoBroker) as error:
            print(f"geminga: {cluster.url}: {reasons.of(error, is_secure=cluster.tls is not None)}", file=sys.stderr)
            return NOT_REACHABLE
        except ClientError as error:
            print(f"geminga: {cluster.url}: {error}", file=sys.stderr)
            return REFUSED
    return 0


class _Copies:
    """Copies of topics, one after the other, and the number of topics and namespaces that could not be copied."""

    def __init__(self, runner: "asyncio.Runner", sides: _Sides, subscriptions: tuple[str, ...]) -> None:
        self._runner, self._sides, self._subscriptions = runner, sides, subscriptions
        self.failed = 0

    def __repr__(self) -> str:
        return f"<_Copies failed={self.failed}>"

    def made(self, asked: "list[names.TopicName | str]") -> Iterator[dict[str, Any]]:
        """Copy topics, and all topics of namespaces; yield the figures of each partition.  Reasons are printed."""
        from geminga.supervisor.pulsar_client.client import ClientError
        topics = []
        for one in asked:
            try:
                topics += self._runner.run(_topics_of(self._sides.source, one)) if isinstance(one, str) else [one]
            except (ClientError, OSError) as error:
                self._fail(one, error)
        for topic in topics:
            try:
                for part in self._runner.run(_parts(*self._sides[:2], topic, self._sides.admin)):
                    yield self._copy(str(part))
            except (ClientError, Refused, OSError) as error:
                self._fail(topic, error)

    def _copy(self, part: str) -> dict[str, Any]:
        from dataclasses import asdict

        from geminga.supervisor.tasks import moving
        began = time.monotonic()
        with progress(part, self._sides.entries_of(part)) as bar:
            copied = self._runner.run(
                moving.copy_topic(*self._sides[:2], part, self._subscriptions, _Entries(bar)))
        return {"topic": part, **asdict(copied), "seconds": round(time.monotonic() - began, 3)}

    def _fail(self, what: object, why: Exception) -> None:
        self.failed += 1
        print(f"geminga: {what}: {why}", file=sys.stderr)


async def _topics_of(source: "moving.Cluster", namespace: str) -> "list[names.TopicName]":
    """Return the namespace's topics except system topics; a partitioned topic counts as one."""
    from geminga.proto import names
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


async def _parts(source: "moving.Cluster", target: "moving.Cluster", topic: "names.TopicName",
                 admin: Callable[[], Broker]) -> "list[names.TopicName]":
    """Return the partitions of a topic, or the topic itself if it has none.

    Partitions that the target lacks are created there.
    """
    from geminga.supervisor.pulsar_client.client import ClientError
    count = await _partitions(source, topic)
    if count is None:
        raise ClientError(f"there is no such topic{await _question(source, topic)}")
    if not count:
        return [topic]
    there = await _partitions(target, topic)
    if there != count:
        admin().ask("POST" if there else "PUT", f"/admin/v2/{topic_path(str(topic))}/partitions", body=count)
    return [topic.partition_name(number) for number in range(count)]


async def _question(cluster: "moving.Cluster", topic: "names.TopicName") -> str:
    """Return a question for the topic most like one that does not exist, "" if there is none."""
    from geminga.supervisor.messages import topics
    connection = await cluster.connect()
    try:
        return await topics.question(connection, topic)
    finally:
        connection.close()


async def _partitions(cluster: "moving.Cluster", topic: "names.TopicName") -> int | None:
    connection = await cluster.connect()
    try:
        return await connection.partitions(str(topic))
    finally:
        connection.close()


class _Entries:
    """Shows copied entries as progress."""

    def __init__(self, bar: Progress) -> None:
        self._bar, self._shown = bar, 0

    def __repr__(self) -> str:
        return f"<_Entries {self._shown}>"

    def __call__(self, copied: "moving.Copied") -> None:
        self._bar.advance(copied.entries - self._shown)
        self._shown = copied.entries

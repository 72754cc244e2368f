"""`geminga import` and `geminga export`: copies of topics from and to another running Pulsar, and rows of tables.

The client and numpy are imported when a command runs, because help, manual page and completion do not need them.
"""
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import click

from geminga.storage.runtime.unix_sockets import UNIX
from geminga.supervisor.cli import output, running, table_import
from geminga.supervisor.cli.completion import complete_topic
from geminga.supervisor.cli.progress import Progress, progress
from geminga.supervisor.configuration import target
from geminga.supervisor.wording.human import count, size
from geminga.workers.pulsar_client import credentials
from geminga.workers.pulsar_client.rest import REFUSED, WRONG_USAGE, Broker, NotReachable, Refused, topic_path

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
def bring(context: click.Context, /, topics: tuple[str, ...], url_there: str, subscriptions: tuple[str, ...], form: str,
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
    sides = _Sides(_other(url_there, "", theirs), ours)
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
    sides = _Sides(ours, _other(url_there, to_admin_url or "", theirs), _counting(ours.broker()))
    return _move(sides, topics, subscriptions, output.Output(form))


class _Sides(NamedTuple):
    """The two clusters of a copy."""

    source: target.Target
    target: target.Target            # its HTTP address, to create partitioned topics at, may be ""
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


def _other(url: str, admin_url: str, given: credentials.Credentials) -> target.Target:
    scheme, _, rest = url.partition("://")
    if not url.startswith(UNIX) and (scheme not in ("pulsar", "pulsar+ssl") or not rest):
        raise click.UsageError(f"{url!r} is no address such as pulsar://127.0.0.1:6650")
    return target.Target(url, admin_url, given)


def _move(sides: _Sides, wanted: tuple[str, ...], subscriptions: tuple[str, ...], shown: output.Output) -> int:
    """Copy topics and namespaces, print a row for each partition, and return the exit status."""
    import asyncio

    from geminga.proto.errors import Refusal
    try:
        asked = [_parsed(text) for text in wanted]
    except Refusal as error:
        raise output.Failed(WRONG_USAGE, error.message) from None
    with asyncio.Runner() as runner:
        for cluster in sides.source, sides.target:
            with running.errors_of(cluster):
                runner.run(cluster.connect()).close()
        copies = _Copies(runner, sides, subscriptions)
        shown.stream(copies.made(asked), lambda row: row, _line)
        return REFUSED if copies.failed else 0


class CopiedPart(TypedDict):
    """A row about a topic or partition that was copied."""

    topic: str
    entries: int
    messages: int
    bytes: int
    seconds: float


def _line(row: CopiedPart) -> str:
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


class _Copies:
    """Copies of topics, one after the other, and the number of topics and namespaces that could not be copied."""

    def __init__(self, runner: "asyncio.Runner", sides: _Sides, subscriptions: tuple[str, ...]) -> None:
        self._runner, self._sides, self._subscriptions = runner, sides, subscriptions
        self.failed = 0

    def __repr__(self) -> str:
        return f"<_Copies failed={self.failed}>"

    def made(self, asked: "list[names.TopicName | str]") -> Iterator[CopiedPart]:
        """Copy topics, and all topics of namespaces; yield the figures of each partition.  Reasons are printed."""
        from geminga.workers.pulsar_client.connection import ClientError
        topics = []
        for name in asked:
            try:
                topics += self._runner.run(_topics_of(self._sides.source, name)) if isinstance(name, str) else [name]
            except (ClientError, OSError) as error:
                self._fail(name, error)
        for topic in topics:
            try:
                for part in self._runner.run(_parts(*self._sides[:2], topic)):
                    yield self._copy(str(part))
            except (ClientError, Refused, OSError) as error:
                self._fail(topic, error)

    def _copy(self, part: str) -> CopiedPart:
        from geminga.supervisor.tasks import moving
        began = time.monotonic()
        with progress(part, self._sides.entries_of(part)) as bar:
            copied = self._runner.run(
                moving.copy_topic(*self._sides[:2], part, self._subscriptions, _Entries(bar)))
        return {"topic": part, "entries": copied.entries, "messages": copied.messages, "bytes": copied.bytes,
                "seconds": round(time.monotonic() - began, 3)}

    def _fail(self, what: object, why: Exception) -> None:
        self.failed += 1
        output.remark(f"{what}: {why}")


async def _topics_of(source: target.Target, namespace: str) -> "list[names.TopicName]":
    """Return the namespace's topics except system topics; a partitioned topic counts as one."""
    from geminga.proto import names
    from geminga.workers.pulsar_client.connection import ClientError
    with contextlib.closing(await source.connect()) as connection:
        all_topics = {names.parse(text).base for text in await connection.topics(namespace)}
    topics = sorted((topic for topic in all_topics if not topic.local_name.startswith("__")), key=str)
    if not topics:
        raise ClientError("there are no topics in it")
    return topics


async def _parts(source: target.Target, sink: target.Target, topic: "names.TopicName") -> "list[names.TopicName]":
    """Return the partitions of a topic, or the topic itself if it has none.

    Partitions that the target lacks are created there.
    """
    from geminga.workers.pulsar_client.connection import ClientError
    count = await _partitions(source, topic)
    if count is None:
        raise ClientError(f"there is no such topic{await _question(source, topic)}")
    if not count:
        return [topic]
    there = await _partitions(sink, topic)
    if there != count:
        if not sink.admin_url:
            raise click.UsageError("--to-admin-url is needed, to create partitioned topics there")
        path = f"/admin/v2/{topic_path(str(topic))}/partitions"
        sink.broker().ask("POST" if there else "PUT", path, body=count)
    return [topic.partition_name(number) for number in range(count)]


async def _question(cluster: target.Target, topic: "names.TopicName") -> str:
    """Return a question for the topic most like one that does not exist, "" if there is none."""
    from geminga.workers.messages import topics
    with contextlib.closing(await cluster.connect()) as connection:
        return await topics.question(connection, topic)


async def _partitions(cluster: target.Target, topic: "names.TopicName") -> int | None:
    with contextlib.closing(await cluster.connect()) as connection:
        return await connection.partitions(str(topic))


class _Entries:
    """Shows copied entries as progress."""

    def __init__(self, bar: Progress) -> None:
        self._bar, self._shown = bar, 0

    def __repr__(self) -> str:
        return f"<_Entries {self._shown}>"

    def __call__(self, copied: "moving.Copied") -> None:
        self._bar.advance(copied.entries - self._shown)
        self._shown = copied.entries

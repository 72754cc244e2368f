"""`geminga produce`: publishes messages to a topic."""
import contextlib
import sys
import time
from typing import Any

import click

from geminga.storage.runtime import units
from geminga.supervisor.cli import options, output, running
from geminga.supervisor.cli.completion import complete_topic
from geminga.supervisor.configuration import target

_FILE = click.Path(exists=True, dir_okay=False, readable=True)
_FILE_OR_INPUT = click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True)
_LARGEST = 1 << 62
# Parameters that are the fields of producing.Wishes.
_WISHES = ("key", "properties", "event_time", "deliver_after", "deliver_at", "is_typed", "schema_file", "partition",
           "hashing", "compression", "batch", "rate", "count", "name", "sequence_id")


def _text(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    try:
        (text or "").encode()
    except UnicodeEncodeError:
        raise click.BadParameter(f"{text!r} is not UTF-8") from None
    return text


def _properties(_context: click.Context, _parameter: click.Parameter,
                pairs: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    for pair in pairs:
        _text(_context, _parameter, pair)
        if "=" not in pair:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE")
    return tuple({pair.partition("=")[0]: pair.partition("=")[2] for pair in pairs}.items())


def _moment(text: str) -> int:
    return units.moment(text, time.time_ns() // 1_000_000) if text else 0


def _delay(text: str) -> int:
    if not 0 <= (delay := units.millis(text) if text else 0) <= units.LAST_MS:
        raise ValueError(f"{text!r} is not a time to come")
    return delay


_MOMENT = output.Converted("time", _moment)


@click.command(epilog="\b\nExamples:\n"
                      "  geminga produce orders 'Hello'\n"
                      "  geminga produce orders -k customer-7 -p source=shop '{\"id\": 1}' --schema\n"
                      "  journalctl -f -o cat | geminga produce logs\n"
                      "  geminga consume orders -o jsonl | geminga produce copies --jsonl -\n\n"
                      "Exit status: 0 all messages are stored; 1 not all, with a line that says which; 2 wrong usage; "
                      "3 not reachable.")
@click.argument("topic", callback=_text, shell_complete=complete_topic)
@click.argument("messages", nargs=-1, metavar="[MESSAGE|-]...")
@click.option("--file", "files", type=_FILE, multiple=True, metavar="PATH",
              help="A whole file as one message; repeatable.")
@click.option("--lines", "line_files", type=_FILE_OR_INPUT, multiple=True, metavar="PATH",
              help="A message for each line of a file; - is standard input; repeatable.")
@click.option("--jsonl", "json_files", type=_FILE_OR_INPUT, multiple=True, metavar="PATH",
              help="A message for each line of a file, as JSON that `geminga consume -o jsonl` prints; - is standard "
                   "input; repeatable.")
@click.option("--key", "-k", callback=_text, metavar="TEXT", help="Key of the messages.")
@click.option("--property", "-p", "properties", multiple=True, callback=_properties, metavar="NAME=VALUE",
              help="Property of the messages; repeatable.")
@click.option("--event-time", type=_MOMENT, default=0, metavar="TIME",
              help="Event time of the messages: ms, ISO 8601, or from now, such as -2h.")
@click.option("--deliver-after", type=output.Converted("time", _delay), default=0, metavar="TIME",
              help="Deliver after so long, such as 10m.")
@click.option("--deliver-at", type=_MOMENT, default=0, metavar="TIME",
              help="Deliver at a moment: ms, ISO 8601, or from now.")
@click.option("--schema", "is_typed", is_flag=True,
              help="Encode messages by the topic's newest schema, from JSON or as plain text, and refuse other ones.")
@click.option("--schema-file", type=_FILE, metavar="FILE",
              help='Add a schema to the topic, and encode by it: {"type": ..., "schema": ..., "properties": {}}.')
@click.option("--partition", type=click.IntRange(min=0), metavar="N",
              help="Send all messages to this partition.  By default the key chooses, or partitions take turns.")
@click.option("--hash", "hashing", type=click.Choice(["murmur3", "java", "go", "boost"]), default="murmur3",
              show_default=True, help="How a key chooses its partition: as the clients of the topic do.")
@click.option("--compression", type=click.Choice(["none", "lz4", "zlib", "zstd", "snappy"]), default="none",
              show_default=True, help="Compression of payloads.")
@click.option("--batch", type=click.IntRange(1, 100_000), metavar="N",
              show_default="1000 for long input, else 1",
              help="At most so many messages in an entry.")
@click.option("--rate", callback=options.rate, metavar="N[/TIME]",
              help="At most so many messages a second, or in a time.")
@click.option("--count", "-n", type=click.IntRange(1, _LARGEST), default=1, metavar="N",
              help="Send everything N times.  Not for standard input.")
@click.option("--producer", "name", default="", callback=_text, metavar="NAME", show_default="the broker's choice",
              help="Name of the producer.")
@click.option("--sequence-id", type=click.IntRange(0, _LARGEST), metavar="N",
              show_default="behind the last one of the name",
              help="Sequence id of the first message.")
@click.option("--quiet", "-q", is_flag=True, help="Print one line for all messages, no ids.")
@output.FORM
@target.service_options
def produce(topic: str, messages: tuple[str, ...], files: tuple[str, ...], line_files: tuple[str, ...],
            json_files: tuple[str, ...], form: str, quiet: bool, **others: Any) -> int:
    """Publish messages to a topic.

    The messages come from arguments, from standard input (a line each; also as the argument -), and from files. Message
    ids are printed once the messages are on disk; for more than 20 messages, a line with their count and rate.
    """
    wishes = {name: others.pop(name) for name in _WISHES}
    if not (messages or files or line_files or json_files):
        if sys.stdin is None or sys.stdin.isatty():
            raise click.UsageError("There are no messages: give them as arguments, or - to type one on each line.")
        messages = ("-",)
    if [*messages, *line_files, *json_files].count("-") > 1:
        raise click.UsageError("Standard input can be read once.")
    if wishes["count"] > 1 and "-" in (*messages, *line_files, *json_files):
        raise click.UsageError("Standard input cannot be sent several times: --count needs arguments or files.")
    if wishes["deliver_after"] and wishes["deliver_at"]:
        raise click.UsageError("Give --deliver-after or --deliver-at.")
    if wishes["is_typed"] and wishes["schema_file"]:
        raise click.UsageError("Give --schema, or --schema-file for a new one.")
    return _run(target.of(others), topic, (messages, files, line_files, json_files), wishes,
                output.Output(form), is_quiet=quiet)


def _run(broker: target.Target, topic: str, where: tuple[tuple[str, ...], ...], options: dict[str, Any],
         shown: output.Output, *, is_quiet: bool) -> int:
    from geminga.proto import names
    from geminga.supervisor.cli.messages import producing
    from geminga.supervisor.cli.progress import progress
    try:
        schema = producing.of_schema_file(options["schema_file"]) if options["schema_file"] else None
    except (ValueError, OSError) as error:
        raise click.BadParameter(f"{options['schema_file']}: {error}", param_hint="--schema-file") from None
    source, wishes = producing.Source(*where), producing.Wishes(**options)
    is_short = not source.is_long and (len(source.texts) + len(source.files)) * wishes.count <= producing.SHOWN_MAX
    report = producing.Report(shown, is_quiet, prints_at_once=is_short or source.waits_for_person)
    production = producing.Production(source, wishes, report)

    async def published() -> int:
        name = names.parse(topic)
        connection = await broker.connect()
        try:
            with contextlib.closing(connection), progress("publishing", source.size(wishes.count), is_bytes=True,
                                                          is_shown=not report.prints_at_once) as bar:
                await production.run(connection, name, schema, bar)
        finally:
            status = report.end()
        return status

    try:
        return running.run(broker, published)
    except KeyboardInterrupt:
        raise output.Failed(1, f"interrupted: {report.unfinished(production.under_way)}") from None

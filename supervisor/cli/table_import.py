"""`geminga import --from-table`: options, and the run with its progress and summary."""
import time
from collections.abc import Callable
from typing import Any

import click

from geminga.supervisor.cli import output, running
from geminga.supervisor.cli.output import remark
from geminga.supervisor.cli.progress import progress
from geminga.supervisor.configuration.target import Target
from geminga.supervisor.wording.human import count, rate, size

_OPTIONS = (
    (("--from-table", "table"), {"metavar": "PATH", "type": click.Path(exists=True, readable=True), "help":
     "Publish the rows of a Parquet file, or of all Parquet files in a folder."}),
    (("--key-column",), {"metavar": "COLUMN", "show_default": "_key, if there is one",
     "help": "Column of the messages' keys."}),
    (("--event-time-column",), {"metavar": "COLUMN", "show_default": "_event_time, if there is one",
     "help": "Column of the messages' event times."}),
    (("--property-column", "property_columns"), {"metavar": "COLUMN", "multiple": True,
     "help": "Column that becomes a property of its name; repeatable."}),
    (("--payload-column",), {"metavar": "COLUMN",
     "help": "Column of bytes or text that is published as it is, without a schema."}),
    (("--columns",), {"metavar": "COLUMN,...", "show_default": "all others, but those that begin with _",
     "help": "Columns of the messages' values."}),
    (("--schema-type",), {"type": click.Choice(["json", "avro", "none"]), "show_default": "json",
     "help": "How to encode rows if the topic has no schema; none is JSON without a schema."}),
    (("--hash", "hashing"), {"type": click.Choice(["murmur3", "java", "go", "boost"]), "default": "murmur3",
     "show_default": True, "help": "How a key chooses its partition: as the clients of the topic do."}),
    (("--producer", "name"), {"metavar": "NAME", "default": "", "show_default": "made of PATH and TOPIC",
     "help": "Name of the import's producer, by which a repeated import is known."}),
    (("--skip-unfit", "skips_unfit"), {"is_flag": True,
     "help": "Leave out rows that cannot be published, with a line for each, instead of stopping there."}),
)
# Names of the options' parameters.
NAMES = tuple(names[-1].removeprefix("--").replace("-", "_") for names, _ in _OPTIONS)


def options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command's function with the options of an import from a table."""
    for names, attributes in reversed(_OPTIONS):
        function = click.option(*names, **attributes)(function)
    return function


def check(context: click.Context, values: dict[str, Any]) -> None:
    """Raise click.UsageError unless the options are those of one source: another cluster, or a table."""
    given = {param.name: param.opts[0] for param in context.command.params if isinstance(param, click.Option)
             and param.name and context.get_parameter_source(param.name) == click.core.ParameterSource.COMMANDLINE}
    ours = [option for name, option in given.items() if name in NAMES]
    theirs = [option for name, option in given.items() if name.endswith("_there")]
    if values["table"] is None:
        others = [option for option in ours if option != "--from-table"]
        if others:
            raise click.UsageError(f"{others[0]} is for tables: give --from-table PATH.")
        if "url_there" not in given:
            raise click.UsageError("Missing option '--from' for another cluster, or '--from-table' for a table.")
    elif theirs:
        raise click.UsageError(f"A table comes from no other cluster: leave out {theirs[0]}.")
    elif len(context.params["topics"]) > 1:
        raise click.UsageError("A table goes to one topic.")


def run(broker: Target, topic: str, subscriptions: tuple[str, ...], values: dict[str, Any],
        shown: output.Output) -> int:
    """Publish a table's rows, print a summary, and return the exit status."""
    from geminga.proto import names
    from geminga.proto import pulsar_api_pb2 as api
    from geminga.proto.errors import Refusal
    from geminga.supervisor.tables.files import BadTable, Table
    from geminga.supervisor.tables.roles import Choice
    from geminga.supervisor.tasks import table_import
    from geminga.supervisor.tasks.import_record import NotOnce
    from geminga.workers.pulsar_client.key_hashing import HASHES, Scheme
    columns = values["columns"]
    choice = Choice(values["key_column"], values["event_time_column"], values["property_columns"],
                    values["payload_column"],
                    None if columns is None else tuple(name.strip() for name in columns.split(",")))
    if choice.payload is not None and (columns is not None or values["schema_type"] not in (None, "none")):
        raise click.UsageError("--payload-column is published as it is: leave out --columns and --schema-type.")
    wishes = table_import.Wishes(choice, values["schema_type"], Scheme(values["hashing"], HASHES[values["hashing"]]),
                                 subscriptions, values["name"], values["skips_unfit"])
    report: table_import.Report | None = None

    async def imported() -> int:
        nonlocal report
        name = names.parse(topic)
        if not name.is_persistent:
            raise Refusal(api.InvalidTopicName, f"{topic} is not persistent: it holds nothing")
        table = Table(values["table"])
        with progress("importing", table.rows) as bar:
            report = table_import.Report(table.rows, remark, bar.advance)
            if table.rows:
                await table_import.TableImport(broker, table, name, wishes, report).run()
            else:
                remark(f"{values['table']}: the table has no rows")
        row = {"topic": str(name), "files": len(table.files), **report.row(),
               "seconds": round(time.monotonic() - report.began, 3)}
        shown.stream([row], lambda row: row, _line)
        return int(report.unfit > 0)

    try:
        return running.run(broker, imported)
    except (BadTable, NotOnce, table_import.Unfit) as error:
        raise output.Failed(error.exit_status, f"{error}{_so_far(report)}") from None
    except KeyboardInterrupt:
        raise output.Failed(1, f"interrupted{_so_far(report)}; the same command goes on from there") from None


def _so_far(report: Any) -> str:
    return f"; {_counted(report.stored, 'row')} stored by now" if report is not None and report.stored else ""


def _line(row: dict[str, Any]) -> str:
    texts = []
    if row["rows"] or not row["earlier"]:
        seconds = max(row["seconds"], 1e-3)
        texts.append(f"{_counted(row['rows'], 'row')} of {_counted(row['files'], 'file')} published, "
                     f"{size(row['bytes'])} in {row['seconds']:.1f} s: {rate(row['rows'] / seconds)} rows/s")
    if row["earlier"]:
        texts.append(f"{_counted(row['earlier'], 'row')} had been published before")
    if row["unfit"]:
        texts.append(f"{_counted(row['unfit'], 'row')} left out")
    return f"{row['topic']}: {'; '.join(texts)}"


def _counted(number: int, what: str) -> str:
    return f"{count(number)} {what}{'' if number == 1 else 's'}"

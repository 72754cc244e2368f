"""`geminga search`: finds messages in the ledgers of a data folder, or over the network."""
import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from geminga.supervisor.cli import options, running
from geminga.supervisor.cli.completion import complete_topic
from geminga.supervisor.cli.output import FORM, Converted, Failed, Output, remark
from geminga.supervisor.configuration import target
from geminga.supervisor.host import installed
from geminga.workers.messages.filters import Filter, Wish, filter_options

FOUND, NOTHING, WRONG_USAGE, NOT_REACHABLE, NOT_ALL, INTERRUPTED = 0, 1, 2, 3, 4, 130      # exit statuses
_PAYLOAD_MIN = 20            # characters of a payload that a line on a terminal has room for at least


def _range(text: str) -> tuple[int, int]:
    first, has_last, last = text.partition("-")
    if not first.isdecimal() or (has_last and not last.isdecimal()) or int(last or first) < int(first):
        raise ValueError(f"{text!r} is neither a number nor a range such as 10-20")
    return int(first), int(last or first)


@click.command(epilog="\b\nExamples:\n  geminga search orders --key customer-7\n"
                      "  geminga search public/default --grep 'order 1[0-9]' --since -1h\n\n"
                      "Exit status: 0 messages were found; 1 none, or no such topic; 2 wrong usage; 3 the broker or "
                      "its data folder cannot be read; 4 not all could be searched, with a line for each reason; 130 "
                      "interrupted.")
@click.argument("place", metavar="TOPIC|NAMESPACE", shell_complete=complete_topic)
@filter_options
@click.option("--producer", metavar="NAME", help="Only messages of the producer with this name.")
@click.option("--sequence-id", "sequence_ids", type=Converted("range", _range), metavar="N[-M]",
              help="Only messages with this sequence id, or one of this range.")
@click.option("--count", "-n", "limit", type=click.IntRange(1), metavar="N", help="End after so many messages.")
@click.option("--newest-first", "is_backwards", is_flag=True, help="Print the newest message first.")
@click.option("--total", "is_count", is_flag=True, help="Print only the number of messages.")
@FORM
@options.CONFIG
@target.service_options
def search(place: str, limit: int | None, is_count: bool, form: str, data_dir: str | None, config: str | None,
           producer: str | None, sequence_ids: tuple[int, int] | None, is_backwards: bool, **who: Any) -> int:
    """Find messages by key, property, text, time or sequence id.

    They are those of a topic, or of all topics of a namespace (TENANT/NAMESPACE).  On the broker's host the ledgers of
    its data folder are read, beside the running broker and without it.  Elsewhere, and with --url, all messages are
    read over the network, which takes longer.

    Messages that were acknowledged by all are found as long as the broker stores them.  Compacted views are not
    searched.  Nothing is changed.
    """
    if limit is not None and is_count:
        raise click.UsageError("--total counts all messages: leave out --count")
    values = {name: who.pop(name) for name in ("key", "properties", "grep", "where", "since", "until")}
    chosen = Filter(**values)      # wrong values are told before anything is read
    if (data_dir or config) and who.get("url"):
        raise click.UsageError("a broker's address and a data folder exclude each other")
    broker, wish = target.of(who), Wish(producer, sequence_ids)
    folder = _data_dir(data_dir, config, broker)
    if folder is None and is_backwards:
        raise click.UsageError("--newest-first reads the data folder: over the network messages come oldest first")
    if folder is not None and not os.geteuid():      # SQLite may make files beside the catalogue
        try:
            installed.become_owner(folder, writes=False)
        except installed.WrongUser as error:
            raise Failed(NOT_REACHABLE, error) from None
    printer = _Printer(form, is_count, limit)
    try:
        if folder is not None:
            status = _in_folder(folder, place, values, wish, printer, is_backwards)
        else:
            status = _over_network(broker, place, chosen, wish, printer)
        printer.end()
    except KeyboardInterrupt:
        printer.end()
        raise Failed(INTERRUPTED, "interrupted: not everything was searched") from None
    except BrokenPipeError:      # the reader of the output, such as head(1), has enough
        sys.stdout = None
        return FOUND
    return status if status is not None else FOUND if printer.number else NOTHING


def _data_dir(data_dir: str | None, config: str | None, broker: target.Target) -> Path | None:
    """Return the data folder to search, None if the messages are to be read over the network.

    Raises click.UsageError.
    """
    is_named = data_dir is not None or config is not None
    if not is_named and broker.url != target.SERVICE_URL and not broker.is_local:
        return None
    from geminga.supervisor.configuration.config import ConfigError
    try:
        loaded = options.configured(config, data_dir)
        catalogue = loaded.data_dir / "catalogue.sqlite"
        os.close(os.open(catalogue, os.O_RDONLY | os.O_CLOEXEC))
        return loaded.data_dir
    except (ConfigError, installed.WrongUser) as error:
        why = str(error)
    except FileNotFoundError:
        why = f"{loaded.data_dir} is no data folder of a broker"
    except OSError as error:
        why = f"{loaded.data_dir}: {error.strerror}"
    if is_named:
        raise click.UsageError(why)
    remark(f"{why}: all messages are read from {broker.url}, which takes longer than on the broker's host as the "
             "folder's user")
    return None


# -- in a data folder

def _in_folder(folder: Path, place: str, values: dict[str, Any], wish: Wish,
               printer: "_Printer", is_backwards: bool) -> int | None:
    """Print what the ledgers of a data folder have; return the exit status, None if it depends on the number."""
    from geminga.proto.errors import Refusal
    from geminga.storage.catalogue.catalogue import CatalogueError
    from geminga.storage.errors import StorageFull
    from geminga.supervisor.cli.progress import progress
    from geminga.supervisor.tasks.searching import settle
    from geminga.workers.messages.report import Report
    from geminga.workers.messages.stored import StoredMessages
    report = Report(remark)
    try:
        settle(folder, place, report)
        stored = StoredMessages(folder, place, values, wish)
        with progress("searching", stored.size, is_bytes=True) as bar:
            if printer.is_count:
                printer.number = stored.count(report, bar.advance)
            else:
                printer.show((stored.newest_first if is_backwards else stored.messages)(report, bar.advance))
    except LookupError as error:
        raise Failed(NOTHING, f"{error}{_question(folder, place)}") from None
    except Refusal as error:
        raise Failed(WRONG_USAGE, error.message) from None
    except BrokenPipeError:
        raise
    except (CatalogueError, StorageFull, OSError) as error:
        raise Failed(NOT_REACHABLE, error) from None
    return NOT_ALL if report.count else None


def _question(folder: Path, place: str) -> str:
    """Return a question for the stored topic or namespace most like one that does not exist, "" if there is none."""
    from geminga.proto import names
    from geminga.storage.offline import search as storage
    from geminga.storage.runtime.similar_names import question, question_of_topic
    if storage.is_namespace(place):
        asked = question(place, storage.namespaces(folder))
        return f".{asked}" if asked else ""
    topic = names.parse(place)
    try:
        stored = storage.partitions(folder, topic.namespace)
    except LookupError:
        return ""
    asked = question_of_topic(str(topic), {one.base.local_name for _, one in stored})
    return f".{asked}" if asked else ""


# -- over the network

def _over_network(broker: target.Target, place: str, chosen: Filter, wish: Wish,
                  printer: "_Printer") -> int | None:
    """Print what a broker delivers; return the exit status, None if it depends on the number."""
    from geminga.workers.messages import delivered
    from geminga.workers.messages.report import Report
    from geminga.workers.messages.topics import NoTopic
    report = Report(remark)

    async def print_delivered() -> int:
        try:
            async with contextlib.aclosing(delivered.messages(broker.connect, place, chosen, wish, report)) as parts:
                async for messages in parts:
                    printer.show(messages)
                    if printer.has_enough:
                        break
        except NoTopic as error:
            raise Failed(NOTHING, error) from None
        return NOT_ALL

    running.run(broker, print_delivered, refused=NOT_REACHABLE)
    return NOT_ALL if report.count else None


# -- printing

class _Printer:
    """Printer of messages: a line each as they come, or a document at the end."""

    def __init__(self, form: str, is_count: bool, limit: int | None) -> None:
        self.number, self.is_count = 0, is_count
        self._form, self._limit = form, limit
        self._rows: list[dict[str, Any]] = []      # of a document, which is printed at its end
        self._widths = [0, 0, 0, 0]

    def __repr__(self) -> str:
        return f"<_Printer {self._form} {self.number} messages>"

    @property
    def has_enough(self) -> bool:
        return self._limit is not None and self.number >= self._limit

    def show(self, messages: Iterable[Any]) -> None:
        """Print messages, or count them, up to the limit."""
        for message in messages:
            if self.has_enough:
                return
            self.number += 1
            if self.is_count:
                continue
            if self._form == "table":
                print(self._line(message))
            elif self._form == "jsonl":
                Output("jsonl").value(message.as_json(), str)
            else:
                self._rows.append(message.as_json())
            if self.has_enough:
                return

    def end(self) -> None:
        """Print what is left: the number, or the document."""
        if self.is_count:
            Output(self._form).value(self.number if self._form == "table" else {"messages": self.number}, str)
        elif self._form in ("json", "yaml"):
            Output(self._form).rows(self._rows, ())
        sys.stdout.flush()

    def _line(self, message: Any) -> str:
        """Return a message as a line for people: topic, position, time, key, and its payload.

        Columns become as wide as their widest value so far.
        """
        from geminga.proto import names
        from geminga.storage.runtime import units
        from geminga.workers.messages.message import printable, value_text
        from geminga.workers.pulsar_client.rest import plain
        cells = [names.parse(message.topic).local_name, message.id, units.instant(message.publish_time_ms),
                 "-" if message.key is None else message.key]
        self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, cells, strict=True)]
        head = "  ".join(plain(cell).ljust(width) for cell, width in zip(cells, self._widths, strict=True))
        payload = value_text(message.value) if message.has_value else printable(message.payload)
        text = plain(f"{len(message.payload)} bytes" if payload is None else payload)
        if sys.stdout.isatty():
            import shutil
            room = max(_PAYLOAD_MIN, shutil.get_terminal_size().columns - len(head) - 2)
            text = text if len(text) <= room else text[:room - 3] + "..."
        return f"{head}  {text}".rstrip()

"""The options --output and --watch, which all commands that show something have, and printing in their forms.

    table    for people: aligned columns with a heading, sizes and times with units
    json     one document: a list of rows, or an object
    jsonl    a document on each line: one for each row
    yaml     as json

Only the form `table` may change between versions; programs read the others.
"""
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import click

from geminga.storage.runtime.units import millis
from geminga.workers.pulsar_client.rest import plain

FORMS = ("table", "json", "jsonl", "yaml")
_CLEAR = "\x1b[H\x1b[2J\x1b[3J"       # cursor to the corner, screen and scrolled lines cleared
_SHORTEST_S = 0.1
_T = TypeVar("_T")


class Failed(Exception):
    """An error that ends a command: a line that says why, and the exit status."""

    def __init__(self, exit_status: int, why: object) -> None:
        if isinstance(why, OSError):
            from geminga.storage.errors import text_of
            why = text_of(why)
        super().__init__(str(why))
        self.exit_status = exit_status


def remark(why: object) -> None:
    """Print a line beside the output: what went wrong, or what people should know."""
    print(f"geminga: {why}", file=sys.stderr, flush=True)


class Converted(click.ParamType[Any]):
    """A click type that reads a text with a function; the function raises ValueError for a wrong text."""

    def __init__(self, name: str, convert: Callable[[str], Any]) -> None:
        self.name = name
        self._convert = convert

    def __repr__(self) -> str:
        return f"Converted({self.name})"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        try:
            return self._convert(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), parameter, context)


class Column(NamedTuple):
    """A column of a table: the key of its values in rows, and how people see them."""

    key: str
    heading: str = ""                                  # "": the key is the heading
    shown: Callable[[Any], str] | None = None          # value -> text; None: as it is, - where there is none
    is_number: bool = False                            # aligned to the right


class Output(NamedTuple):
    """The chosen form of a command's answer, and the time between repetitions."""

    form: str = "table"
    watch_s: float | None = None       # None: shown once

    @property
    def is_for_people(self) -> bool:
        return self.form == "table"

    def rows(self, rows: Iterable[Mapping[str, Any]], columns: Sequence[Column]) -> None:
        """Print rows.  The table has the columns; the other forms have all keys of the rows.

        jsonl prints each row as it comes.
        """
        if self.form == "jsonl":
            for row in rows:
                print(_json(row), flush=True)
        elif self.form == "table":
            lines = table(rows, columns)
            for line in lines:
                print(line)
            if len(lines) == 1:      # a heading alone looks like an answer that was lost
                remark("there are none")
        else:
            self._document(list(rows))

    def stream(self, results: Iterable[_T], as_row: Callable[[_T], Mapping[str, Any]],
               as_text: Callable[[_T], str]) -> None:
        """Print results of long work.  People get the text of each as it comes, without a table."""
        if self.form == "table":
            for result in results:
                print(as_text(result), flush=True)
        else:
            self.rows(map(as_row, results), ())

    def value(self, value: Any, as_text: Callable[[Any], str]) -> None:
        """Print an object; people get as_text(value), and nothing if that is empty."""
        if self.form == "table":
            if text := as_text(value):
                print(text)
        elif self.form == "jsonl":
            print(_json(value), flush=True)
        else:
            self._document(value)

    def _document(self, value: Any) -> None:
        if self.form == "yaml":
            import yaml
            yaml.safe_dump(value, sys.stdout, allow_unicode=True, sort_keys=False)
        else:
            print(json.dumps(value, indent=2, ensure_ascii=False, default=str))

    def repeat(self, show: Callable[[], Any]) -> None:
        """Call `show` once, or with --watch again and again until it is interrupted; a terminal is cleared before."""
        if self.watch_s is None:
            show()
            return
        try:
            while True:
                if self.is_for_people and sys.stdout.isatty():
                    print(_CLEAR, end="")
                show()
                sys.stdout.flush()
                time.sleep(self.watch_s)
        except KeyboardInterrupt:
            print()


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[Column]) -> list[str]:
    """Return the lines of a table: a heading, then a line for each row; [] without columns."""
    cells = [[(column.heading or column.key).upper() for column in columns]]
    cells += ([cell(row.get(column.key), column) for column in columns] for row in rows)
    if not columns:
        return []
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(text.rjust(width) if column.is_number else text.ljust(width)
                      for text, width, column in zip(line, widths, columns, strict=True)).rstrip() for line in cells]


def cell(value: Any, column: Column) -> str:
    """Return a value as people see it in a column; unprintable characters are escaped."""
    if value is None:
        return "-"
    return plain(column.shown(value) if column.shown is not None else str(value))


PAUSE = Converted("time", lambda text: max(_SHORTEST_S, millis(text) / 1_000))      # between two looks, in seconds
FORM = click.option("--output", "-o", "form", type=click.Choice(FORMS), default="table", show_default=True,
                    help="A table for people, or a form for programs.")
WATCH = click.option("--watch", "-w", "watch_s", metavar="TIME", is_flag=False, flag_value="2s", type=PAUSE,
                     help="Show again every 2 s, or after TIME, until interrupted.")


def json_flag(form: str) -> Callable[..., Any]:
    """Return a decorator that adds --json, a former name of `--output json` or of `--output jsonl`."""
    return click.option("--json", "form", flag_value=form, hidden=True)


def options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command's function with --output and --watch, as parameters `form` and `watch_s` for Output."""
    return FORM(WATCH(function))

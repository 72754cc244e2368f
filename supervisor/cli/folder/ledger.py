"""`geminga ledger dump`: the content of one file of a data folder, as text or JSON."""
import base64
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from geminga.storage.runtime.units import instant
from geminga.supervisor.cli import grammar, output
from geminga.supervisor.host import installed
from geminga.workers.pulsar_client.rest import plain


@click.group(cls=grammar.Group)
def ledger() -> None:
    """Look into the files of a data folder."""


@ledger.command(epilog="Exit status: 0 nothing is damaged; 4 something is; 5 the file cannot be read; "
                       "2 wrong usage.")
@click.argument("file", metavar="FILE")
@click.option("--from", "first", type=click.IntRange(0), default=0, metavar="N",
              help="First entry of a ledger, or record of a journal.")
@click.option("--to", "last", type=click.IntRange(0), metavar="N", show_default="all",
              help="Last entry or record.")
@click.option("--payload", is_flag=True, help="Print the messages of entries too, batches unpacked.")
@output.FORM
@output.json_flag("jsonl")
def dump(file: str, first: int, last: int | None, payload: bool, form: str) -> int:
    """Print the content of FILE, a line for each entry, record, cursor or window.

    Nothing is changed, and a broker may be writing the file.  Forms for programs have bytes that are not UTF-8 in
    base64.  FILE is N.ledger, N.index, state, compacted/N/view, compacted/N/N.keys or compacted/N/N.mask of
    DATA_DIR/partitions/N; N.journal of DATA_DIR/journal/N; table of DATA_DIR/transactions/N; schedule, amended or
    N-N.window of DATA_DIR/partitions/N/delayed.  geminga admin topics stats-internal names a topic's ledgers.
    """
    from geminga.storage.errors import CorruptFile
    from geminga.storage.offline.dump import NotKnown
    from geminga.storage.offline.dump import dump as lines
    from geminga.storage.offline.findings import Severity
    installed.become_owner(Path(file), writes=False)
    status = 0

    def content() -> Iterator[dict[str, Any]]:
        nonlocal status
        for line in lines(Path(file).absolute(), first, None if last is None else last + 1, payload=payload):
            status = Severity.LOSS if "damaged" in line else status
            yield line

    try:
        output.Output(form).stream(content(), _as_json, _as_text)
    except NotKnown as error:
        raise output.Failed(2, error) from None
    except BrokenPipeError:
        sys.stdout = None      # the reader, such as head(1), has closed its end
        return status
    except (CorruptFile, OSError) as error:
        raise output.Failed(Severity.UNREADABLE, error) from None
    return status


def _as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {name: _as_json(item) for name, item in value.items()}
    return [_as_json(item) for item in value] if isinstance(value, list | tuple) else value


def _as_text(line: dict[str, Any]) -> str:
    payloads = line.get("payloads", ())
    fields = ["  ".join(_field(name, value) for name, value in line.items() if name != "payloads")]
    return "\n    ".join(fields + ["  ".join(_field(name, value) for name, value in one.items()) for one in payloads])


def _field(name: str, value: Any) -> str:
    shown = instant(value) if name.endswith("_ms") else _text(value)
    return f"{name.removesuffix('_ms').replace('_', ' ')} {shown}"


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return plain(value.decode(errors="backslashreplace"))
    if isinstance(value, dict):
        return ", ".join(f"{_text(key)}: {_text(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(f"{_text(one[0])}={_text(one[1])}" if isinstance(one, tuple) else _text(one) for one in value)
    return plain(str(value))

"""`geminga ledger dump`: what a file of a data folder says."""
import base64
import json
import sys
from pathlib import Path
from typing import Any

import click

from geminga.supervisor.configuration.units import instant
from geminga.supervisor.pulsar_client.rest import plain


@click.group()
def ledger() -> None:
    """Look into the files of a data folder."""


@ledger.command(epilog="Exit status: 0 nothing of it is damaged; 4 something is; 5 it cannot be read; 2 wrong arguments.")
@click.argument("file", metavar="FILE")
@click.option("--from", "first", type=click.IntRange(0), default=0, metavar="N", help="first entry of a ledger, or record of a journal")
@click.option("--to", "last", type=click.IntRange(0), metavar="N", help="last one (default: all)")
@click.option("--payload", is_flag=True, help="and the messages that entries hold, batches unpacked")
@click.option("--json", "is_json", is_flag=True, help="print an object a line, with bytes in base64 where they are no UTF-8")
def dump(file: str, first: int, last: int | None, payload: bool, is_json: bool) -> int:
    """Print what FILE says, a line for each entry, record, cursor or window; nothing is changed, and a broker may go on writing it.

    FILE is N.ledger or N.index, state, or compacted/N/view of DATA_DIR/partitions/N; N.journal of DATA_DIR/journal/N; schedule, amended or
    N-N.window of DATA_DIR/partitions/N/delayed.  geminga admin topics stats-internal names a topic's ledgers.
    """
    from geminga.storage.errors import CorruptFile, text_of
    from geminga.storage.offline.dump import NotKnown
    from geminga.storage.offline.dump import dump as lines
    from geminga.storage.offline.findings import Severity
    status = 0
    try:
        for line in lines(Path(file).absolute(), first, None if last is None else last + 1, payload=payload):
            status = Severity.LOSS if "damaged" in line else status
            print(json.dumps(_as_json(line)) if is_json else _as_text(line))
    except NotKnown as error:
        print(f"geminga: {error}", file=sys.stderr)
        return 2
    except CorruptFile as error:
        print(f"geminga: {error}", file=sys.stderr)
        return Severity.UNREADABLE
    except BrokenPipeError:
        sys.stdout = None      # whoever read has enough
        return status
    except OSError as error:
        print(f"geminga: {text_of(error)}", file=sys.stderr)
        return Severity.UNREADABLE
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
    said = ["  ".join(_said(name, value) for name, value in line.items() if name != "payloads")]
    return "\n    ".join(said + ["  ".join(_said(name, value) for name, value in one.items()) for one in payloads])


def _said(name: str, value: Any) -> str:
    if name.endswith("_ms"):
        return f"{name.removesuffix('_ms')} {instant(value)}"
    return f"{name.replace('_', ' ')} {_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return plain(value.decode(errors="backslashreplace"))
    if isinstance(value, dict):
        return ", ".join(f"{_text(key)}: {_text(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(f"{_text(one[0])}={_text(one[1])}" if isinstance(one, tuple) else _text(one) for one in value)
    return plain(str(value))

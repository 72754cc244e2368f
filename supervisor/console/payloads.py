"""Messages as a page shows them: rows of REST with a text of the payload."""
import base64
import json
import shlex
from typing import Any
from urllib.parse import quote

from geminga.proto import names
from geminga.supervisor.console.rendering import topic_path
from geminga.supervisor.wording.human import short
from geminga.workers.messages.message import hexadecimal

PAYLOAD_BYTES = 4 << 10          # of a message that a page shows
_BINARY_BYTES = 512              # of a payload that is no text
_LINE = 110                      # characters of a decoded value that stands in one line
_TEXT_MAX = 8 << 10              # characters of a decoded value, with its spaces


def rows(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of /ops/v1/messages, each with `text`, `kind` and `whole`: the address of the whole payload."""
    return [row | shown(row) | {"whole": _whole(row)} for row in answer["rows"]]


def shown(row: dict[str, Any]) -> dict[str, str]:
    """Return the text of a row's payload, and its kind: value, text, binary, null or none."""
    if "leftOut" in row:
        return {"kind": "none", "text": ""}
    if row.get("isNull"):
        return {"kind": "null", "text": ""}
    if "value" in row:
        value = row["value"]
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if len(text) > _LINE and not isinstance(value, str):
            text = json.dumps(value, indent=2, ensure_ascii=False)
        return {"kind": "value", "text": text[:_TEXT_MAX]}
    if "payload" in row:
        return {"kind": "text", "text": row["payload"]}
    return {"kind": "binary", "text": "\n".join(hexadecimal(base64.b64decode(row["payloadBase64"])[:_BINARY_BYTES]))}


def _whole(row: dict[str, Any]) -> str:
    return f"/ops/v1/payload/{topic_path(row['topic'])}/{quote(row['id'])}"


def partition_names(topic: str, count: int) -> list[str]:
    """Return the names of a topic's partitions, the topic itself if it has none."""
    name = names.parse(topic)
    return [str(name.partition_name(number)) for number in range(count)] or [topic]


def words(*texts: str) -> str:
    """Return a command line of some words.  Topics are shown short."""
    return " ".join(shlex.quote(short(text)) for text in texts)

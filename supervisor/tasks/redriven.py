"""Finds in a data folder what redrives of a dead letter topic have sent to a topic, as a process of its own.

    python -m geminga.supervisor.tasks.redriven < request

The request is a JSON object: "folder", "topic", "letters" (the dead letter topic), and the conditions "key",
"properties", "grep", "where", "since", "until" of `geminga search`.  Lines of JSON are printed as messages are found:

    {"at": [topic, ledger, entry]}     a message that may be acknowledged since; topic: of the partition
    {"complaint": text}                what could not be searched
    {"end": "all"}                     the last line
    {"wrong": text}                    instead of all others: the request cannot be answered
"""
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any, TypedDict

from geminga.proto import names
from geminga.supervisor.tasks import searching
from geminga.workers.messages.filters import Wish
from geminga.workers.messages.message import Message
from geminga.workers.messages.report import Report
from geminga.workers.messages.stored import StoredMessages


class Asked(TypedDict):
    """What is looked for."""

    folder: str
    topic: str
    letters: str
    properties: list[str]        # this and the next are conditions, as of Filter
    key: str | None
    grep: str | None
    where: str | None
    since: str | None
    until: str | None


def run(asked: Asked, say: searching.Say) -> None:
    """Say where what redrives have sent lies."""
    folder, report = Path(asked["folder"]), Report(lambda line: say({"complaint": line}))
    values = {"key": asked["key"], "properties": (names.REDRIVEN_FROM, *asked["properties"]), "grep": asked["grep"],
              "where": asked["where"], "since": asked["since"], "until": asked["until"]}
    with searching.answering(say):
        searching.settle(folder, asked["topic"], report)
        for message in StoredMessages(folder, asked["topic"], values, Wish()).messages(report, lambda size: None):
            if _is_of(message, asked["letters"]):
                say({"at": [message.topic, message.ledger_id, message.entry_id]})
        say({"end": "all"})


def _is_of(message: Message, letters: str) -> bool:
    """Whether a redrive of a dead letter topic has sent a message.  No redrive sends batches."""
    topic = message.properties.get(names.REDRIVEN_FROM, "").rpartition(" ")[0]
    return message.batch_index < 0 and names.without_partition(topic) == letters


def _print(line: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(line).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    os.nice(searching.NICENESS)
    resource.setrlimit(resource.RLIMIT_CPU, (searching.CPU_SECONDS, searching.CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (searching.MEMORY_BYTES, searching.MEMORY_BYTES))
    try:
        run(json.load(sys.stdin), _print)
    except BrokenPipeError:      # nobody reads any more
        os._exit(0)

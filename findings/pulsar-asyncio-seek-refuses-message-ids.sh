#!/bin/sh
# Apache Pulsar's asyncio client for Python, 3.13.0, refuses in seek() every message id that the package hands out.
#
# `await consumer.seek(message.message_id())` and `await consumer.seek(pulsar.MessageId.earliest)` raise ValueError: invalid
# messageid type.  Both values are of the class _pulsar.MessageId, and seek() looks for the class pulsar.MessageId around
# it, which a program has to make by itself from the four numbers.  seek() of the blocking consumer takes the values.
#
# Exit status 0: it still does.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pulsar-client==3.13.0
"$folder/venv/bin/python" - <<'PROGRAM'
import asyncio
import importlib.metadata
import sys

import pulsar
import pulsar.asyncio


class NoBroker:
    """A consumer of the C++ library that takes every call and does nothing."""

    def seek_async(self, position, callback):
        callback(pulsar.Result.Ok)


async def outcome(position):
    consumer = pulsar.asyncio.Consumer(NoBroker(), pulsar.schema.BytesSchema())
    try:
        await consumer.seek(position)
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return "done"


same = pulsar.MessageId.deserialize(pulsar.MessageId(0, 1, 2, 3).serialize())
print(f"pulsar-client {importlib.metadata.version('pulsar-client')}")
seen = []
for name, position in (("pulsar.MessageId(0, 1, 2, 3)", pulsar.MessageId(0, 1, 2, 3)),
                       ("the same, serialized and deserialized", same), ("MessageId.earliest", pulsar.MessageId.earliest)):
    answer = asyncio.run(outcome(position))
    print(f"seek({name}): expected done; seen {answer}")
    seen.append(answer == "done")
sys.exit(seen != [True, False, False])
PROGRAM

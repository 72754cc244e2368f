#!/bin/sh
# The default "\u00ff" of a field of bytes is the byte ff by Avro's specification.  In Python, avro 1.12.2 gives two bytes,
# c3 bf, and fastavro 1.13.1 gives text.
#
# "Unicode code points 0-255 are mapped to unsigned 8-bit byte values 0-255."  A reader whose schema has a field that the
# writer's lacks takes the default.  Both libraries give a value that the field's type does not allow as read: avro makes
# two bytes of a fixed of size 1 too.
#
# Exit status 0: they still do.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check avro==1.12.2 fastavro==1.13.1
"$folder/venv/bin/python" - <<'PROGRAM'
import importlib.metadata
import io
import json
import sys

import avro.io
import avro.schema
import fastavro


def record(*fields):
    return {"type": "record", "name": "R", "fields": list(fields)}


print(f"avro {importlib.metadata.version('avro')}, fastavro {fastavro.__version__}")
seen = []
for kind in ("bytes", {"type": "fixed", "name": "F", "size": 1}):
    writer, reader = record(), record({"name": "a", "type": kind, "default": "\u00ff"})
    official = avro.io.DatumReader(avro.schema.parse(json.dumps(writer)), avro.schema.parse(json.dumps(reader)))
    of_avro = official.read(avro.io.BinaryDecoder(io.BytesIO(b"")))["a"]
    of_fastavro = fastavro.schemaless_reader(io.BytesIO(b""), fastavro.parse_schema(writer),
                                             fastavro.parse_schema(reader))["a"]
    print(f"default of {kind}: expected {bytes([255])!r}; seen {of_avro!r} by avro, {of_fastavro!r} by fastavro")
    seen += [of_avro, of_fastavro]
sys.exit(seen != [b"\xc3\xbf", "\u00ff"] * 2)
PROGRAM

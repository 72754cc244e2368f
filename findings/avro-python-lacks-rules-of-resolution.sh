#!/bin/sh
# Avro's own library for Python, 1.12.2, refuses four changes of a schema that the specification's rules of resolution allow.
#
# A symbol that the reader's enum lacks is to become the enum's default; a value of a union is to be read as the plain
# type of its branch; string and bytes are to be read as each other; a field is to be found by the reader's alias.
# Brokers' checks of compatibility pass all of these, and Java's library and fastavro read them.
#
# Exit status 0: it still does.
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

import avro.errors
import avro.io
import avro.schema
import fastavro


def record(kind, name="a", **more):
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind, **more}]}


def enum(*symbols, **more):
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


CASES = {
    "an enum's default": (record(enum("A", "B")), record(enum("A", default="A")), {"a": "B"}),
    "a union read as one of its types": (record(["null", "int"]), record("int"), {"a": 1}),
    "a string read as bytes": (record("string"), record("bytes"), {"a": "x"}),
    "a field's alias": (record("int", "old"), record("int", aliases=["old"]), {"old": 3}),
}
print(f"avro {importlib.metadata.version('avro')}, fastavro {fastavro.__version__}")
refused = 0
for name, (writer, reader, value) in CASES.items():
    payload = io.BytesIO()
    fastavro.schemaless_writer(payload, fastavro.parse_schema(writer), value)
    expected = fastavro.schemaless_reader(io.BytesIO(payload.getvalue()), fastavro.parse_schema(writer),
                                          fastavro.parse_schema(reader))
    official = avro.io.DatumReader(avro.schema.parse(json.dumps(writer)), avro.schema.parse(json.dumps(reader)))
    try:
        seen = official.read(avro.io.BinaryDecoder(io.BytesIO(payload.getvalue())))
    except avro.errors.SchemaResolutionException as error:
        seen = f"{type(error).__name__}: {error}".splitlines()[0]
        refused += 1
    print(f"{name}: expected {expected}; seen {seen}")
sys.exit(refused != len(CASES))
PROGRAM

#!/bin/sh
# Two libraries of Avro for Python may write the int 2**53 + 1 to a union of long and double as a double: another number.
#
# The union has a branch that holds the value, long, and a double "accepts" any int.  fastavro 1.13.1 takes the first branch
# that accepts the value, avro 1.12.2 the last one, so that each loses the digits for one of the two orders.
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

import avro.io
import avro.schema
import fastavro

number = 2**53 + 1
print(f"fastavro {fastavro.__version__}, avro {importlib.metadata.version('avro')}")
seen = []
for union in (["long", "double"], ["double", "long"]):
    payload = io.BytesIO()
    fastavro.schemaless_writer(payload, fastavro.parse_schema(union), number)
    back = fastavro.schemaless_reader(io.BytesIO(payload.getvalue()), fastavro.parse_schema(union), None)
    other, schema = io.BytesIO(), avro.schema.parse(json.dumps(union))
    avro.io.DatumWriter(schema).write(number, avro.io.BinaryEncoder(other))
    official = avro.io.DatumReader(schema, schema).read(avro.io.BinaryDecoder(io.BytesIO(other.getvalue())))
    print(f"{union}: expected {number}; seen {back!r} by fastavro, {official!r} by avro")
    seen += [repr(back), repr(official)]
rounded = "9007199254740992.0"
sys.exit(seen != [str(number), rounded, rounded, str(number)])
PROGRAM

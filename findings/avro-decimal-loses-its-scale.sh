#!/bin/sh
# Avro's own library for Python, 1.12.2, writes Decimal("1.2") to a decimal of scale 2 as 0.12.
#
# The payload of a decimal is the number's digits at the scale of the schema, 120.  The library checks that a value has
# no more digits behind the point than the scale, and writes the digits that the value happens to have, 12.  Any reader
# sees a tenth, without an error; of Decimal("5") a hundredth.  fastavro writes and reads 1.20.
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
from decimal import Decimal

import avro.io
import avro.schema
import fastavro

definition = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
schema = avro.schema.parse(json.dumps(definition))
print(f"avro {importlib.metadata.version('avro')}, fastavro {fastavro.__version__}")
seen = []
for value in (Decimal("1.25"), Decimal("1.2"), Decimal("5")):
    payload = io.BytesIO()
    avro.io.DatumWriter(schema).write(value, avro.io.BinaryEncoder(payload))
    other = io.BytesIO()
    fastavro.schemaless_writer(other, fastavro.parse_schema(definition), value)
    back = avro.io.DatumReader(schema, schema).read(avro.io.BinaryDecoder(io.BytesIO(payload.getvalue())))
    print(f"expected {value} as {other.getvalue().hex()}; seen {payload.getvalue().hex()}, which is read as {back}")
    seen.append(back)
sys.exit(seen != [Decimal("1.25"), Decimal("0.12"), Decimal("0.05")])
PROGRAM

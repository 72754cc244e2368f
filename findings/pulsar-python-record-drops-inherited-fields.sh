#!/bin/sh
# A Record of Apache Pulsar's Python client 3.13.0 that is derived from another one loses that one's fields.
#
# Programs that share an id among all messages put it into a base class. The definition of a derived Record has its own
# fields only. The constructor takes an inherited one without an error, required or not, and it is in no payload.
#
# Expected: the fields id and name. Seen: name. Exit status 0: it still drops them.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pulsar-client==3.13.0 fastavro==1.13.1
"$folder/venv/bin/python" - <<'PROGRAM'
import importlib.metadata
import sys

from pulsar.schema import AvroSchema, JsonSchema, Record, String


class Event(Record):
    id = String(required=True)


class Order(Event):
    name = String()


order = Order(id="o-17", name="shoes")
fields = [field["name"] for field in Order.schema()["fields"]]
payload = JsonSchema(Order).encode(order)
print(f"pulsar-client {importlib.metadata.version('pulsar-client')}, Python {sys.version.split()[0]}")
print(f"expected: the fields id and name; seen: {fields}")
print(f"expected: o-17 in JSON; seen: {' '.join(payload.decode().split())}")
print(f"expected: o-17 in Avro; seen: {AvroSchema(Order).encode(order)}")
sys.exit(fields != ["name"] or b"o-17" in payload or b"o-17" in AvroSchema(Order).encode(order))
PROGRAM

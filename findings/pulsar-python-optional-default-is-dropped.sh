#!/bin/sh
# Apache Pulsar's Python client 3.13.0 leaves the default of a field out of the registered definition.
#
# `remark = String(default="none")` reads as an optional field with a default.  The definition that the broker gets has the
# field without a "default", so that by Avro's rules old messages cannot be read with it.  A broker with the strategy
# BACKWARD or FULL refuses the producer whose record only got such a field.  With required_default=True the definition
# has a default, which is null whatever the field says.
#
# Exit status 0: it still does.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "pulsar-client[avro]==3.13.0"
"$folder/venv/bin/python" - <<'PROGRAM'
import importlib.metadata
import sys

from pulsar.schema import Integer, Record, String


class Order(Record):
    plain = String(default="none")
    number = Integer(default=7)
    demanded = String(default="none", required_default=True)
    required = String(default="none", required=True)


print(f"pulsar-client {importlib.metadata.version('pulsar-client')}")
missing = []
for field in Order.schema()["fields"]:
    seen = field.get("default", "no default")
    print(f"{field['name']}: expected a default in the definition; seen type {field['type']}, {seen!r}")
    if seen == "no default":
        missing.append(field["name"])
print(f"the records themselves: Order().plain is {Order().plain!r}, Order().number is {Order().number!r}")
sys.exit(not {"plain", "number"} <= set(missing))
PROGRAM

#!/bin/sh
# The parser of prometheus-client 0.26.0 for Python gives samples of a counter another name than the text has.
#
# In Prometheus' text format a counter's sample may have any name; without `_total` Prometheus stores it as it stands.  This
# parser appends `_total`, so that a test that looks for the name in the text finds nothing, and one that looks for the
# parsed name finds nothing in Prometheus.  And a counter that is declared by its name without `_total`, as the newer
# format has it, comes as two families: one without samples, one without a type.
#
# Exit status 0: it still does.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check prometheus-client==0.26.0
"$folder/venv/bin/python" - <<'PROGRAM'
import importlib.metadata
import sys

from prometheus_client.parser import text_string_to_metric_families

print(f"prometheus-client {importlib.metadata.version('prometheus-client')}")
seen = []
for text, expected in (("# TYPE requests counter\nrequests 5\n", "requests"),
                       ("# TYPE requests gauge\nrequests 5\n", "requests")):
    [family] = text_string_to_metric_families(text)
    seen.append(family.samples[0].name)
    print(f"{text.splitlines()[0]}: expected a sample {expected}; seen {seen[-1]}")
split = [(family.name, family.type, len(family.samples))
         for family in text_string_to_metric_families("# TYPE requests counter\nrequests_total 5\n")]
print(f"requests_total of a counter requests: expected one family with one sample; seen {split}")
sys.exit(seen != ["requests_total", "requests"] or len(split) != 2)
PROGRAM

#!/bin/sh
# Apache Pulsar's Python client 3.13.0 checks pattern_auto_discovery_period and does not use it: the period stays 60 s.
#
# `subscribe(re.compile(...), pattern_auto_discovery_period=1)` documents seconds between two looks for new topics that
# match.  Whoever sets 1 gets messages of a new topic up to a minute later, and with the default position `Latest` never
# gets those that were published before.  No setter of the library's configuration is called with the number.
#
# Expected: the period reaches the configuration.  Seen: only the defaults of other settings do.
# Exit status 0: it still does not use it.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pulsar-client==3.13.0
"$folder/venv/bin/python" - <<'PROGRAM'
import importlib.metadata
import re
import sys

import _pulsar
import pulsar

called = []


class Watched(_pulsar.ConsumerConfiguration):
    """A configuration that notes which of its setters are called, with what."""

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if not callable(found) or name.startswith("__"):
            return found

        def noting(*arguments):
            called.append((name, arguments))
            return found(*arguments)
        return noting


class Stopped(Exception):
    """The client would connect to a broker now."""


class NoBroker:
    def subscribe_pattern(self, *arguments):
        raise Stopped


_pulsar.ConsumerConfiguration = Watched
client = pulsar.Client("pulsar://127.0.0.1:1", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
client._client = NoBroker()
try:
    client.subscribe(re.compile("persistent://public/default/t-.*"), "s", pattern_auto_discovery_period=7)
except Stopped:
    pass
uses = [name for name, arguments in called if 7 in arguments]
print(f"pulsar-client {importlib.metadata.version('pulsar-client')}, Python {sys.version.split()[0]}")
print(f"expected: one of the {len(called)} calls of the configuration has the period, 7; seen: {len(uses)} of them")
sys.exit(bool(uses) or not called)
PROGRAM

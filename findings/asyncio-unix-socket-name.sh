#!/usr/bin/env bash
# CPython 3.13 and uvloop 0.23: create_unix_server(sock=...) fails for a good listening socket, because of its name.
#
# From 3.13 on the call looks up the name by which the socket was bound, in order to remove the file when the server
# closes.  It expects that the name may be gone (FileNotFoundError), and no other outcome.  A socket that was handed over
# by another process, or bound by a path that means something else by now, raises NotADirectoryError, PermissionError and
# the like.  create_server(sock=...) serves the same socket: it never looks at the name.
#
# Expected: both calls serve the socket.  Seen: create_unix_server raises NotADirectoryError, in asyncio and in uvloop.
# Exit status 0: as seen, 1: the behaviour changed, 77: the packages cannot be had.
set -euo pipefail
folder=$(mktemp --directory)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python=3.13.5-1.5.12 uvloop=0.23.0
command -v mvn > /dev/null || { echo "Maven is not installed"; exit 77; }
mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy \
    -Dartifact=org.bytedeco:cpython:$python:jar:linux-x86_64 -DoutputDirectory=. || exit 77
python3 -m zipfile -e cpython-*.jar .
home=org/bytedeco/cpython/linux-x86_64
cp $home/libffi* $home/lib/python3.13/lib-dynload/
chmod +x $home/bin/python3.13
$home/bin/python3.13 -I -m venv environment
environment/bin/pip install --quiet --disable-pip-version-check uvloop==$uvloop || exit 77

cat > serve.py <<'END'
import asyncio
import importlib.metadata
import os
import socket
import sys
import tempfile

import uvloop


def bound():
    """Return a listening socket in a folder that was renamed since, and in whose place a file stands."""
    folder = tempfile.mkdtemp(dir=".")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{folder}/socket")
    listener.listen()
    os.rename(folder, f"{folder}.moved")
    open(folder, "w").close()
    return listener


async def outcome(name):
    listener = bound()
    try:
        server = await getattr(asyncio.get_running_loop(), name)(asyncio.Protocol, sock=listener)
    except OSError as error:
        listener.close()
        return type(error).__name__
    server.close()
    return "served"


print(f"CPython {sys.version.split()[0]}, uvloop {importlib.metadata.version('uvloop')}")
seen = []
for loop in (asyncio.new_event_loop, uvloop.new_event_loop):
    for name in ("create_server", "create_unix_server"):
        with asyncio.Runner(loop_factory=loop) as runner:
            seen.append(runner.run(outcome(name)))
        print(f"{loop.__module__}: {name}(sock=...): expected served, seen {seen[-1]}")
sys.exit(seen != ["served", "NotADirectoryError"] * 2)
END
environment/bin/python serve.py && echo "as seen before" || { echo "the behaviour changed"; exit 1; }

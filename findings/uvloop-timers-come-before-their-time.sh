#!/bin/sh
# uvloop 0.23.0 calls a callback of loop.call_at(when) while loop.time() is still below `when`, by up to half a millisecond.
#
# It rounds the delay to whole milliseconds, up or down.  asyncio's own loop never calls early.  A program that looks for
# what is due when its timer comes finds nothing then, and is late by whatever it waits until its next look.
#
# Exit status 0: it still does.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q uvloop==0.23.0
"$folder/venv/bin/python" - <<'PROGRAM'
import asyncio
import sys

import uvloop


async def earliest():
    """Return by how many seconds the earliest of some timers came before its time, and how many came early."""
    loop, early = asyncio.get_running_loop(), []
    for number in range(200):
        come, when = loop.create_future(), loop.time() + 0.0105 + number * 1e-5
        loop.call_at(when, lambda come=come: come.set_result(loop.time()))
        early.append(when - await come)
    return max(early), sum(by > 0 for by in early)


own_by, own_count = asyncio.run(earliest())
by, count = uvloop.run(earliest())
print(f"uvloop {uvloop.__version__}, Python {sys.version.split()[0]}")
print(f"expected: no timer before its time; asyncio's loop: {own_count} of 200")
print(f"seen: {count} of 200 before their time, the earliest by {by * 1000:.2f} ms")
sys.exit(0 if count and not own_count else 1)
PROGRAM

"""Measures the wall time of short commands from start to end, on a broker of its own.

    python tests/bench/starts.py [--runs 10]

    best, median    ms, of so many runs one after another; then the command

Nearly all of a short command's time is imports.  Modules are compiled, as those of an installed package are.  The
target is less than 150 ms on a quiet machine.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import Broker

GEMINGA = Path(sys.executable).with_name("geminga")
TOPIC = "public/default/starts"
# Words of commands; {url} and {http} are the broker's addresses.
COMMANDS = (
    f"produce --url {{url}} {TOPIC} Hello", f"produce --url {{url}} {TOPIC} Hello --compression zstd",
    f"consume --url {{url}} {TOPIC} -n 1", f"consume --url {{url}} {TOPIC} -n 1 -s billing --from earliest",
    f"search --url {{url}} {TOPIC} -n 1", f"redrive --url {{url}} --admin-url {{http}} {TOPIC} --dry-run --key none",
    "status --admin-url {http}", "topics --admin-url {http}", "subscriptions --admin-url {http}",
    f"why --admin-url {{http}} {TOPIC}", "log level --admin-url {http}",
    "admin --admin-url {http} topics list public/default", "context list", "config show", "produce -h", "-V", "-h")


def milliseconds(words: list[str], compiled: Path) -> float:
    """Return the time that a command takes, which has to succeed.  `compiled`: a folder for what Python compiles."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    subprocess.run([GEMINGA, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True,
                   env=environ | {"PYTHONPYCACHEPREFIX": str(compiled)})
    return (time.perf_counter() - began) * 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        broker, compiled = Broker(Path(folder) / "data"), Path(folder) / "compiled"
        try:
            broker.start()
            print("   best  median")
            for command in COMMANDS:
                words = command.format(url=broker.service_url, http=broker.http_url).split()
                milliseconds(words, compiled)      # compiles what it imports, as the installation of a package does
                times = [milliseconds(words, compiled) for _ in range(options.runs)]
                print(f"{min(times):7.0f} {statistics.median(times):7.0f}  geminga {command}", flush=True)
        finally:
            broker.close()


if __name__ == "__main__":
    main()

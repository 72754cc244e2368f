"""A broker and its standby, as their users run them: two data folders, fixed ports, real processes."""
import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from ..harness import HANG_SECONDS, Broker, eventually, free_port, request

GEMINGA = str(Path(sys.executable).with_name("geminga"))


class Standby(Broker):
    """`geminga serve --standby-of`: `start` returns when it answers over HTTP, long before it serves clients."""

    def __init__(self, data_dir: Path, of: str, *options: str) -> None:
        super().__init__(data_dir, *options)
        self.of = of
        self.service_url = f"pulsar://127.0.0.1:{free_port()}"
        self.http_url = f"http://127.0.0.1:{free_port()}"

    def start(self) -> "Standby":
        port, http_port = (url.rpartition(":")[2] for url in (self.service_url, self.http_url))
        command = [GEMINGA, "serve", "--data-dir", str(self.data_dir), "--standby-of", self.of, "--port", port,
                   "--http-port", http_port, *self.options]
        self._printed = []
        with self.log_path.open("a") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self._begin_reading()
        eventually(lambda: re.search("Promote it|Publish", self.printed()) or self._process.poll() is not None)
        return self

    def state(self) -> dict:
        return json.loads(request("GET", f"{self.http_url}/ops/v1/status")[1])["follows"]

    def wait_complete(self, seconds: float = HANG_SECONDS) -> None:
        """Return when everything is here that the broker had at the call."""
        began = time.monotonic()

        def has_come() -> bool:
            asked, state = time.monotonic(), self.state()
            return state["complete"] and state["connected"] and asked - state["lag_ms"] / 1000 > began

        eventually(has_come, seconds, f"a complete copy: {self.state()}")

    def promote(self) -> subprocess.CompletedProcess:
        return subprocess.run([GEMINGA, "promote", "--data-dir", str(self.data_dir), "-o", "json"], capture_output=True,
                              text=True, timeout=HANG_SECONDS)

    def kill_all(self) -> None:
        """Kill the standby without notice."""
        self._process.send_signal(signal.SIGKILL)
        self.ended()


def is_listening(url: str) -> bool:
    host, _, port = url.rpartition("/")[2].partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def ready_status(http_url: str) -> int:
    return request("GET", f"{http_url}/ready")[0]



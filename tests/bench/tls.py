"""Measures what TLS costs, on a broker of its own: messages of 1 KiB, and idle connections.

    python tests/bench/tls.py [--rounds 3] [--seconds 5] [--idle 10000]

    rate     publish and consume by one connection each, without TLS and with it in turns: medians, and their ratio
    idle     so many connections that have shown a token: memory of all processes, CPU of a handshake and while nothing
             happens
"""

import argparse
import asyncio
import base64
import os
import resource
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import jwt
import trustme
from link import CLOCK, Load
from load import measure, topic_names
from usage import cpu_seconds, memory_bytes

from geminga.supervisor.load import wire

SECRET = b"a secret key of more than 32 bytes"
SIZE, WARMUP_S, SETTLE_S, IDLE_S = 1024, 2.0, 3.0, 35.0      # the last is longer than the time between two PINGs
AT_ONCE = 100             # handshakes
ADDRESSES = 20            # addresses of the loopback network: one address has too few ports for all connections
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Broker:
    pid: int
    ports: dict[str, int]       # scheme -> port
    trusted: str


@contextmanager
def broker() -> Iterator[Broker]:
    with tempfile.TemporaryDirectory() as folder:
        authority, environment = trustme.CA(), os.environ | {"GEMINGA_TLS_PORT": "0", "GEMINGA_TLS_HTTP_PORT": "-1"}
        certificate = authority.issue_cert("localhost")
        for key, content in (("CERTIFICATE", certificate.cert_chain_pems[0]), ("KEY", certificate.private_key_pem),
                             ("TRUSTED", authority.cert_pem)):
            environment[f"GEMINGA_TLS_{key}"] = f"{folder}/{key}.pem"
            content.write_to_path(environment[f"GEMINGA_TLS_{key}"])
        environment |= {"GEMINGA_AUTHENTICATION_METHODS": "token", "GEMINGA_AUTHENTICATION_ANONYMOUS_ROLE": "nobody",
                        "GEMINGA_AUTHENTICATION_SECRET_KEYS": f"data:;base64,{base64.b64encode(SECRET).decode()}"}
        command = [sys.executable, "-m", "geminga.supervisor.main", "serve", "--data-dir", f"{folder}/data"]
        command += ["--port", "0", "--http-port", "0"]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            ports = {}
            for line in running.stdout:
                for url in line.split():
                    if url.startswith("pulsar"):
                        scheme, _, rest = url.partition("://")
                        ports[scheme] = int(rest.rpartition(":")[2])
                if line.startswith("Publish"):
                    break
            try:
                yield Broker(running.pid, ports, environment["GEMINGA_TLS_TRUSTED"])
            finally:
                running.terminate()


def rate(broker: Broker, rounds: int, seconds: float) -> None:
    rates: dict[str, list[float]] = {"pulsar": [], "pulsar+ssl": []}
    for _ in range(rounds):
        for scheme, found in rates.items():
            trusted = broker.trusted if scheme == "pulsar+ssl" else ""
            load = Load("localhost", broker.ports[scheme], topic_names(1), size_bytes=SIZE, trusted=trusted)
            figures = measure(load, pid=broker.pid, warmup_s=WARMUP_S, seconds=seconds)
            print(
                f"         {scheme}: {figures.arrived_rate:,.0f} messages/s, "
                f"{figures.cpu_us:.2f} us of broker CPU each",
                file=sys.stderr,
            )
            found.append(figures.arrived_rate)
    plain, tls = map(statistics.median, rates.values())
    print(f"rate     {tls:,.0f} messages/s with TLS, {plain:,.0f} without: {tls / plain:.2f}")


class Idle(asyncio.Protocol):
    """A connection that shows a token, and answers PING."""

    def __init__(self, is_there: asyncio.Future):
        self._is_there = is_there

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        transport.write(wire.connect("token", jwt.encode({"sub": "somebody", "exp": time.time() + 3600}, SECRET)))

    def data_received(self, data: bytes) -> None:
        kind, _ = wire.command_of(data, 0)
        if kind == wire.PING:
            self._transport.write(wire.pong())
        elif not self._is_there.done():
            self._is_there.set_result(kind)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._is_there.done():
            self._is_there.set_exception(error or ConnectionResetError())


async def idle(broker: Broker, connections: int) -> None:
    loop, context, gate, transports = asyncio.get_running_loop(), ssl.create_default_context(cafile=broker.trusted), \
        asyncio.Semaphore(AT_ONCE), []

    async def connect(number: int) -> None:
        async with gate:
            is_there = loop.create_future()
            where = (f"127.0.0.{1 + number % ADDRESSES}", 0)
            transports.append(await loop.create_connection(lambda: Idle(is_there), "127.0.0.1",
                                                           broker.ports["pulsar+ssl"], ssl=context,
                                                           server_hostname="localhost", local_addr=where))
            assert await is_there == wire.CONNECTED

    before, began, busy = memory_bytes(broker.pid, "pss"), CLOCK(), cpu_seconds(broker.pid)
    await asyncio.gather(*map(connect, range(connections)))
    seconds, busy = CLOCK() - began, cpu_seconds(broker.pid) - busy
    await asyncio.sleep(SETTLE_S)
    idle_s, idle_busy = time.monotonic(), cpu_seconds(broker.pid)
    await asyncio.sleep(IDLE_S)
    idle_s, idle_busy = time.monotonic() - idle_s, cpu_seconds(broker.pid) - idle_busy
    after = memory_bytes(broker.pid, "pss")
    print(f"idle     {connections} connections in {seconds:.0f} s, {busy / connections * 1e3:.2f} ms of broker CPU "
          "each; all processes: "
          f"{after / MIB:.0f} MiB, {(after - before) / connections / 1024:.1f} KiB each; then {idle_busy / idle_s:.1%} "
          "of a core")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--idle", type=int, default=10_000)
    asked = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with broker() as running:
        if asked.rounds:
            rate(running, asked.rounds, asked.seconds)
        if asked.idle:
            asyncio.run(idle(running, asked.idle))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Measures what authentication costs, on a broker of its own.

    python tests/bench/handshakes.py [--connections 2000] [--idle 10000]

    KIND     CPU of the broker for a new connection, one after another: "none" is without authentication
    idle     CPU of so many connections whose tokens expire some time, while nothing happens
"""
import argparse
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from passlib.hash import bcrypt
from usage import cpu_seconds, memory_bytes

from geminga.supervisor.load import wire

SECRET = b"a secret key of more than 32 bytes"
SETTLE_S, IDLE_S = 2.0, 35.0
ADDRESSES = 20            # addresses of the loopback network: one address has too few ports for all connections


@contextmanager
def broker(**settings: str) -> Iterator[tuple[int, int]]:
    """Start a broker; yield (process id, port)."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {f"GEMINGA_AUTHENTICATION_{name}": text for name, text in settings.items()}
        command = [sys.executable, "-m", "geminga.supervisor.main", "serve", "--data-dir", f"{folder}/data"]
        command += ["--port", "0", "--http-port", "0"]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            port = 0
            for line in running.stdout:
                port = port or int(line.rpartition(":")[2]) if "pulsar://" in line else port
                if line.startswith("Publish"):
                    break
            yield running.pid, port
            running.terminate()


def connected(port: int, method: str, data: bytes, number: int = 0) -> socket.socket:
    link = socket.socket()
    link.bind((f"127.0.0.{1 + number % ADDRESSES}", 0))
    link.connect(("127.0.0.1", port))
    link.sendall(wire.frame(wire.CONNECT, wire.string(1, "geminga-bench") + wire.string(3, data)
                            + wire.number(4, wire.PROTOCOL_VERSION) +
                            wire.string(5, method)))
    assert wire.command_of(link.recv(4096), 0)[0] == wire.CONNECTED
    return link


def report(name: str, pid: int, port: int, method: str, data: bytes, connections: int) -> None:
    connected(port, method, data).close()
    time.sleep(SETTLE_S)
    before = cpu_seconds(pid)
    for number in range(connections):
        connected(port, method, data, number).close()
    time.sleep(SETTLE_S)
    print(f"{name:<8} {(cpu_seconds(pid) - before) / connections * 1e3:.2f} ms of CPU for a connection", flush=True)


def idle(pid: int, port: int, data: bytes, connections: int) -> None:
    before = memory_bytes(pid, "pss")
    links = [connected(port, "token", data, number) for number in range(connections)]
    time.sleep(SETTLE_S)
    began, busy = time.monotonic(), cpu_seconds(pid)
    time.sleep(IDLE_S)
    seconds, busy = time.monotonic() - began, cpu_seconds(pid) - busy
    kib = (memory_bytes(pid, "pss") - before) / connections / 1024
    print(f"idle     {connections} connections: {busy / seconds:.1%} of a core, {kib:.1f} KiB each", flush=True)
    for link in links:
        link.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--idle", type=int, default=10_000)
    given = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with broker() as (pid, port):
        report("none", pid, port, "none", b"", given.connections)
    claims = {"sub": "bench", "exp": int(time.time()) + 86_400}
    keys = {"HS256": SECRET, "RS256": rsa.generate_private_key(65537, 2048),
            "ES256": ec.generate_private_key(ec.SECP256R1())}
    with tempfile.TemporaryDirectory() as folder:
        for name, key in keys.items():
            path = Path(folder, name)
            path.write_bytes(key if isinstance(key, bytes) else
                             key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
            which = {"SECRET_KEYS": str(path)} if name == "HS256" else {"PUBLIC_KEYS": str(path),
                                                                        "PUBLIC_KEY_ALGORITHM": name}
            with broker(METHODS="token", **which) as (pid, port):
                token = jwt.encode(claims, key, name).encode()
                report(name, pid, port, "token", token, given.connections)
                if name == "HS256" and given.idle:
                    idle(pid, port, token, given.idle)
        users = Path(folder, "htpasswd")
        users.write_text(f"bench:{bcrypt.using(rounds=12).hash('bench')}\n")
        with broker(METHODS="basic", USERS=str(users)) as (pid, port):
            report("basic", pid, port, "basic", b"bench:bench", given.connections)


if __name__ == "__main__":
    main()

"""The worker's process: it begins with options and sockets from the supervisor, and follows the supervisor's messages.

Its loop is asyncio with uvloop, which reads straight into the worker's buffer and keeps what a socket cannot take yet.
"""
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import uvloop

from geminga.storage.catalogue.catalogue import open_catalogue
from geminga.storage.options import StorageOptions
from geminga.storage.runtime.control import Control, unpacked
from geminga.storage.runtime.counters import Counters
from geminga.storage.runtime.lease import Lease
from geminga.storage.runtime.log import log
from geminga.workers.addresses import Addresses
from geminga.workers.clients.client import Client
from geminga.workers.clients.commands import HANDLERS
from geminga.workers.directory.directory import Directory
from geminga.workers.directory.schemas import SchemaThread
from geminga.workers.identity.authentication import Authenticator
from geminga.workers.identity.authorization import Authorization
from geminga.workers.identity.options import AuthorizationOptions
from geminga.workers.options import WorkerOptions
from geminga.workers.owners.following import follow
from geminga.workers.ports.admission import Admission
from geminga.workers.process.listeners import Listeners
from geminga.workers.process.worker import Worker, WorkerConfig


def run(serial: int, owners: int, run_dir: Path, data_dir: Path, options: WorkerOptions, listeners: Listeners,
        addresses: Addresses, control: Control, counters: Counters, admission: Admission, storage: StorageOptions,
        authenticator: Authenticator, rights: AuthorizationOptions, lease: Lease) -> None:
    """Run a worker until the supervisor says stop, or ends."""
    begin_counters(counters)
    admission.clear()
    catalogue = open_catalogue(data_dir / "catalogue.sqlite")
    directory = Directory(catalogue, addresses, storage, owners)
    if listeners.certificates is not None:
        listeners.certificates.counters = counters
    schemas = SchemaThread(data_dir / "catalogue.sqlite", storage)
    authorization = Authorization(rights, catalogue)

    def make() -> Worker:
        return Worker(serial, owners, run_dir, data_dir, options, directory, schemas, counters, admission,
                      authenticator, authorization, lease)

    with closing(catalogue), closing(schemas):
        uvloop.run(_serve(make, listeners, control))


def begin_counters(counters: Counters) -> None:
    """Reset what shared counters say of the former process's connections and requests: they ended with it."""
    counters.set("connections_closed", counters.read()["connections_opened"])
    for name in ("lookups_waiting", "commands_waiting", "connections_throttled", "in_flight_bytes"):
        counters.set(name, 0)


async def _serve(make: Callable[[], Worker], listeners: Listeners, control: Control) -> None:
    worker = make()

    def configure(text: str) -> None:
        config = WorkerConfig(*unpacked(text))
        if listeners.certificates is not None:
            listeners.certificates.configure(config.identity.tls)
        worker.configure(config)
        log.begin(config.log)

    stopping = follow(control, worker, configure, worker.drain, worker.hang_up, listeners.refuse)
    await listeners.serve(
        lambda announced: Client(worker, HANDLERS, announced=announced).stream, worker.directory.addresses.ports,
        "pulsar", lambda: Client(worker, HANDLERS, is_inside=True).stream, has_proxies=worker.options.proxy_protocol)
    worker.counters.set("serving_pid", os.getpid())
    control.send(ready={})
    await stopping.wait()
    listeners.close()
    await worker.stop()

"""Brokers of a source tree, or of one of its commits, that are served for a benchmark."""
import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trustme
from link import BrokerError
from load import address
from rows import Broker

ROOT = Path(__file__).parents[2]
LAYERS = ("proto", "storage", "workers", "supervisor")


def source_of(commit: str | None) -> Path:
    """Return the folder with the package `geminga` of a commit, which is removed at the end; None: of this tree.

    Raises BrokerError.
    """
    if commit is None:
        return ROOT / ".source"
    folder = Path(tempfile.mkdtemp(prefix="geminga-bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    archive = subprocess.run(["git", "-C", ROOT, "archive", commit], capture_output=True, check=False)
    if archive.returncode:
        raise BrokerError(f"commit {commit}: {archive.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    package = folder / "source" / "geminga"
    package.mkdir(parents=True)
    for layer in LAYERS:      # older commits have no such links of their own
        (package / layer).symlink_to(folder / layer)
    return package.parent


@contextmanager
def serving(name: str, source: Path) -> Iterator[Broker]:
    """Serve the package in that folder on ports of its own, with TLS too.  Raises BrokerError."""
    with tempfile.TemporaryDirectory(prefix="geminga-bench-") as folder:
        environment = os.environ | {"PYTHONPATH": str(source), "PYTHONPYCACHEPREFIX": f"{folder}/cache"}
        environment |= {"GEMINGA_TLS_PORT": "0", "GEMINGA_TLS_HTTP_PORT": "-1"} | _certificate(folder)
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-m", "geminga.supervisor.main", "serve", "--data-dir", f"{folder}/data",
                   "--port", "0", "--http-port", "0"]
        with (open(f"{folder}/log", "w") as said, subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=said, text=True, cwd=folder) as running):
            assert running.stdout is not None
            ports: dict[str, tuple[str, int]] = {}
            for line in running.stdout:
                for url in line.split():
                    scheme, is_url, rest = url.partition("://")
                    if is_url and scheme in ("pulsar", "pulsar+ssl"):
                        ports[scheme] = address(rest)
                if line.startswith("Publish"):
                    break
            try:
                if "pulsar" not in ports:
                    raise BrokerError(f"{source} does not serve: exit status {running.wait()}")
                host, port = ports["pulsar"]
                yield Broker(name, host, port, running.pid, ports["pulsar+ssl"][1], f"{folder}/TRUSTED.pem")
            finally:
                running.terminate()


def _certificate(folder: str) -> dict[str, str]:
    """Write a certificate for this host; return the configuration that uses it."""
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    for key, content in (("CERTIFICATE", certificate.cert_chain_pems[0]), ("KEY", certificate.private_key_pem),
                         ("TRUSTED", authority.cert_pem)):
        content.write_to_path(f"{folder}/{key}.pem")
    return {f"GEMINGA_TLS_{key}": f"{folder}/{key}.pem" for key in ("CERTIFICATE", "KEY")}

"""A debug bundle: one archive of facts about a broker, for finding out what is wrong with it, without secrets.

The broker may hang or be down: a part that cannot be made is listed with its reason, and every part has a time limit.
"""
import contextlib
import gzip
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path

from geminga.storage import format
from geminga.storage.catalogue.layout import VERSION as CATALOGUE_VERSION
from geminga.storage.offline.verify_catalogue import read_names
from geminga.supervisor.configuration.config import Config
from geminga.supervisor.host import stacks
from geminga.supervisor.tasks.job_socket import REPORT
from geminga.workers.identity.options import Secret
from geminga.workers.pulsar_client.credentials import Credentials
from geminga.workers.pulsar_client.rest import Broker, NotReachable, Refused, topic_path

_HTTP_SECONDS, _ALL_HTTP_SECONDS = 3.0, 8.0
_ALL_COMMANDS_SECONDS, _JOURNAL_SECONDS, _FOLDER_SECONDS = 10.0, 4.0, 3.0
_TOPICS_MAX = 10             # number of topics with stats, the busiest ones
_FOLDERS_MAX = 50            # folders of partitions, the largest ones
_LOG_LINES = 5_000
_OF_PROCESSES = ("status", "limits", "io", "stat", "sched", "schedstat", "wchan", "smaps_rollup", "cgroup",
                 "oom_score_adj")
_OF_HOST = ("meminfo", "loadavg", "vmstat", "stat", "mounts", "diskstats", "pressure/cpu", "pressure/io",
            "pressure/memory", "sys/fs/file-nr", "net/sockstat", "version", "uptime")
_STARS = "*****"
# Names of environment variables with secret values.
_NAMED = re.compile("TOKEN|PASS|SECRET|KEY|PARAMS|USERS|CRED", re.IGNORECASE)
# Texts that look like secrets, wherever they stand: tokens, HTTP credentials, private keys, hashes of passwords.
_LOOKS = re.compile(r"eyJ[\w-]{5,}\.[\w-]+\.[\w-]*|(?<=Bearer )\S+|(?<=Basic )\S+|"
                    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*-----|"
                    r"\$(?:2[abxy]|apr1|[156])\$[^\s:\"']+|\{SHA\}[\w+/=]+|(?<=data:;base64,)[\w+/=]+", re.DOTALL)


def write(target: Path, config: Config, admin_url: str, credentials: Credentials, options: list[str],
          environ: Mapping[str, str], as_owner: Callable[[], None] = lambda: None) -> list[str]:
    """Write the archive of a debug bundle to a new file; return a line for each missing part.  Raises OSError.

    `options` are those of `geminga config show`.  as_owner: gives root's rights up for those of the folder's owner.
    The archive is made before, so that it is root's, and holds the journal, which the owner may not read.  If it
    raises an error, no archive is left.
    """
    hidden, missing = secrets(config, environ, credentials), []
    broker = Broker(admin_url, _HTTP_SECONDS, credentials)
    began = time.time()
    with open(target, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file, \
            gzip.GzipFile("", "wb", 6, file) as packed, tarfile.open(fileobj=packed, mode="w") as archive:

        def add(name: str, part: Callable[[], str]) -> None:
            try:
                text = part()
            except Exception as error:      # a bundle is made when something is broken, so any part may fail
                missing.append(f"{name}: {error or type(error).__name__}")
            else:
                _add(archive, name, masked(text, hidden), began)

        add("log.txt", _journal)
        try:
            as_owner()
        except BaseException:
            target.unlink()
            raise
        for name, part in _parts(config, broker, admin_url, options, environ):
            add(name, part)
        _add(archive, "missing.txt", masked("\n".join(missing), hidden), began)
    return missing


def _add(archive: tarfile.TarFile, name: str, text: str, when: float) -> None:
    data = text.encode(errors="replace")
    member = tarfile.TarInfo(f"geminga-debug/{name}")
    member.size, member.mtime, member.mode = len(data), when, 0o600
    archive.addfile(member, io.BytesIO(data))


# -- secrets

def secrets(config: Config, environ: Mapping[str, str], credentials: Credentials) -> list[str]:
    """Return the secret texts that a debug bundle has to mask, the longest first."""
    hidden = {value for name, value in environ.items()
              if name.startswith(("GEMINGA_", "PULSAR_")) and _NAMED.search(name)}
    authentication = config.authentication
    for text in (authentication.users, *authentication.secret_keys, *authentication.public_keys,
                 Secret(config.tls.key)):
        path = Path(text.removeprefix("file://").removeprefix("file:"))
        if text.startswith("data:"):
            hidden |= {str(text), text.partition(",")[2]}
        else:
            with contextlib.suppress(OSError, ValueError):
                hidden |= _lines(path.read_bytes().decode("latin-1"))
    for header in credentials.headers():
        hidden |= {header.partition(": ")[2], header.rpartition(" ")[2]}
    hidden |= {part for text in list(hidden) for part in _lines(text)}
    return sorted((text for text in hidden if len(text) >= 6), key=len, reverse=True)


def _lines(text: str) -> set[str]:
    """Return the secret texts in a file of keys or users: its lines, and the hash behind each user's name."""
    lines = {line.strip() for line in text.splitlines() if line.strip() and not line.startswith("-----")}
    return lines | {line.partition(":")[2] for line in lines if ":" in line}


def masked(text: str, hidden: list[str]) -> str:
    """Return a text with stars in place of the hidden texts, and of texts that look like a secret."""
    for one in hidden:
        text = text.replace(one, _STARS)
    return _LOOKS.sub(_STARS, text)


# -- parts

def _stacks(data_dir: Path, pid: int) -> str:
    return stacks.ask(data_dir, pid) or _refuse("it did not answer SIGUSR1")


def _parts(config: Config, broker: Broker, admin_url: str, options: list[str],
           environ: Mapping[str, str]) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the parts of a debug bundle: (name in the archive, function that makes its text)."""
    data_dir = config.data_dir
    for pid, comm in stacks.processes(data_dir).items():      # first, as other parts change what the processes do
        yield f"processes/{comm}-{pid}/stacks.txt", partial(_stacks, data_dir, pid)
        yield f"processes/{comm}-{pid}/proc.txt", partial(_process, pid)
    until = time.monotonic() + _ALL_COMMANDS_SECONDS

    def command(*words: str) -> str:
        return _run(until - time.monotonic(), sys.executable, "-P", "-m", "geminga.supervisor.main", *words)

    yield "versions.txt", lambda: _versions(data_dir)
    yield "configuration.txt", lambda: command("config", "show", *options)
    yield "environment.txt", lambda: "".join(
        f"{name}={_STARS if _NAMED.search(name) else value}\n" for name, value in sorted(environ.items())
        if name.startswith(("GEMINGA_", "PULSAR_", "PYTHON", "LC_", "LANG")))
    yield "host.txt", _host
    yield "folder.txt", lambda: _folder(data_dir)
    yield "catalogue.txt", lambda: _catalogue(data_dir)
    yield "sockets.txt", lambda: _run(until - time.monotonic(), "ss", "-a", "-n", "-x", "-t", "-p")
    yield "night.json", (data_dir / REPORT).read_text
    yield "tune.txt", lambda: command("tune", *options)
    yield "status.txt", lambda: command("status", "--admin-url", admin_url)      # last: a hanging one is waited for
    yield from _asked(broker)


def _asked(broker: Broker) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the parts of a debug bundle that come over HTTP: (name in the archive, function that makes its text).

    After a request that the broker did not answer, no more are sent.
    """
    until = time.monotonic() + _ALL_HTTP_SECONDS

    def ask(path: str) -> str:
        nonlocal until
        if time.monotonic() > until:
            _refuse("not asked: the broker did not answer an earlier question in time")
        try:
            return broker.ask("GET", path).body.decode(errors="replace")
        except NotReachable:
            until = 0
            raise

    yield "http/metrics.txt", lambda: ask("/metrics")
    for name, path in (("brokers", "/admin/v2/brokers/ready"),
                       ("configuration", "/admin/v2/brokers/configuration/runtime"),
                       ("changed", "/admin/v2/brokers/configuration/values"),
                       ("load", "/admin/v2/broker-stats/load-report"),
                       ("status", "/ops/v1/status"), ("compaction", "/ops/v1/compaction/report")):
        yield f"http/{name}.json", partial(ask, path)
    try:
        topics = busiest(ask("/metrics"))
    except (Refused, NotReachable, ValueError):
        return
    for topic in topics:
        for kind in ("stats", "internalStats"):
            path = f"/admin/v2/{topic_path(topic)}/{kind}"
            yield f"topics/{topic.replace('/', '_')}/{kind}.json", partial(ask, path)


def busiest(metrics: str) -> list[str]:
    """Return the topics or partitions with the highest rates, in and out together, from the text of /metrics."""
    rates: dict[str, float] = {}
    for labels, value in re.findall(r"^pulsar_rate_(?:in|out)\{([^}]*)\} (\S+)", metrics, re.MULTILINE):
        if topic := re.search(r'topic="([^"]+)"', labels):
            rates[topic[1]] = rates.get(topic[1], 0) + float(value)
    return sorted(rates, key=lambda topic: -rates[topic])[:_TOPICS_MAX]


def _refuse(why: str) -> str:
    raise ValueError(why)


def _journal() -> str:
    return _run(_JOURNAL_SECONDS, "journalctl", "--unit", "geminga*", "--lines", str(_LOG_LINES), "--no-pager",
                "--output", "short-precise")


def _run(seconds: float, *command: str) -> str:
    """Run a command, which is killed after `seconds`, and return its standard output and error output."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=max(0.0, seconds),
                          check=False, stdin=subprocess.DEVNULL)
    return done.stdout + done.stderr


def _versions(data_dir: Path) -> str:
    number = format.format_path(data_dir)
    lines = [f"geminga {metadata.version('geminga')}", f"python {sys.version}", platform.platform(),
             f"formats: folder {format.FOLDER_VERSION}, files {format.VERSION}, catalogue {CATALOGUE_VERSION}",
             f"folder's: {number.read_text().strip() if number.exists() else 'none'}"]
    return "\n".join([*lines, *sorted(f"{one.name} {one.version}" for one in metadata.distributions())])


def _process(pid: int) -> str:
    place, said = Path("/proc", str(pid)), []
    for name in _OF_PROCESSES:
        with contextlib.suppress(OSError):
            said.append(f"== {name}\n{(place / name).read_text()}")
    descriptors = len(list((place / "fd").iterdir()))
    threads = [" ".join([thread.name, *((thread / name).read_text().strip() for name in ("comm", "wchan"))])
               for thread in (place / "task").iterdir()]
    return "\n".join([f"{descriptors} descriptors", *threads, *said])


def _host() -> str:
    said = []
    for name in _OF_HOST:
        with contextlib.suppress(OSError):
            said.append(f"== {name}\n{Path('/proc', name).read_text()}")
    return "\n".join([f"{os.cpu_count()} cores", *said])


def _folder(data_dir: Path) -> str:
    """Return the number of files and bytes in each folder, as text.

    After _FOLDER_SECONDS the folders not visited yet are left out.
    """
    usage, system, until = shutil.disk_usage(data_dir), os.statvfs(data_dir), time.monotonic() + _FOLDER_SECONDS
    sizes: dict[str, list[int]] = {}
    for above, _, names in os.walk(data_dir):
        parts = Path(above).relative_to(data_dir).parts
        total = sizes.setdefault("/".join(parts[:2]), [0, 0, 0])
        for name in names:
            with contextlib.suppress(OSError):
                status = os.stat(Path(above, name))
                total[:] = total[0] + 1, total[1] + status.st_size, total[2] + status.st_blocks * 512
        if time.monotonic() > until:
            sizes["... and more folders, which were not visited in time"] = [0, 0, 0]
            break
    largest = sorted(sizes.items(), key=lambda one: (one[0].startswith("partitions/"), -one[1][2]))[:_FOLDERS_MAX]
    rows = [f"{total[0]:>9} files {total[1]:>16,} bytes {total[2]:>16,} on disk  {name or '.'}"
            for name, total in largest]
    return "\n".join([f"disk: {usage.total:,} bytes, {usage.free:,} free; "
                      f"inodes: {system.f_files:,}, {system.f_ffree:,} free", *rows])


def _catalogue(data_dir: Path) -> str:
    names = read_names(data_dir, is_served=True)
    return "\n".join([f"{len(names.partitions)} partitions; found: {len(names.findings)}", *map(str, names.findings)])

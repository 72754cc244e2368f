"""Folders that a command cannot use are refused in one line, and everything it makes is private to its user."""
import grp
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import bcrypt
import pytest
import trustme

from ..harness import HANG_SECONDS, Broker, eventually, request, unique_topic
from .test_serve import GEMINGA, run

pytestmark = pytest.mark.slow

NOBODY = 65534
SERVE = ("serve", "--port", 0, "--http-port", 0, "--data-dir")
# Commands that take a folder, and their exit statuses if they cannot use it.
COMMANDS = {SERVE: {2}, ("nightly", "--data-dir"): {1, 2}, ("nightly", "plan", "--data-dir"): {1, 2}, ("verify",): {5},
            ("nightly", "report", "--data-dir"): {1, 2}, ("verify", "--repair"): {5}, ("upgrade", "check"): {5},
            ("reload", "--data-dir"): {1}, ("drain", "--data-dir"): {1}, ("config", "check", "--data-dir"): {2},
            ("ledger", "dump"): {2, 5}}


@pytest.fixture
def place():
    """A folder that everybody may look into."""
    folder = Path(tempfile.mkdtemp(prefix="geminga-places-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def as_nobody():
    """as_nobody(words...): as `run`, by a user without rights."""
    if os.geteuid():
        return run
    them = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    if subprocess.run([GEMINGA, "--help"], capture_output=True, check=False, **them).returncode:
        pytest.skip("the checkout is in a folder that others may not read")

    def run_as_nobody(*words):
        done = subprocess.run([GEMINGA, *map(str, words)], capture_output=True, text=True,
                              timeout=HANG_SECONDS, check=False, **them)
        return done.returncode, done.stdout, done.stderr.splitlines()
    return run_as_nobody


def complaint(done):
    """Return (exit status, the one line of complaint)."""
    status, printed, complaints = done
    said = [*printed.splitlines(), *complaints]
    complaints = [line for line in said if "optimisation" not in line and not line.startswith("0 partitions")]
    assert len(complaints) == 1 and "Traceback" not in complaints[0], complaints
    return status, complaints[0]


def a_file(place):
    (place / "data").write_text("of somebody")
    return place / "data"


def below_a_file(place):
    return a_file(place) / "below"


def a_pipe(place):
    os.mkfifo(place / "data")
    return place / "data"


def a_loop(place):
    (place / "data").symlink_to(place / "data")
    return place / "data"


def each_with(*kinds):
    """Return parameters of a test: each command with one kind of folder, and `serve` with every kind."""
    rows = [(command, kinds[0]) for command in COMMANDS] + [(SERVE, kind) for kind in kinds[1:]]
    return pytest.mark.parametrize(("command", "kind"), rows, ids=lambda one: getattr(one, "__name__", str(one)))


@each_with(a_file, below_a_file, a_pipe, a_loop)
def test_what_is_no_folder_is_one_line(place, kind, command):
    data_dir = kind(place)
    status, line = complaint(run(*command, data_dir))
    assert status in COMMANDS[command] and str(place / "data") in line


def not_to_be_looked_into(place):
    made = place / "above" / "data"
    made.mkdir(parents=True)
    (made / "catalogue.sqlite").touch()
    (place / "above").chmod(0o700)
    return made


def not_to_be_read(place):
    (place / "data").mkdir()
    (place / "data" / "catalogue.sqlite").touch()
    (place / "data").chmod(0o700)
    return place / "data"


@each_with(not_to_be_looked_into, not_to_be_read)
def test_a_folder_of_somebody_else_is_one_line(place, as_nobody, kind, command):
    data_dir = kind(place)
    status, line = complaint(as_nobody(*command, data_dir))
    assert status in COMMANDS[command] | {1} and str(data_dir) in line and status


def missing(place):
    return place / "data"


def missing_below(place):
    return place / "one" / "two" / "data"


def read_only(place):
    (place / "data").mkdir()
    return place / "data"


def read_only_lock(place):
    (place / "data").mkdir()
    (place / "data").chmod(0o777)
    (place / "data" / "lock").touch()
    return place / "data"


def read_only_catalogue(place):
    (place / "data").mkdir()
    (place / "data").chmod(0o777)
    (place / "data" / "catalogue.sqlite").touch(0o444)
    return place / "data"


@pytest.mark.parametrize("kind", [missing, missing_below, read_only, read_only_lock])
@pytest.mark.parametrize("command", [SERVE, ("config", "check", "--data-dir")],
                         ids=lambda words: "-".join(map(str, words)))
def test_a_folder_that_cannot_be_written_to_is_one_line_and_no_start(place, as_nobody, kind, command):
    """Nothing is created in it."""
    data_dir = kind(place)
    before = sorted(place.rglob("*"))
    status, line = complaint(as_nobody(*command, data_dir))
    assert status == 2 and str(place) in line and "data_dir" in line
    assert sorted(place.rglob("*")) == before


def test_a_catalogue_that_cannot_be_written_is_one_line(place, as_nobody):
    status, line = complaint(as_nobody(*SERVE, read_only_catalogue(place)))
    assert status and "catalogue.sqlite" in line


# -- what is made

@pytest.fixture
def open_umask():
    """A umask under which files are everybody's unless their maker takes care."""
    before = os.umask(0)
    yield
    os.umask(before)


def shown_to_others(folder):
    """Return the files that others may access, with their modes."""
    return {str(path.relative_to(folder)): oct(path.lstat().st_mode & 0o777) for path in [folder, *folder.rglob("*")]
            if path.lstat().st_mode & 0o077 and not path.is_symlink()}


@pytest.fixture
def elsewhere():
    """A folder on another file system than the data, so that nothing can be hard-linked there."""
    folder = Path(tempfile.mkdtemp(prefix="geminga-places-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


def test_what_a_broker_makes_is_its_users_alone_whatever_the_umask(open_umask, tmp_path, elsewhere):
    """This holds for the folder, sockets, audit log, stacks, backups on any file system, and restored folders."""
    broker = Broker(tmp_path / "above" / "data")
    (tmp_path / "above").mkdir()
    try:
        broker.start()
        assert run("publish", "--url", broker.service_url, unique_topic("mine"), "hello")[0] == 0
        assert request("PUT", broker.http_url + "/admin/v2/tenants/acme", b"{}")[0] in (204, 412)
        assert request("PUT", broker.http_url + "/admin/v2/namespaces/public/other")[0] == 204
        eventually(lambda: (broker.data_dir / "audit.log").exists(), what="the audit log")
        made = {path: path.lstat().st_mode for path in broker.data_dir.rglob("*")}
        assert {path.name for path, mode in made.items() if stat.S_ISSOCK(mode)} >= {"supervisor", "socket"}
        assert {"catalogue.sqlite", "audit.log", "stacks", "lock"} <= {path.name for path in made}
        assert shown_to_others(broker.data_dir) == {}
        for parent in (tmp_path / "backups", elsewhere / "backups"):
            assert run("backup", "--data-dir", broker.data_dir, parent)[0] == 0
            assert shown_to_others(parent) == {}
            [backup] = [path for path in parent.iterdir() if path.name != "lock"]
            assert run("restore", backup, parent / "restored")[0] == 0
            assert shown_to_others(parent / "restored") == {}
        assert run("nightly", "--engine", "here", "--data-dir", broker.data_dir)[0] == 0
        status, _printed, _ = run("debug", "bundle", "--data-dir", broker.data_dir, "--admin-url", broker.http_url,
                                  tmp_path / "bundle")
        assert status == 0 and (tmp_path / "bundle").stat().st_mode & 0o777 == 0o600
        assert shown_to_others(broker.data_dir) == {}
        assert broker.stop() == 0
    finally:
        broker.close()
    assert run("verify", "--repair", broker.data_dir)[0] == 0
    assert shown_to_others(broker.data_dir) == {}


def test_nobody_else_may_ask_a_broker_by_its_sockets(place, as_nobody):
    """Others may not ask for a reload, a drain, a compaction or a backup, and cannot read the data."""
    if os.geteuid():
        pytest.skip("needs another user than the broker's")
    broker = Broker(place / "data")
    try:
        broker.start()
        sockets = [path for path in broker.data_dir.rglob("*") if path.is_socket()]
        assert len(sockets) > 2
        script = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
        broker.data_dir.chmod(0o755)      # an operator may want others to see how large the folder is
        for path in sockets:
            done = subprocess.run(["/usr/bin/python3", "-c", script, path], user=NOBODY, group=NOBODY, extra_groups=[],
                                  capture_output=True, text=True, check=False)
            assert "PermissionError" in done.stderr, path
        for words in (("reload",), ("drain",), ("backup", place / "stolen")):
            status, line = complaint(as_nobody(words[0], "--data-dir", broker.data_dir, *words[1:]))
            assert status and str(broker.data_dir) in line
        assert broker.stop() == 0
    finally:
        broker.close()


# -- a configuration as the broker's user sees it

@pytest.fixture
def configured(place):
    """A configuration whose files everybody can read, and these files by key."""
    issued = trustme.CA().issue_cert("localhost")
    (place / "cert").write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    (place / "key").write_bytes(issued.private_key_pem.bytes())
    (place / "trusted").write_bytes(trustme.CA().cert_pem.bytes())
    (place / "secret").write_bytes(os.urandom(32))
    (place / "users").write_text(f"boss:{bcrypt.hashpw(b'secret', bcrypt.gensalt(4)).decode()}\n")
    (place / "geminga.toml").write_text(f"""
[tls]
certificate = "{place}/cert"
key = "{place}/key"
trusted = "{place}/trusted"
client_certificates = "wanted"
[authentication]
methods = ["token", "basic"]
secret_keys = ["{place}/secret"]
users = "{place}/users"
""")
    (place / "data").mkdir()
    os.chown(place / "data", NOBODY, NOBODY)
    for path in place.iterdir():
        path.chmod(0o755 if path.is_dir() else 0o644)
    return {"tls.certificate": place / "cert", "tls.key": place / "key", "tls.trusted": place / "trusted",
            "users": place / "users",
            "secret_keys": place / "secret", "": place / "geminga.toml", "data_dir": place / "data"}


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="root is who may read what the broker's user may not")


def check(place, *more):
    return run("config", "check", "--config", place / "geminga.toml", "--data-dir", place / "data", *more)


@needs_root
@pytest.mark.parametrize("key", ["tls.certificate", "tls.key", "tls.trusted", "users", "secret_keys", "", "data_dir"])
def test_a_configuration_is_looked_at_with_the_rights_of_the_brokers_user(place, configured, as_nobody, key):
    """Mode, owner, group and access list count, for each named file and for the folders above it."""
    mine, path = ("--user", pwd.getpwuid(NOBODY).pw_name), configured[key]
    assert check(place, *mine)[::2] == (0, [])
    group = grp.getgrgid(os.stat(path).st_gid).gr_gid
    path.chmod(0o700 if path.is_dir() else 0o600)
    os.chown(path, 0, group)
    assert check(place)[::2] == (0, [])      # root can read everything
    status, line = complaint(check(place, *mine))
    assert status == 2 and key in line and str(path) in line and "as user" in line
    os.chown(path, 0, NOBODY)
    path.chmod(0o770 if path.is_dir() else 0o640)
    assert check(place, *mine)[0] == 0


@needs_root
def test_the_folders_above_a_key_count_too(place, configured):
    (place / "private").mkdir(0o700)
    moved = configured["secret_keys"].rename(place / "private" / "secret")
    (place / "geminga.toml").write_text((place / "geminga.toml").read_text().replace(f"{place}/secret", str(moved)))
    assert check(place)[0] == 0
    status, line = complaint(check(place, "--user", pwd.getpwuid(NOBODY).pw_name))
    assert status == 2 and "secret_keys" in line and str(moved) in line


def test_a_user_that_is_not_there_or_that_one_cannot_be_is_one_line(place, as_nobody):
    assert run("config", "check", "--user", "no-such-user")[0] == 2
    if not os.geteuid():
        status, line = complaint(as_nobody("config", "check", "--data-dir", place / "data", "--user", "root"))
        assert status == 2 and "root" in line

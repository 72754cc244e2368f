"""Mistakes of users at the start, in configurations and with folders: each is answered in one line.

The line names what is wrong, as its author wrote it, and what to do.  The exit status is 2 for a configuration or
place that cannot be used, and 1 for a port that another process has.
"""
import os
import re
import socket
import subprocess

import pytest

from geminga.supervisor.main import main

from ..harness import HANG_SECONDS
from .test_serve import GEMINGA
from .test_usable_paths import NOBODY, as_nobody, place  # noqa: F401 - fixtures

pytestmark = pytest.mark.slow

ANOTHER = "name another folder with --data-dir"
# (lines of geminga.toml, pattern of the answer)
TOML = [
    ("data_dir = 3", r"geminga.toml:1: data_dir must be a path, not 3"),
    ("data_dri = 'x'", r"geminga.toml:1: data_dri is not a key, did you mean data_dir\?"),
    ("[storag]\nretention_s = 1", r":2: storag.retention_s is not a key, did you mean storage.retention_s\?"),
    ("retention_s = 3", r":1: retention_s is not a key, did you mean storage.retention_s\?"),
    ("maxMessageSize = 3", r":1: maxMessageSize is not a key: it is Pulsar's name of network.max_message_size"),
    ("[network]\nport = 6650.0", r":2: network.port must be a whole number, not 6650.0"),
    ("[network]\nbind = 'a b'", r":2: network.bind must be an address, not 'a b'"),
    ("[network]\nbind = ['::1']", r":2: network.bind must be text"),
    ("[storage]\nretention_s = '1 fortnight'", r":2: storage.retention_s must be a time: .*10s, 5m or 1d, not '1 fort"),
    ("[storage]\nretention_s = '500ms'", r":2: storage.retention_s must be a time: a number of seconds"),
    ("[storage]\nretention_s = '-1d'", r":2: storage.retention_s must be a time"),
    ("[storage]\nretention_s = 1.5", r":2: storage.retention_s must be a time: .*, not 1.5"),
    ("[storage]\nretention_s = true", r":2: storage.retention_s must be a time: .*, not True"),
    ("[storage]\nretention_s = '999y'", r":2: storage.retention_s must be -1 to \d+, not \d+"),
    ("[storage]\nretention_bytes = '10 pounds'", r":2: storage.retention_bytes must be a size: .*10M or 2G"),
    ("[storage]\nsync = true", r":2: storage.sync must be text, not True"),
    ("[log]\nlevel = 'loud'", r":2: log.level must be error, warning, info, debug, not 'loud'"),
    ("[tls]\ncertificate = 'none.pem'\nkey = 'none.pem'", r"tls.certificate cannot be read: none.pem: No such "),
    ("[tls]\nkey = 'none.pem'", r":2: tls.key needs tls.certificate"),
    ("[authentication]\nmethods = ['token']", r":2: authentication.methods needs authentication.secret_keys or"),
    ("[authentication]\nmethods = ['tokens']", r":2: authentication.methods must be token, basic or tls, not 'tokens'"),
    ("[authentication]\nmethods = ['token']\nsecret_keys = 'none.key'", r"authentication.secret_keys is neither "),
    ("[authentication]\nmethods = ['basic']\nusers = 'none.htpasswd'", r"authentication.users is neither a file that "),
    ("[authentication]\nmethods = ['tls']\n[authentication.oidc]\nissuers = ['https://a']\naudiences = ['b']\n"
     "[tls]\ncertificate = 'a'\nkey = 'a'\ntrusted = 'a'",
     r":4: authentication.oidc.issuers needs token in authentication.methods"),
    ("[authentication.oidc]\nconsole_client_id = 'a'",
     r":2: authentication.oidc.console_client_id needs authentication.oidc.issuers"),
    ("[authorization]\nenabled = true", r":2: authorization.enabled needs authentication.methods"),
    ("workers = ", r"geminga.toml: is not TOML: .*line 1"),
    ("workers = 2\nworkers = 3", r"geminga.toml: is not TOML: .*line 2"),
]
PULSARS = [
    ("maxMessageSize=big", r"broker.conf:1: maxMessageSize: network.max_message_size must be a size: .*, not 'big'"),
    ("defaultRetentionTimeInMinutes=1 fortnight", r":1: defaultRetentionTimeInMinutes: .* must be a time"),
    ("tlsEnabled=true", r"broker.conf:1: tlsEnabled: needs tlsCertificateFilePath"),
]


def run(*words, user=None, **environ):
    """Run a command as root or as a user without rights; return (exit status, lines of output)."""
    them = {} if user is None or os.geteuid() else {"user": user, "group": user, "extra_groups": []}
    done = subprocess.run([GEMINGA, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=HANG_SECONDS, check=False, env=os.environ | environ, **them)
    return done.returncode, [line for line in done.stdout.splitlines() if "without optimisation" not in line]


def refused(answer, status, pattern):
    """The answer is one line with the pattern, and the exit status."""
    assert len(answer[1]) == 1 and "Traceback" not in answer[1][0], answer
    assert re.search(pattern, answer[1][0]), answer
    assert answer[0] == status, answer


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """A path at which no mistake may make a folder."""
    folder = tmp_path_factory.mktemp("mistakes") / "data"
    yield folder
    assert not folder.exists()


@pytest.mark.parametrize(("name", "text", "pattern"), [("geminga.toml", *row) for row in TOML] +
                         [("broker.conf", *row) for row in PULSARS])
def test_a_wrong_line_of_a_file_is_named_with_what_is_allowed(tmp_path, data_dir, capsys, name, text, pattern):
    """The file and the line, the key, and a remedy; before anything is made."""
    (tmp_path / name).write_text(text)
    where = () if "data_dir" in text else ("--data-dir", str(data_dir))
    status = main(["config", "check", "--config", str(tmp_path / name), *where])
    said = capsys.readouterr()
    refused((status, [*said.out.splitlines(), *said.err.splitlines()]), 2, pattern)


@pytest.mark.parametrize(("text", "pattern"), [TOML[0], TOML[-1]])
def test_a_start_refuses_a_wrong_line_as_the_check_does(tmp_path, data_dir, text, pattern):
    (tmp_path / "geminga.toml").write_text(text)
    where = () if "data_dir" in text else ("--data-dir", data_dir)
    refused(run("serve", "--config", tmp_path / "geminga.toml", *where), 2, pattern)


@pytest.mark.parametrize(("words", "environ", "pattern"), [
    (("--port", "http"), {}, r"command line: network.port must be a whole number, not 'http'"),
    ((), {"GEMINGA_HTTP_PROT": "1"}, r"GEMINGA_HTTP_PROT: there is no such setting, did you mean GEMINGA_HTTP_PORT\?"),
])
def test_a_wrong_option_or_variable_is_named(data_dir, words, environ, pattern):
    where = () if "--data-dir" in words else ("--data-dir", data_dir)
    refused(run("serve", *where, *words, **environ), 2, pattern)


def a_missing_file(place):  # noqa: F811
    return place / "none.toml", r"none.toml: there is no such configuration file: name another with --config"


def a_folder(place):  # noqa: F811
    (place / "folder.toml").mkdir()
    return place / "folder.toml", r"folder.toml is a folder, not a configuration file: name a file with --config"


def an_unreadable_file(place):  # noqa: F811
    (place / "secret.toml").touch(0o600)
    return place / "secret.toml", r"secret.toml: user nobody may not read it: change its rights, or use sudo"


def a_file_below_a_file(place):  # noqa: F811
    (place / "file").touch()
    return place / "file" / "geminga.toml", r"file/geminga.toml: Not a directory: name another file with --config"


def a_program(place):  # noqa: F811
    (place / "geminga.toml").write_bytes(b"\x7fELF\xff\xfe\x00")
    return place / "geminga.toml", r"geminga.toml: is not UTF-8 text"


@pytest.mark.parametrize(("words", "make"), [
    *((("serve",), make) for make in (a_missing_file, a_folder, an_unreadable_file, a_file_below_a_file, a_program)),
    *((words, a_missing_file) for words in (("config", "show"), ("tune",), ("nightly",), ("backup", "x")))])
def test_a_configuration_file_that_cannot_be_read_is_named(place, as_nobody, make, words):  # noqa: F811
    file, pattern = make(place)
    refused(run(*words, "--config", file, user=NOBODY), 2, pattern)


def a_file(place):  # noqa: F811
    (place / "data").touch()
    return place / "data", rf"data_dir: \S+/data is no folder: {ANOTHER}"


def below_a_file(place):  # noqa: F811
    return a_file(place)[0] / "one" / "two", rf"data_dir: \S+/data is no folder: {ANOTHER}"


def not_writable(place):  # noqa: F811
    (place / "data").mkdir(0o755)
    return place / "data", rf"data_dir: \S+/data\S*: user nobody may not write to \S+/data: change its owner.*{ANOTHER}"


def below_not_writable(place):  # noqa: F811
    (place / "above").mkdir(0o755)
    return place / "above" / "data", r"data_dir: \S+/above/data: user nobody may not write to \S+/above: change"


def not_to_be_looked_into(place):  # noqa: F811
    (place / "data").mkdir(0o700)
    return place / "data", r"data_dir: \S+/data\S*: user nobody may not write to \S+/data: change its owner"


def a_folder_as_lock(place):  # noqa: F811
    (place / "data" / "lock").mkdir(parents=True)
    for folder in (place / "data", place / "data" / "lock"):
        folder.chmod(0o777)
    return place / "data", rf"data_dir: \S+/data/lock: Is a directory: {ANOTHER}"


def without_a_file_system(place):  # noqa: F811
    return "/proc/geminga", rf"data_dir: /proc(/geminga)?: .*{ANOTHER}"


@pytest.mark.parametrize("make", [a_file, below_a_file, not_writable, below_not_writable, not_to_be_looked_into,
                                  a_folder_as_lock, without_a_file_system])
def test_a_data_folder_that_cannot_be_used_is_named_with_what_to_do(place, as_nobody, make):  # noqa: F811
    data, pattern = make(place)
    refused(run("serve", "--data-dir", data, "--port", 0, "--http-port", 0, user=NOBODY), 2, pattern)


@pytest.mark.parametrize("make", [below_a_file, below_not_writable])
def test_the_check_of_a_configuration_finds_the_same_fault_of_the_folder(place, as_nobody, make):  # noqa: F811
    data, pattern = make(place)
    refused(run("config", "check", "--data-dir", data, user=NOBODY), 2, pattern)


def test_the_check_of_a_configuration_tries_the_folders_of_backups(tmp_path):
    (tmp_path / "taken").write_text("")
    (tmp_path / "geminga.toml").write_text(
        f"data_dir = '{tmp_path}/data'\n[http]\nbackup_folders = ['{tmp_path}/b', '{tmp_path}/taken/c']\n")
    refused(run("config", "check", "--config", tmp_path / "geminga.toml"), 2, "http.backup_folders: .*/taken/c: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["geminga.toml", "taken"]      # nothing is left behind


def test_a_command_does_not_take_another_broker_for_its_own(tmp_path):
    """./data has been served, and is not now: whoever answers at the default address would be another broker."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "format").write_text("2\n")
    for words in (("status",), ("topics",), ("admin", "tenants", "list")):
        refused(run(*words, GEMINGA_DATA_DIR=tmp_path / "data"), 3, r"data: no broker serves this folder now; --admin")


@pytest.mark.parametrize(("option", "key"), [("--port", "network.port"), ("--http-port", "http_port")])
def test_a_port_in_use_is_named_with_the_process(tmp_path, option, key):
    """Key, address, process; and the remedy.  The other program would share the port."""
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        port = taken.getsockname()[1]
        ports = {"--port": "0", "--http-port": "0", option: str(port)}
        answer = run("serve", "--data-dir", tmp_path, *(word for pair in ports.items() for word in pair))
    refused(answer, 1, rf"{key}: cannot listen on 127.0.0.1:{port}: Address already in use by process {os.getpid()} "
                       rf"\(.+\); stop that process, or set {key} to another port")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_a_port_in_use_by_a_process_that_cannot_be_seen_says_so(place, as_nobody):  # noqa: F811
    (place / "data").mkdir()
    (place / "data").chmod(0o777)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        answer = run("serve", "--data-dir", place / "data", "--port", taken.getsockname()[1], "--http-port", 0,
                     user=NOBODY)
    refused(answer, 1, r"in use by a process of another user, which root can see with: ss -ltnp, or by one that does "
                       r"not listen yet; stop that process")


@pytest.mark.parametrize(("address", "key"), [("192.0.2.1", "network.bind"), ("no-such-host.invalid", "network.bind")])
def test_an_address_that_is_not_of_this_host_is_named(tmp_path, address, key):
    answer = run("serve", "--data-dir", tmp_path, "--bind", address, "--port", 0, "--http-port", 0)
    refused(answer, 1, rf"network.port: cannot listen on {address}:0: .+; set {key} to an address of this host")


@pytest.mark.parametrize(("words", "status", "pattern"), [
    (("restore", "none"), 1, r"none: it has no manifest"),
    (("verify",), 5, r"/data: there is no such folder"),
    (("backup", "x", "--data-dir"), 2, r"/data is no data folder of a broker"),
])
def test_commands_that_are_given_a_file_for_a_folder_name_it(place, words, status, pattern):  # noqa: F811
    refused(run(*words, a_file(place)[0]), status, pattern)

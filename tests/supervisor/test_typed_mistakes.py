"""Mistakes typed at commands, against a real broker: each is answered in one line, and changes nothing.

The line names what is wrong, as it was typed, and a remedy where there is one.  Exit status: 1 refused, 2 wrong usage,
3 not reachable.
"""
import datetime
import os
import re
import socket
import ssl
import subprocess
import threading

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from geminga.supervisor.main import main

from ..harness import HANG_SECONDS, Broker, request
from .test_serve import GEMINGA
from .test_usable_paths import NOBODY, as_nobody, place  # noqa: F401 - fixtures

pytestmark = pytest.mark.slow

REFUSED, WRONG, AWAY = 1, 2, 3
ODD = os.fsdecode(b"or\xffders")      # as a shell passes a name that is not UTF-8
URL, HTTP = ("--url", "{url}"), ("--admin-url", "{http}")
BOTH = (*URL, *HTTP)
ADMIN = ("admin", *HTTP)

# (words of the command, exit status, pattern of the line); {url}, {http} and the like are filled in.
COMMANDS = [
    (("stauts",), WRONG, r"no command 'stauts'.  Did you mean status\?"),
    (("topic", "list"), WRONG, r"no command 'topic'.  Did you mean topics"),
    (("",), WRONG, r"no command ''"),
    (("admin", "topic", "list"), WRONG, r"no command 'topic'.  Did you mean topics\?"),
    (("admin", "topics", "lsit"), WRONG, r"no command 'lsit'.  Did you mean list\?"),
    (("admin", "tokens", "creat"), WRONG, r"no command 'creat'.  Did you mean create\?"),
    *(((group, typed), WRONG, rf"no command '{typed}'.  Did you mean {meant}\b.*\?") for group, typed, meant in (
        ("config", "chek", "check"), ("context", "ls", "list"), ("log", "levle", "level"), ("ledger", "dmup", "dump"),
        ("definitions", "exprot", "export"), ("debug", "bundel", "bundle"), ("upgrade", "chekc", "check"))),
    (("clients", "clsoe", "10.0.0.7:51450", *HTTP), WRONG, r"no command 'clsoe'.  Did you mean close\?"),
    (("transactions", "abrot", "0,1", *HTTP), WRONG, r"no command 'abrot'.  Did you mean abort\?"),
    (("completion", "basch"), WRONG, r"'basch' is not one of 'bash', 'zsh', 'fish'"),
    (("nightly", "rnu"), WRONG, r"'rnu' is not one of 'run', 'plan'"),
    (("topics", "lst", *HTTP), REFUSED, r"no topic public/default/lst.  geminga topics shows all"),
    (("topics", "list", *HTTP), REFUSED, r"no topic public/default/list\..* Did you mean geminga admin topics list\?$"),
    (("topics", "stats", "orders", *HTTP), WRONG, r"takes one .*PATTERN.  Did you mean geminga admin topics stats\?$"),
    (("sub", "orders"), WRONG, r"no command 'sub'.  Did you mean consume\?"),
    (("namespaces", "list"), WRONG, r"no command 'namespaces'.  Did you mean admin namespaces\?"),
    (("help", "prodce"), WRONG, r"no command 'prodce'.  Did you mean produce or upgrade or promote\?"),
]
OPTIONS = [
    (("consume", "orders", "--form", "earliest", *URL), WRONG, r"No such option '--form'. Did you mean '--from'\?"),
    (("produce", "orders", "x", "--proprety", "a=b", *URL), WRONG, r"'--proprety'. .*Did you mean .*'--property'"),
    (("--contxt", "x", "topics"), WRONG, r"'--contxt'. Did you mean '--context'\?"),
    (("consume", "orders", "--partition", "1", *URL), WRONG, r"No such option '--partition'"),
    (("topics", "--sort", "backlg", *HTTP), WRONG, r"--sort': 'backlg' is not one of .*'backlog'"),
    (("topics", "-o", "xml", *HTTP), WRONG, r"'xml' is not one of 'table', 'json'"),
    (("produce", "orders", "x", "--compression", "lz5", *URL), WRONG, r"'lz5' is not one of .*'lz4'"),
    (("produce",), WRONG, r"Missing argument 'TOPIC'\.  More: geminga produce -h$"),
    (("completion",), WRONG, r"Missing argument .* Choose from: bash, zsh, fish"),
    (("consume", "orders", "-n", "many", *URL), WRONG, r"--count.*: 'many' is not a whole number"),
    (("clients", "close", *HTTP), WRONG, r"Missing argument 'ADDRESS'"),
    (("transactions", "abort", *HTTP), WRONG, r"Missing argument 'ID\.\.\.'"),
    ((*ADMIN, "topics", "peek", "orders"), WRONG, r"Missing option '--subscription'"),
    (("import", "orders", *BOTH), WRONG, r"Missing option '--from'"),
]
NAMES = [
    *(((*words, *HTTP), REFUSED, r"no topic public/default/ordres.  Did you mean public/default/orders\?")
      for words in (("why", "ordres"), ("why", "ordres", "billing"), ("topics", "ordres"), ("subscriptions", "ordres"),
                    ("clients", "ordres"), ("transactions", "ordres"))),
    *(((*words, *address), REFUSED, r"no topic \S+/ordres. +Did you mean persistent://public/default/orders\?")
      for *words, address in (("consume", "ordres", URL), ("consume", "ordres", "-s", "billing", URL),
                              ("redrive", "ordres", BOTH), ("bench", "ordres", "-d", "1s", BOTH))),
    (("search", "ordres", *URL), REFUSED, r"no topic \S+/ordres. +Did you mean persistent://public/default/orders\?"),
    (("search", "public/defualt", "--data-dir", "{data_dir}"), REFUSED, r"defualt.  Did you mean public/default\?"),
    (("search", "ordres", "--data-dir", "{data_dir}"), REFUSED, r"no topic \S+/ordres.  Did you mean \S+/orders\?"),
    (("import", "ordres", "--from", "{url}", *BOTH), REFUSED, r"ordres: there is no such topic.  Did you mean \S+/ord"),
    (("produce", "public/defualt/orders", "x", *URL), REFUSED, r"Namespace public/defualt does not exist"),
    (("topics", "public/defualt", *HTTP), REFUSED, r"no namespace public/defualt.  Did you mean public/default\?"),
    (("topics", "pubic/default", *HTTP), REFUSED, r"no tenant pubic.  Did you mean public\?"),
    (("consume", "parted-partition-7", *URL), REFUSED, r"no topic \S+-partition-7. +Did you mean \S+/parted\?"),
    (("produce", "parted", "x", "--partition", "9", *URL), WRONG, r"no partition 9: \S+ has partitions 0 to 2"),
    (("why", "orders", "biling", *HTTP), REFUSED, r"orders has no subscription biling.  Did you mean billing\?"),
    *(((*ADMIN, "topics", verb, "ordres", *more), REFUSED, r"ordres not found .*Did you mean public/default/orders\?")
      for verb, *more in (("stats",), ("stats-internal",), ("subscriptions",), ("peek", "-s", "billing"), ("delete",),
                          ("reset-cursor", "-s", "billing", "-t", "1h"), ("compact",), ("get-retention",),
                          ("last-message-id",), ("terminate",), ("unsubscribe", "-s", "billing"))),
    *(((*ADMIN, "topics", verb, "orders", "-s", "biling", *more), REFUSED, r"biling not found.*Did you mean billing\?")
      for verb, *more in (("peek",), ("reset-cursor", "-t", "1h"), ("skip", "-n", "1"), ("clear-backlog",),
                          ("unsubscribe",), ("expire-messages", "-t", "10"))),
    *(((*ADMIN, "topics", verb, "parted"), REFUSED, rf"It has partitions.  Did you mean partitioned-{verb}\?$")
      for verb in ("stats", "stats-internal")),
    ((*ADMIN, "topics", "stats", "parted-partition-9"), REFUSED, r"not found .*Did you mean public/default/parted\?"),
    ((*ADMIN, "topics", "list", "public/defualt"), REFUSED, r"does not exist .*Did you mean public/default\?"),
    ((*ADMIN, "namespaces", "create", "pubic/x"), REFUSED, r"Tenant does not exist .*Did you mean public\?"),
    ((*ADMIN, "tenants", "get", "pubic"), REFUSED, r"Tenant does not exist .*Did you mean public\?"),
    ((*ADMIN, "clusters", "get", "standalon"), REFUSED, r"does not exist .*Did you mean standalone\?"),
    (("clients", "close", "10.0.0.7:1", *HTTP), REFUSED, r"no connection from 10.0.0.7:1"),
    (("transactions", "abort", "0,1", *HTTP), REFUSED, r"0,1: The transaction is unknown"),
    (("topics", "--context", "prod"), WRONG, r"no context 'prod': there are none"),
]
EMPTY_AND_ODD = [
    (("consume", "", *URL), WRONG, r"topic name: ''.*not empty"),
    (("topics", "", *HTTP), WRONG, r"'' is no topic"),
    (("why", "orders", "", *HTTP), WRONG, r"SUBSCRIPTION is empty"),
    (("consume", "orders", "-s", "", *URL), WRONG, r"--subscription is empty"),
    (("clients", "close", "", *HTTP), WRONG, r"ADDRESS is empty: geminga clients shows"),
    (("transactions", "abort", "", *HTTP), WRONG, r"'' is no id of a transaction: geminga transactions shows"),
    ((*ADMIN, "tenants", "create", ""), WRONG, r"TENANT is empty"),
    (("consume", "a/b", *URL), WRONG, r"topic name: 'a/b'"),
    *(((*words, *address), WRONG, r"'or.udcffders\*?' is not UTF-8") for *words, address in (
        ("consume", ODD, URL), ("produce", ODD, "x", URL), ("consume", "orders", "-s", ODD, URL), ("why", ODD, HTTP),
        ("why", "orders", ODD, HTTP), ("topics", ODD, HTTP), ("topics", f"{ODD}*", HTTP), ("search", ODD, URL),
        ("clients", "close", ODD, HTTP), ("status", "--seen", ODD, HTTP), ("redrive", ODD, BOTH),
        ("log", "level", "debug", "--topic", ODD, HTTP), ("bench", ODD, BOTH),
        ("import", ODD, "--from", "{url}", BOTH))),
    ((*ADMIN, "topics", "stats", ODD), WRONG, r"is not UTF-8"),
]
VALUES = [
    (("consume", "orders", "--from", "yesterdy", *URL), WRONG, r"--from is .* a time: 'yesterdy' is not a time .*-2h"),
    (("consume", "orders", "-n", "-1", *URL), WRONG, r"--count' / '-n': -1 is not in the range x>=1"),
    (("consume", "orders", "--grep", "[", *URL), WRONG, r"--grep '\[' is not a regular expression"),
    (("consume", "orders", "--where", "a[", *URL), WRONG, r"--where 'a\['"),
    (("produce", "orders", "x", "--deliver-after", "soon", *URL), WRONG, r"'soon' is not a time: .*such as 10m"),
    (("produce", "orders", "x", "--deliver-after", "-1h", *URL), WRONG, r"'-1h' is not a time to come"),
    (("produce", "orders", "x", "--count", "9" * 30, *URL), WRONG, r"--count'.*: 9+ is not in the range"),
    (("produce", "orders", "x", "-p", "colour", *URL), WRONG, r"'colour' is not NAME=VALUE"),
    (("bench", "--size", "10 pounds", *BOTH), WRONG, r"'10 pounds' is not a size: .*10M"),
    (("bench", "--duration", "0", *BOTH), WRONG, r"'0' is no time to measure, such as 10s"),
    (("bench", "--namespace", "pubic", *BOTH), WRONG, r"--namespace.: 'pubic' is no namespace: tenant/namespace"),
    (("bench", "--namespace", "public/defualt", *BOTH), REFUSED, r"Namespace not found"),
    (("topics", "-n", "9999999", *HTTP), WRONG, r"9999999 is not in the range 1<=x<=1000"),
    (("topics", "--watch", "soon", *HTTP), WRONG, r"'soon' is not a time"),
    ((*ADMIN, "topics", "reset-cursor", "orders", "-s", "billing", "-t", "yesterdy"), WRONG, r"'yesterdy' is not a ti"),
    ((*ADMIN, "topics", "reset-cursor", "orders", "-s", "billing", "-m", "12"), WRONG, r"'12' is no message id: .*12"),
    ((*ADMIN, "topics", "skip", "orders", "-s", "billing", "-n", "9" * 20), REFUSED, r"whole number of 0 to"),
    ((*ADMIN, "topics", "update-partitioned-topic", "parted", "-p", "1"), REFUSED, r"less than .* 3"),
    ((*ADMIN, "namespaces", "set-retention", "public/default", "-t", "1d", "-s", "10X"), WRONG, r"'10X' is not a size"),
    (("log", "level", "debug", "--for", "yes", *HTTP), WRONG, r"--for.*: 'yes' is not a time"),
    *((("log", "level", "debug", "--for", time, *HTTP), WRONG, rf"--for.*: '{time}' is not a time of up to 7d")
      for time in ("-5", "0", "8d")),
    (("nightly", "plan", "--data-dir", "{data_dir}", "--pattern", "["), WRONG, r"'\[' is no regular expression"),
    (("nightly", "plan", "--data-dir", "{data_dir}", "--topic", "ordres"), WRONG, r"there is no topic \S+/ordres"),
    (("tune", "--pid", "first"), WRONG, r"--pid.*: 'first' is not a whole number"),
    (("tune", "--pid", "99999999"), WRONG, r"--pid 99999999: there is no such process"),
    (("context", "set", "x y", "--url", "pulsar://x"), WRONG, r"'x y' is no name: .*letters"),
    (("secure", "--host", "a b"), WRONG, r"'a b' is no host name"),
]
PULSAR_PLACES = [
    ("pulsar://127.0.0.1:{unused}", AWAY, r"Connection refused: no broker listens there"),
    ("pulsar://{http_at}", AWAY, r"Port \d+ serves HTTP; Pulsar's protocol is at port \d+"),
    ("pulsar+ssl://{at}", AWAY, r"may not speak TLS"),
    ("pulsar://no-such-host.invalid:6650", AWAY, r"no such host"),
    ("{http}", WRONG, r"is no address such as pulsar://127.0.0.1:6650"),
    ("pulsar://127.0.0.1:port", WRONG, r"'pulsar://127.0.0.1:port' is no address such as"),
    (f"pulsar://{ODD}", WRONG, r"is no address such as"),
]
HTTP_PLACES = [
    ("http://127.0.0.1:{unused}", AWAY, r"Connection refused: no broker listens there"),
    ("http://{at}", AWAY, r"Port \d+ serves Pulsar's protocol; HTTP is at port \d+"),
    ("https://{http_at}", AWAY, r"may not speak TLS"),
    ("http://no-such-host.invalid:8080", AWAY, r"no such host"),
    ("{url}", WRONG, r"is no address of HTTP such as http://127.0.0.1:8080"),
    ("http://127.0.0.1:99999", WRONG, r"'http://127.0.0.1:99999' is no address of HTTP"),
    (f"http://{ODD}", WRONG, r"is no address of HTTP"),
]


@pytest.fixture(scope="module")
def places(own, tmp_path_factory):
    """What is filled into the words of commands; the broker has a few topics."""
    for path in ("persistent/public/default/orders", "persistent/public/default/orders/subscription/billing"):
        assert request("PUT", f"{own.http_url}/admin/v2/{path}")[0] == 204
    assert request("PUT", f"{own.http_url}/admin/v2/persistent/public/default/parted/partitions", b"3")[0] == 204
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    return {"url": own.service_url, "http": own.http_url, "data_dir": own.data_dir, "unused": port,
            "at": own.service_url.rpartition("/")[2], "http_at": own.http_url.rpartition("/")[2]}


@pytest.fixture
def refused(own, places, capsys, monkeypatch, tmp_path):
    """refused(words, status, pattern): the command ends with this status and one line, and changes nothing."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))

    def definitions():
        return request("GET", f"{own.http_url}/ops/v1/definitions")[1]

    def refused(words, status, pattern):
        before = definitions()
        ended = main([str(word).format(**places) for word in words])
        printed, said = capsys.readouterr()
        lines = said.splitlines()
        assert ended == status and printed == "" and len(lines) == 1, (ended, printed, said)
        assert re.search(pattern, lines[0]) and "Traceback" not in lines[0], lines
        assert definitions() == before
    return refused


def _names(rows):
    return [" ".join(map(str, words)).encode("ascii", "backslashreplace").decode() for words, *_ in rows]


ROWS = COMMANDS + OPTIONS + NAMES + EMPTY_AND_ODD + VALUES


@pytest.mark.parametrize(("words", "status", "pattern"), ROWS, ids=_names(ROWS))
def test_a_mistake_is_one_line_that_names_it(refused, words, status, pattern):
    refused(words, status, pattern)


@pytest.mark.parametrize("command", [("consume", "orders"), ("produce", "orders", "x"), ("search", "orders"),
                                     ("redrive", "orders"), ("bench", "orders", "-d", "1s"),
                                     ("export", "orders", "--to", "{url}"), ("import", "orders", "--from", "{url}")],
                         ids=lambda words: words[0])
@pytest.mark.parametrize(("address", "status", "pattern"), PULSAR_PLACES)
def test_a_wrong_address_of_the_binary_protocol_is_told_by_every_command(refused, command, address, status, pattern):
    refused((*command, "--url", address), status, pattern)


@pytest.mark.parametrize("command", [("topics",), ("why", "orders"), ("status",), ("log", "level"), ("definitions",
                                     "export"), ("clients", "close", "10.0.0.7:1"), ("bench", "-d", "1s"),
                                     ("transactions",), ("transactions", "abort", "0,1")],
                         ids=lambda words: words[0])
@pytest.mark.parametrize(("address", "status", "pattern"), HTTP_PLACES)
def test_a_wrong_address_of_http_is_told_by_every_command(refused, command, address, status, pattern):
    refused((*command, "--admin-url", address), status, pattern)


@pytest.mark.parametrize(("address", "status", "pattern"), HTTP_PLACES)
def test_a_wrong_address_is_told_by_admin(refused, address, status, pattern):
    refused(("admin", "--admin-url", address, "topics", "list", "public/default"), status, pattern)


# -- files

FILES = [
    (("definitions", "import", "{file}", *HTTP), r"No such file", r"Is a directory", r"it is not UTF-8 text"),
    ((*ADMIN, "schemas", "upload", "orders", "-f", "{file}"), r"does not exist", r"is a directory", r"not UTF-8 text"),
    (("produce", "orders", "x", "--schema-file", "{file}", *URL), r"does not exist", r"is a directory", r"{file}"),
    (("consume", "orders", "--url", "pulsar+ssl://{at}", "--tls-trust-cert-path", "{file}"), r"No such file",
     r"Is a directory", r"{file}: no certificate"),
    (("topics", "--auth-plugin", "AuthenticationToken", "--auth-params", "file:{file}", *HTTP), r"{file}: No such file",
     r"{file}: Is a directory", r"there is no token"),
    (("config", "check", "--config", "{file}"), r"{file}: there is no such", r"{file} is a folder", r"is not UTF-8"),
    (("nightly", "plan", "--data-dir", "{file}"), *[r"{file} is no data folder of a broker"] * 3),
    (("backup", "{file}", "--data-dir", "{file}"), *[r"{file} is no data folder of a broker"] * 3),
    (("topics", "--data-dir", "{file}"), *[r"{file}: no broker answers there"] * 3),
    (("ledger", "dump", "{file}"), r"{file}: there is no such file", r"{file}: there is no", r"no file that can be"),
]


@pytest.mark.parametrize("kind", range(3), ids=["missing", "folder", "binary"])
@pytest.mark.parametrize("row", FILES, ids=_names(FILES))
def test_a_file_that_cannot_be_used_is_named(refused, places, tmp_path, row, kind):
    words, *patterns = row
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    file = tmp_path / ("missing", "folder", "binary")[kind]
    refused([word.replace("{file}", str(file)) for word in words], WRONG, patterns[kind].replace("{file}", str(file)))


@pytest.mark.parametrize("words", [("definitions", "import", "{file}", *HTTP),
                                   (*ADMIN, "schemas", "upload", "orders", "-f", "{file}"),
                                   ("produce", "orders", "x", "--schema-file", "{file}", *URL)], ids=" ".join)
def test_wrong_json_is_told_with_its_place(refused, tmp_path, words):
    (tmp_path / "file").write_text('{"type": [}')
    refused([word.replace("{file}", str(tmp_path / "file")) for word in words], WRONG,
            rf"{tmp_path}/file: it is no JSON: .*line 1 column 11")


def complaint(done, status):
    """Return the line that a process complained with."""
    assert (done[0], done[1], len(done[2])) == (status, "", 1), done
    return done[2][0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_files_and_folders_of_another_user_are_named(own, places, place, as_nobody, monkeypatch):  # noqa: F811
    secret = place / "secret.json"
    secret.write_text("{}")
    secret.chmod(0o600)
    place.chmod(0o755)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place))      # which is not writable
    http, url = ("--admin-url", places["http"]), ("--url", places["url"])
    assert "Permission denied" in complaint(as_nobody("definitions", "import", secret, *http), WRONG)
    assert "not readable" in complaint(as_nobody("produce", "orders", "--file", secret, *url), WRONG)
    assert f"{secret}: Permission denied" in complaint(
        as_nobody("topics", "--auth-plugin", "AuthenticationToken", "--auth-params", f"file:{secret}", *http), WRONG)
    assert "Permission denied" in complaint(as_nobody("context", "set", "prod", *url), REFUSED)
    assert str(own.data_dir) in complaint(as_nobody("topics", "--data-dir", own.data_dir), WRONG)
    assert NOBODY


# -- certificates and tokens

def test_an_expired_certificate_is_told(refused, places, tmp_path):
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    certificate = (x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
                   .serial_number(1).not_valid_before(now - datetime.timedelta(9))
                   .not_valid_after(now - datetime.timedelta(1))
                   .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
                   .sign(key, hashes.SHA256()))
    pem = tmp_path / "expired.pem"
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with socket.create_server(("127.0.0.1", 0)) as server:
        def answer():
            for _ in range(2):
                link, _address = server.accept()
                try:
                    context.wrap_socket(link, server_side=True).close()
                except OSError:
                    link.close()
        thread = threading.Thread(target=answer)
        thread.start()
        port = server.getsockname()[1]
        refused(("consume", "orders", "--url", f"pulsar+ssl://localhost:{port}", "--tls-trust-cert-path", pem), AWAY,
                r"certificate is not to be trusted: certificate has expired")
        refused(("topics", "--admin-url", f"https://localhost:{port}", "--tls-trust-cert-path", pem), AWAY,
                r"certificate is not to be trusted: certificate has expired")
        thread.join(HANG_SECONDS)


def test_a_wrong_token_is_refused_by_both_protocols(refused, start_broker, tmp_path):
    (tmp_path / "key").write_bytes(os.urandom(32))
    (tmp_path / "geminga.toml").write_text(
        f"[authentication]\nmethods = ['token']\nsecret_keys = ['{tmp_path}/key']\n")
    guarded: Broker = start_broker("--config", str(tmp_path / "geminga.toml"))
    token = ("--auth-plugin", "AuthenticationToken", "--auth-params", "token:x.y.z")
    for credentials, remedy in (((), "give --auth-params, or --context"), (token, "the broker's log says why")):
        refused(("consume", "orders", "--url", guarded.service_url, *credentials), REFUSED,
                rf"AuthenticationError: \w.*; {remedy}")
        refused(("topics", "--admin-url", guarded.http_url, *credentials), REFUSED, rf"\(HTTP 401\); {remedy}")


# -- output that nobody reads

@pytest.mark.parametrize("words", [("topics", *HTTP), ("consume", "orders", *URL), (*ADMIN, "tenants", "list"),
                                   ("definitions", "export", *HTTP), ("--help",), ("completion", "bash")],
                         ids=lambda words: words[0])
def test_a_reader_that_has_enough_is_no_error(own, places, words):
    """Behind `| head -1` a command ends without a word."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([GEMINGA, *(word.format(**places) for word in words)], stdout=writer, stderr=subprocess.PIPE,
                          text=True, timeout=HANG_SECONDS, check=False)
    os.close(writer)
    assert done.stderr == "" and done.returncode in (0, 1)

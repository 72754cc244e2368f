"""`geminga secure`: TLS, tokens and rights in one step, and back again byte for byte."""
import os
import re
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pulsar
import pytest
import trustme
from cryptography import x509

from geminga.supervisor.configuration import editing
from geminga.supervisor.main import main

from .. import issuer as issuers
from ..harness import COMMAND, HANG_MS, HANG_SECONDS, Broker, eventually, unique_topic

pytestmark = pytest.mark.slow
FILE = """# ours
workers = 1

[network]
bind = "127.0.0.1"     # for now
#port = 6650

[tls]
port = 0
http_port = 0
"""


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """run(words...): exit status, standard output, complaints, in a folder with a configuration."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "geminga.toml").write_text(FILE)

    def run(*words):
        capsys.readouterr()
        status = main(["secure", *words]) or 0
        printed = capsys.readouterr()
        return status, printed.out, printed.err
    return run


def logged(level=pulsar.LoggerLevel.Error):
    return pulsar.ConsoleLogger(level)


def served(url, folder, token=None):
    """Publish and receive a message by Pulsar's client; raises PulsarException."""
    who = pulsar.AuthenticationToken(token) if token else None
    client = pulsar.Client(url, authentication=who, tls_trust_certs_file_path=str(folder / "ca.pem"),
                           tls_validate_hostname=True, logger=logged())
    try:
        topic = unique_topic("secured")
        consumer = client.subscribe(topic, "s")
        client.create_producer(topic).send(b"hello")
        return consumer.receive(HANG_MS).data()
    finally:
        client.close()


def ask(url, folder, token, **headers):
    asked = urllib.request.Request(url + "/admin/v2/tenants", headers=headers | {"Authorization": f"Bearer {token}"})
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    try:
        with urllib.request.urlopen(asked, context=context, timeout=HANG_SECONDS) as answer:
            return answer.status
    except urllib.error.HTTPError as refused:
        return refused.code


def test_one_step_secures_a_broker_and_another_takes_it_back(run, tmp_path):
    """The real client is let in by TLS with the token only; commands of the host need none."""
    status, printed, complaints = run("--host", "broker.example.com", "--host", "10.0.0.7")
    assert (status, complaints) == (0, "") and "checked geminga config check: ok" in printed
    assert "geminga context set broker.example.com --url pulsar+ssl://broker.example.com:0" in printed
    secured, folder = (tmp_path / "geminga.toml").read_text(), tmp_path / "secure"
    kept = [line for line in FILE.splitlines() if not line.startswith("bind")]
    lines = iter(secured.splitlines())
    assert all(line in lines for line in kept)      # in their order
    token = (folder / "admin.token").read_text().strip()
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert {name for name, mode in modes.items() if mode & 0o077} == {"ca.pem", "server.pem", "token-public.key"}
    own = Broker(tmp_path / "data", "--config", str(tmp_path / "geminga.toml"), "--port", "-1", "--http-port", "-1")
    try:
        own.start()
        assert (own.service_url, own.http_url) == ("", "")
        assert served(own.tls_url, folder, token) == b"hello"
        assert served(own.tls_url.replace("127.0.0.1", "localhost"), folder, token) == b"hello"
        with pytest.raises(pulsar.PulsarException):
            served(own.tls_url, folder)
        assert ask(own.https_url, folder, token, Host="broker.example.com") == 200
        assert (ask(own.https_url, folder, token), ask(own.https_url, folder, "x.y.z")) == (200, 401)
        assert main(["admin", "--data-dir", str(own.data_dir), "tenants", "list"]) in (0, None)
        fresh = renewed(run, folder)
        eventually(lambda: serial(own.tls_url) == fresh.serial_number, what="the new certificate")
        assert served(own.tls_url, folder, (folder / "admin.token").read_text().strip()) == b"hello"
        assert served(own.tls_url, folder, token) == b"hello"      # the former token holds until it expires
    finally:
        own.close()
    assert run("--undo")[0] == 0
    assert (tmp_path / "geminga.toml").read_text() == FILE and not folder.exists()


@pytest.fixture
def issuer(tmp_path, monkeypatch):
    """An issuer whose authority this host trusts."""
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.cert_pem.write_to_path(tmp_path / "authorities.pem")
    authority.issue_cert("127.0.0.1").configure_cert(context)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authorities.pem"))
    with issuers.running(context) as running:
        yield running


def command(*words):
    """Run the command in a process, which reads the authorities of the host at its start."""
    done = subprocess.run([COMMAND[0], "secure", *words], capture_output=True, text=True, timeout=HANG_SECONDS,
                          check=False)
    return done.returncode, done.stdout, done.stderr


def test_an_issuer_is_proved_and_its_tokens_are_accepted(run, tmp_path, issuer):
    status, printed, complaints = command("--host", "broker.example.com", "--oidc", issuer.url)
    assert (status, complaints) == (0, "")
    assert f"proved  {issuer.url}: 1 keys that check its tokens" in printed
    assert f"geminga login --issuer {issuer.url} --client-id CLIENT" in printed
    folder = tmp_path / "secure"
    own = Broker(tmp_path / "data", "--config", str(tmp_path / "geminga.toml"), "--port", "-1", "--http-port", "-1")
    try:
        own.start()
        assert ask(own.https_url, folder, issuer.token("admin").decode()) == 200
        assert ask(own.https_url, folder, issuer.token("admin", aud="others").decode()) == 401
        assert ask(own.https_url, folder, (folder / "admin.token").read_text().strip()) == 200
    finally:
        own.close()
    assert run("--undo")[0] == 0 and (tmp_path / "geminga.toml").read_text() == FILE


def test_an_issuer_that_cannot_be_used_changes_nothing(run, tmp_path, issuer):
    issuer.published.clear()
    for url, why in (issuer.url, "its key set has no key that can be used"), (f"{issuer.url}/other", "status 404"), (
            "http://id.example.com", "an address is no https URL"), ("https://[", "names no host"):
        status, printed, complaints = command("--host", "broker.example.com", "--oidc", url)
        assert (status, printed) == (1, "") and complaints.startswith(f"geminga: --oidc {url}: ") and why in complaints
    assert (tmp_path / "geminga.toml").read_text() == FILE and not (tmp_path / "secure").exists()
    assert run("--undo", "--oidc", issuer.url)[0] == 2
    status, _, complaints = command("--audience", "other")
    assert status == 2 and "--oidc" in complaints


def test_keys_of_a_section_within_another_are_set():
    text = "[authentication]\nmethods = []\n\n[authentication.oidc]\n#issuers = []\n"
    changed = editing.edited(text, {"authentication.methods": ["token"], "authentication.oidc.issuers": ["https://a"],
                                    "authentication.oidc.audiences": ["b"]})
    assert changed == ('[authentication]\nmethods = ["token"]\n\n[authentication.oidc]\naudiences = ["b"]\n'
                       '#issuers = []\nissuers = ["https://a"]\n')
    added = editing.edited("workers = 1\n", {"authentication.oidc.issuers": ["https://a"]})
    assert added == 'workers = 1\n\n[authentication.oidc]\nissuers = ["https://a"]\n'


def renewed(run, folder):
    """Renew the certificate for another host, and return the new one."""
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert run("--renew", "--host", "other.example.com")[0] == 0
    changed = {path.name for path in folder.iterdir() if before[path.name] != path.read_bytes()}
    assert changed == {"server.pem", "server.key", "admin.token", "made.json"}
    fresh = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    names = fresh.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "other.example.com" in names.get_values_for_type(x509.DNSName)
    return fresh


def serial(url):
    host, port = url.removeprefix("pulsar+ssl://").split(":")
    return x509.load_pem_x509_certificate(ssl.get_server_certificate((host, int(port))).encode()).serial_number


def test_the_certificate_names_all_hosts(run, tmp_path):
    run("--host", "a.example", "--host", "10.0.0.7", "--host", "fd00::1")
    certificate = x509.load_pem_x509_certificate((tmp_path / "secure/server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"a.example", "localhost"} <= set(names.get_values_for_type(x509.DNSName))
    assert {"10.0.0.7", "fd00::1", "127.0.0.1"} <= set(map(str, names.get_values_for_type(x509.IPAddress)))
    check = subprocess.run(["openssl", "verify", "-x509_strict", "-CAfile", "secure/ca.pem", "secure/server.pem"],
                           capture_output=True, text=True, cwd=tmp_path, check=False)
    assert check.returncode == 0, check.stderr


def test_a_folder_with_the_programs_name_beside_the_configuration_is_not_taken_for_it(run, tmp_path):
    (tmp_path / "geminga/supervisor").mkdir(parents=True)
    (tmp_path / "geminga/supervisor/__init__.py").write_text("raise SystemExit('this is another program')\n")
    (tmp_path / "geminga/supervisor/main.py").touch()
    assert run("--host", "broker.example.com")[0] == 0


def test_a_dry_run_changes_nothing(run, tmp_path):
    status, printed, _ = run("--host", "a.example", "--dry-run")
    assert status == 0 and '+super_user_roles = ["admin"]' in printed and "would make" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["geminga.toml"]
    assert run("--host", "a.example")[0] == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    for word in "--undo", "--renew":
        assert run(word, "--dry-run")[0] == 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


def test_without_a_file_one_is_made_and_removed(run, tmp_path):
    (tmp_path / "geminga.toml").unlink()
    assert run("--host", "a.example")[0] == 0
    assert (tmp_path / "geminga.toml").stat().st_mode & 0o777 == 0o600
    assert run("--undo")[0] == 0
    assert list(tmp_path.iterdir()) == []


def test_the_file_keeps_its_mode(run, tmp_path):
    (tmp_path / "geminga.toml").chmod(0o604)
    run("--host", "a.example")
    assert (tmp_path / "geminga.toml").stat().st_mode & 0o777 == 0o604
    run("--undo")
    assert (tmp_path / "geminga.toml").stat().st_mode & 0o777 == 0o604


def test_files_of_others_in_the_folder_stay(run, tmp_path):
    run("--host", "a.example")
    (tmp_path / "secure/orders.token").write_text("x")
    status, printed, _ = run("--undo")
    assert status == 0 and "left there: orders.token" in printed
    assert [path.name for path in (tmp_path / "secure").iterdir()] == ["orders.token"]


@pytest.mark.parametrize("text, words, complaint", [
    (FILE, (), "--host is needed"), (FILE, ("--host", "a b"), "'a b' is no host name and no address"),
    (FILE, ("--undo",), "was not secured by this command"), (FILE, ("--renew",), "was not secured by this command"),
    (FILE, ("--renew", "--undo"), "exclude each other"), (FILE, ("--restart", "--host", "a"), "installed service"),
    (FILE, ("--host", "a", "--config", "broker.conf"), "has Pulsar's form"),
    ('[tls]\ncertificate = "x"\n', ("--host", "a"), "sets tls.certificate already"),
    ('[authentication]\nmethods = ["basic"]\n', ("--host", "a"), "sets authentication.methods already"),
    ("not toml", ("--host", "a"), "geminga.toml: "),
    ('network = {bind = "::1"}\n', ("--host", "a"), "in a way that only you can change"),
    ("worker = 1\n", ("--host", "a"), "worker is not a key, did you mean workers?"),
    (FILE, ("--host", "a", "--config", "no/such/geminga.toml"), "No such file or directory")])
def test_a_refusal_is_one_line_and_changes_nothing(run, tmp_path, text, words, complaint):
    (tmp_path / "geminga.toml").write_text(text)
    status, _, complaints = run(*words)
    assert status in (1, 2) and complaint in complaints.splitlines()[-1]
    assert (tmp_path / "geminga.toml").read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["geminga.toml"]


def test_a_configuration_that_was_changed_since_is_not_overwritten(run, tmp_path):
    assert run("--host", "a.example")[0] == 0
    status, _, complaints = run("--host", "a.example")
    assert status == 1 and "--renew makes" in complaints
    changed = (tmp_path / "geminga.toml").read_text() + "# mine\n"
    (tmp_path / "geminga.toml").write_text(changed)
    status, _, complaints = run("--undo")
    assert status == 1 and "was changed since" in complaints
    assert (tmp_path / "geminga.toml").read_text() == changed


def test_the_shipped_example_is_secured_below_its_comments(tmp_path, monkeypatch, capsys):
    """Each key is set below its own comment, and all other lines stay."""
    example = Path(__file__).parents[2] / "systemd/geminga.toml.example"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "geminga.toml").write_bytes(example.read_bytes())
    assert not main(["secure", "--host", "a.example"])
    lines, before = ((tmp_path / "geminga.toml").read_text().splitlines(), example.read_text().splitlines())
    assert [line for line in lines if line in before] == before
    for at, line in enumerate(lines):
        if line not in before:
            assert re.match(rf"#{line.split(' ')[0]} = ", lines[at - 1]), line


@pytest.mark.parametrize("before, after", [
    ("", "[a]\nk = 1\n"), ("x = 1\n", "x = 1\n\n[a]\nk = 1\n"), ("[a]\n", "[a]\nk = 1\n"),
    ("[a]\nk = 2   # mine\nl = 3\n", "[a]\nk = 1\nl = 3\n"),
    ("[a]\n# k = 5\n\n[b]\nk = 4\n", "[a]\n# k = 5\nk = 1\n\n[b]\nk = 4\n"),
    ("[b]\nk = 4\n[ a ]\nz = 1", "[b]\nk = 4\n[ a ]\nk = 1\nz = 1\n")])
def test_one_key_is_edited_and_nothing_else(before, after):
    assert editing.edited(before, {"a.k": 1}) == after


@pytest.mark.parametrize("text", [
    "a = {k = 2}\n", "a.k = 2\n", "[a]\nk = [\n 2]\n", "not toml", '[a]\nt = """\nk = 2\n"""\n'])
def test_what_cannot_be_edited_is_refused(text):
    with pytest.raises(editing.CannotEdit):
        editing.edited(text, {"a.k": 1})


def test_the_command_is_not_for_a_user_without_rights(run, tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    tmp_path.chmod(0o500)
    try:
        status, _, complaints = run("--host", "a")
    finally:
        tmp_path.chmod(0o700)
    assert status == 1 and "Permission denied" in complaints

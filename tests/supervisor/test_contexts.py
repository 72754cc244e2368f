"""Which broker a command means: contexts, the socket in the data folder, and what is stronger."""
import contextlib
import json
import os
import resource
import subprocess
from pathlib import Path

import jwt
import pulsar
import pytest

from geminga.supervisor.configuration import contexts, target
from geminga.supervisor.main import main

from ..harness import COMMAND, Broker, eventually, request, unique_topic
from .test_compaction import job

pytestmark = pytest.mark.slow
GEMINGA, SECRET = COMMAND[0], "k" * 32
NOBODY = 65534
TOKEN = jwt.encode({"sub": "admin"}, SECRET, "HS256")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The user's configuration, empty, and a working folder without a broker."""
    for name in "GEMINGA_CONTEXT", "PULSAR_CLIENT_CONF", "GEMINGA_DATA_DIR":
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "config/geminga/contexts.toml"


@pytest.fixture
def run(capsys, home):
    """run(words...): exit status, standard output, complaints."""
    def run(*words):
        capsys.readouterr()
        status = main(list(words)) or 0
        printed = capsys.readouterr()
        return status, printed.out, printed.err
    return run


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A broker that asks for tokens and grants rights."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "geminga.toml").write_text(
        f'[authentication]\nmethods = ["token"]\nsecret_keys = ["data:,{SECRET}"]\n'
        '[authorization]\nenabled = true\nsuper_user_roles = ["admin"]\n')
    own = Broker(folder / "data", "--config", str(folder / "geminga.toml"))
    try:
        yield own.start()
    finally:
        own.close()


# -- the socket in the data folder

def test_no_token_is_needed_on_the_host(guarded, run, monkeypatch):
    """Both protocols go over the sockets in the data folder, with the rights of a super user."""
    topic = unique_topic("local")
    for address, *words in (("--url", guarded.service_url, "produce", topic, "hello"),
                            ("--admin-url", guarded.http_url, "admin", "tenants", "list")):
        command, *rest = words[1:]
        assert run(command, address, words[0], *rest)[0] == 1
        assert run(command, "--data-dir", str(guarded.data_dir), *rest)[::2] == (0, "")
    assert run("status", "--data-dir", str(guarded.data_dir))[0] == 0
    monkeypatch.setenv("GEMINGA_DATA_DIR", str(guarded.data_dir))
    assert run("consume", topic) == (0, "hello\n", "")
    assert topic in run("admin", "topics", "list", "public/default")[1]


def test_the_audit_log_names_the_user_of_the_host(guarded, run):
    assert run("admin", "--data-dir", str(guarded.data_dir), "tenants", "create", "mine")[0] == 0
    line = json.loads((guarded.data_dir / "audit.log").read_text().splitlines()[-1])
    assert (line["role"], line["method"], line["address"]) == (_user(), "local", "local")
    assert line["request"] == "PUT /admin/v2/tenants/mine"


def _user():
    return subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()


def test_a_header_gives_no_other_role_by_the_socket(guarded, run):
    """The kernel says who asks: credentials that are sent too are not looked at."""
    from geminga.workers.pulsar_client.credentials import Credentials
    from geminga.workers.pulsar_client.rest import Broker as Rest
    asked = Rest(f"unix:{guarded.data_dir}/run/http", credentials=Credentials("token", "nonsense"))
    assert "public" in asked.ask("GET", "/admin/v2/tenants").value()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_other_users_of_the_host_are_not_let_in(guarded):
    """The folder's mode refuses them, even where they may enter the data folder."""
    guarded.data_dir.chmod(0o755)
    code = (f"import socket; [print(socket.socket(socket.AF_UNIX).connect_ex('{guarded.data_dir}/run/' + name)) "
            "for name in ('http', 'clients')]")
    done = subprocess.run(["python3", "-c", code], capture_output=True, text=True, check=True, user=NOBODY,
                          group=NOBODY, extra_groups=[])
    assert done.stdout.split() == ["13", "13"]      # EACCES


def test_a_data_folder_with_a_long_path_is_reached_too(run, tmp_path):
    """Paths of Unix sockets have at most 107 bytes; a data folder's may be longer."""
    own = Broker(tmp_path / ("long" * 30) / "data")
    own.data_dir.parent.mkdir()
    try:
        own.start()
        assert request("GET", f"{own.http_url}/admin/v2/brokers/health") == (200, "ok")
        assert run("produce", "--data-dir", str(own.data_dir), "t", "one")[0] == 0
        assert run("consume", "--data-dir", str(own.data_dir), "t") == (0, "one\n", "")
        with job(own) as say:
            assert say({"ask": "leftovers", "owner": 0})["answer"]["folders"] == 0
        assert own.stop() == 0
        status, _, complaint = run("status", "--data-dir", str(own.data_dir))
        assert status == 2 and "no broker answers there" in complaint
    finally:
        own.close()


def test_messages_are_imported_and_exported_by_the_socket(guarded, run, start_broker):
    there, topic = start_broker(), unique_topic("moved")
    assert run("produce", "--url", there.service_url, topic, "a", "b")[0] == 0
    status, printed, _ = run("import", "--data-dir", str(guarded.data_dir), "--from", there.service_url, topic)
    assert status == 0 and "2 messages" in printed
    assert run("consume", "--data-dir", str(guarded.data_dir), topic)[1] == "a\nb\n"
    status, printed, _ = run("export", "--data-dir", str(guarded.data_dir), "--to", there.service_url, topic)
    assert status == 0


def test_a_broker_is_measured_by_the_socket(guarded, run):
    status, printed, complaints = run("bench", "--data-dir", str(guarded.data_dir), "-n", "100", "-o", "json")
    assert (status, complaints) == (0, "") and json.loads(printed)["consumed"] == 100
    status, _, complaint = run("bench", "--data-dir", str(guarded.data_dir), "--client", "pulsar-client")
    assert status == 2 and "--data-dir: the library of applications needs an address: give --url" in complaint


def test_a_broker_is_measured_by_a_process_with_many_open_files(guarded, run):
    """`select` takes no descriptor above 1,023."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] < 2_000:
        pytest.skip("this host allows a process fewer than 2,000 open files")
    with contextlib.ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2_000), limits[1]))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        for _ in range(1_100):
            stack.enter_context(open(os.devnull))
        status, _, complaints = run("bench", "--data-dir", str(guarded.data_dir), "-n", "100", "-o", "json")
    assert (status, complaints) == (0, "")


def test_the_socket_survives_the_end_of_the_admin_process(guarded, run):
    """Sockets are the supervisor's: requests wait in them while a process is started again."""
    guarded.wait_replaced("admin", 0, guarded.kill("admin"))
    eventually(lambda: run("admin", "--data-dir", str(guarded.data_dir), "tenants", "list")[0] == 0)


def test_an_address_is_stronger_than_a_folder(guarded, run, home, monkeypatch):
    """With an address, or credentials, a command behaves as if there were no broker on its host."""
    monkeypatch.setenv("GEMINGA_DATA_DIR", str(guarded.data_dir))
    assert target.of({}).is_local
    assert target.of({}, may_be_local=False).url == target.SERVICE_URL
    assert target.of({"admin_url": "http://x:1"}) == target.Target(target.SERVICE_URL, "http://x:1", target.of({})[2])
    assert target.of({"url": "pulsar://x:1"}).admin_url == target.ADMIN_URL
    assert not target.of({"auth_plugin": "AuthenticationToken", "auth_params": "token:x"}).is_local
    status, _, complaint = run("status", "--data-dir", "x", "--admin-url", "http://x:1")
    assert status == 2 and "--data-dir names a broker, and so does --admin-url" in complaint
    monkeypatch.setenv("GEMINGA_AUTH_PARAMS", "token:x")      # for other brokers
    assert target.of({"data_dir": str(guarded.data_dir), "auth_plugin": None, "auth_params": "token:x"}).is_local


# -- contexts

def test_a_context_is_a_whole_broker(guarded, run, home, tmp_path):
    """set, list, show, use and remove; --context before and after the command's words."""
    (tmp_path / "admin.token").write_text(TOKEN)
    ours = ("--url", guarded.service_url, "--admin-url", guarded.http_url)
    assert run("context", "set", "prod", *ours, "--auth-params", "file:admin.token")[0] == 0
    assert home.stat().st_mode & 0o777 == 0o600
    assert {path.name for path in home.parent.iterdir()} == {home.name, "contexts.lock"}
    topic = unique_topic("context")
    assert run("--context", "prod", "produce", topic, "x")[0] == 0
    assert run("consume", topic, "--context", "prod") == (0, "x\n", "")
    for words in (("--context", "prod", "admin", "topics", "list"), ("admin", "--context", "prod", "topics", "list"),
                  ("admin", "topics", "list", "--context", "prod")):
        assert topic in run(*words, "public/default")[1]
    assert run("context", "use", "prod")[0] == 0
    assert run("consume", topic)[1] == "x\n"
    assert json.loads(run("context", "list", "-o", "json")[1]) == [
        {"name": "prod", "current": True, "url": guarded.service_url, "admin_url": guarded.http_url,
         "auth_plugin": "AuthenticationToken", "auth_params": f"file:{tmp_path}/admin.token"}]
    assert run("context", "remove", "prod")[0] == 0
    assert contexts.load() == contexts.Contexts({})


def test_the_folder_of_a_context_does_not_matter(run, home, tmp_path, monkeypatch):
    (tmp_path / "t").write_text(TOKEN)
    run("context", "set", "a", "--url", "pulsar+ssl://h:1", "--auth-params", "file:t", "--tls-trust-cert-path", "ca")
    monkeypatch.chdir("/")
    assert contexts.load().of("a") == {
        "url": "pulsar+ssl://h:1", "admin_url": "https://h:8443", "auth_plugin": "AuthenticationToken",
        "auth_params": f"file:{tmp_path}/t", "tls_trust_cert_path": f"{tmp_path}/ca"}


@pytest.mark.parametrize("params, shown", [
    ("token:abcdef", "***"), ("token:a,tls:b", "***"), ("file:/x", "file:/x"),
    ('{"userId": "joe", "password": "pw"}', '{"userId": "joe", "password": "***"}'),
    ('{"token": "abc"}', '{"token": "***"}'), ("userId:joe,password:pw", "***"),
    ("tlsCertFile:/c,tlsKeyFile:/k", "tlsCertFile:/c,tlsKeyFile:/k")])
def test_secrets_are_starred_unless_they_are_asked_for(run, home, params, shown):
    contexts.save(contexts.Contexts({"a": {"url": "pulsar://h:1", "auth_params": params}}, "a"))
    for words in ("show",), ("list",):
        assert shown in run("context", *words)[1]
        assert params in run("context", *words, "--secrets")[1]
        if shown != params:
            assert params not in run("context", *words)[1]


def test_sources_are_in_this_order(guarded, run, home, tmp_path, monkeypatch):
    """Option, --context, GEMINGA_CONTEXT, client.conf, the current context, the socket, the default."""
    assert target.of({}).url == target.SERVICE_URL
    monkeypatch.setenv("GEMINGA_DATA_DIR", str(guarded.data_dir))
    assert target.of({}).url == f"unix:{guarded.data_dir}/run/clients"
    for name in "current", "variable", "option":
        run("context", "set", name, "--url", f"pulsar://{name}:1")
    run("context", "use", "current")
    assert target.of({}).url == "pulsar://current:1"
    (tmp_path / "client.conf").write_text("brokerServiceUrl=pulsar://conf:1\ntlsAllowInsecureConnection=false\n")
    monkeypatch.setenv("PULSAR_CLIENT_CONF", str(tmp_path / "client.conf"))
    assert target.of({}).url == "pulsar://conf:1" and not target.of({}).credentials.is_insecure
    monkeypatch.setenv("GEMINGA_CONTEXT", "variable")
    assert target.of({}).url == "pulsar://variable:1"
    assert "pulsar://option:1" in run("produce", "--context", "option", "t", "x")[2]
    assert "pulsar://127.0.0.1:1" in run("produce", "--context", "option", "--url", "pulsar://127.0.0.1:1", "t", "x")[2]


def test_an_address_that_is_given_gets_no_token_of_the_current_context(run, home):
    run("context", "set", "a", "--url", "pulsar://h:1", "--auth-params", "token:secret", "--use")
    assert target.of({}).credentials.data == "secret"
    assert target.of({"url": "pulsar://other:1"}).credentials.data == ""
    assert target.of({"auth_plugin": "AuthenticationToken", "auth_params": "token:mine"})[:2] == (
        "pulsar://h:1", "http://h:8080")


@pytest.mark.parametrize("words, complaint", [
    (("--context", "prdo", "status"), "there is no context 'prdo', did you mean prod?"),
    (("context", "use", "zzz"), "there is no context 'zzz': there are prod"),
    (("context", "set", "a b", "--url", "pulsar://h:1"), "'a b' is no name"),
    (("context", "set", "a"), "needs --url or --admin-url"),
    (("context", "set", "a", "--url", "http://h:1"), "'http://h:1' is no address such as pulsar://HOST:PORT"),
    (("context", "set", "a", "--url", "pulsar://h:99999"), "is no address"),
    (("context", "set", "a", "--url", "pulsar://h:1", "--auth-params", "file:{folder}/absent"),
     "No such file or directory"),
    (("context", "set", "a", "--url", "pulsar://h:1", "--auth-params", "x"), "--auth-params needs --auth-plugin"),
    (("context", "lst"), "Did you mean list or set?")])
def test_a_mistake_is_one_line(run, home, tmp_path, words, complaint):
    run("context", "set", "prod", "--url", "pulsar://h:1")
    before = home.read_bytes()
    status, printed, complaints = run(*(word.replace("{folder}", str(tmp_path)) for word in words))
    assert (status, printed) == (2, "") and complaint in complaints.splitlines()[-1]
    assert home.read_bytes() == before


@pytest.mark.parametrize("text", ["current = 1", "contexts = 1", "[contexts.a]\nurl = 1", "[contexts.a]\nlru = 'x'",
                                  "not toml", "[contexts]\na = 1"])
def test_a_file_that_is_wrong_is_named(run, home, text):
    home.parent.mkdir(parents=True)
    home.write_text(text)
    status, _, complaint = run("status")
    assert status == 2 and complaint.startswith(f"geminga: {home}: ") and complaint.count("\n") == 1


def test_any_text_survives_the_file(home):
    strange = "a\"b\\c\n\x7f\u00e9\U0001f600\x01"
    kept = contexts.Contexts({"x.y": {"url": strange, "tls_allow_insecure": True}}, "x.y")
    contexts.save(kept)
    assert contexts.load() == kept


def test_names_are_completed(home):
    contexts.save(contexts.Contexts({"prod": {"url": "pulsar://h:1"}, "test": {"url": "pulsar://h:2"}}))
    environ = {**os.environ, "_GEMINGA_COMPLETE": "bash_complete"}
    for line in "geminga context use p", "geminga --context p", "geminga status --context p":
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
        done = subprocess.run([GEMINGA], env=environ | words, capture_output=True, text=True, check=False)
        assert done.stdout.split() == ["plain,prod"], line


def test_clients_of_pulsar_still_need_the_token(guarded):
    client = pulsar.Client(guarded.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(unique_topic())
    client.close()
    assert Path(guarded.data_dir, "run").stat().st_mode & 0o777 == 0o700

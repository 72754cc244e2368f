"""Brokers that others reach: the warning without authentication, each cause of failed logins, bounds of tenants."""
import base64
import contextlib
import json
import pwd
import time
from dataclasses import replace

import bcrypt
import jwt
import pytest

from geminga.supervisor.configuration import exposure
from geminga.supervisor.configuration.config import Config
from geminga.supervisor.host import installed
from geminga.supervisor.main import main
from geminga.workers.identity.options import AuthenticationOptions, TlsOptions
from geminga.workers.options import WorkerOptions

from ..harness import HANG_SECONDS, Broker, request
from .test_serve import run

KEY = "geminga-test-key-of-more-than-32-bytes"
CERTIFIED = TlsOptions(certificate="c", key="k", trusted="t", client_certificates="required")


@pytest.mark.parametrize(("config", "keys"), [
    (Config(), []),
    (Config(worker=WorkerOptions(bind="localhost")), []),
    (Config(worker=WorkerOptions(bind="::1")), []),
    (Config(worker=WorkerOptions(bind="127.0.0.9")), []),
    (Config(worker=WorkerOptions(bind="0.0.0.0")), ["network.bind = 0.0.0.0", "http_bind = 0.0.0.0"]),
    (Config(worker=WorkerOptions(bind="::"), http_bind="localhost"), ["network.bind = ::"]),
    (Config(http_bind="10.0.0.7"), ["http_bind = 10.0.0.7"]),
    (Config(worker=WorkerOptions(bind="broker.example.com", port=-1), http_port=-1, tls=CERTIFIED), []),
    (Config(worker=WorkerOptions(bind="0.0.0.0", port=-1), http_port=-1,
            tls=replace(CERTIFIED, client_certificates="wanted")), ["network.bind", "http_bind"]),
    (Config(worker=WorkerOptions(bind="0.0.0.0"), authentication=AuthenticationOptions(methods=("token",))), []),
])
def test_listeners_that_everybody_may_use_are_named(config, keys):
    """Loopback, authentication, and TLS that demands certificates need no warning."""
    told = exposure.warning(config)
    assert bool(told) == bool(keys) and all(key in told for key in keys), told
    assert ("network.bind" in told, "http_bind" in told) == tuple(
        any(key.startswith(name) for key in keys) for name in ("network.bind", "http_bind"))


@pytest.mark.slow
def test_an_open_broker_says_so_once_in_its_log_and_in_its_status(tmp_path):
    with contextlib.closing(Broker(tmp_path / "data", "--bind", "0.0.0.0", "--workers", "1", "--owners", "1")) as open_:
        open_.start()
        assert open_.log().count("[G409]") == 1 and "network.bind = 0.0.0.0" in open_.log()
        http = f"http://127.0.0.1:{open_.http_url.rpartition(':')[2]}"
        status, printed, _ = run("status", "--admin-url", http)
        assert status == 0 and "WARNING everybody who reaches this host may read and write" in printed


@pytest.mark.slow
def test_a_broker_of_this_host_alone_is_not_warned_about(broker):
    assert "[G409]" not in broker.log()
    assert "WARNING" not in run("status", "--admin-url", broker.http_url)[1]


@pytest.mark.slow
def test_each_cause_of_failed_logins_from_one_address_is_in_the_log(tmp_path):
    """Failures follow each other from one address: a wrong signature, an expired token, no token, a wrong password."""
    (tmp_path / "users").write_text("shop:" + bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode() + "\n")
    (tmp_path / "geminga.toml").write_text(
        f"[authentication]\nmethods = ['token', 'basic']\nusers = '{tmp_path}/users'\n"
        f"secret_keys = 'data:;base64,{base64.b64encode(KEY.encode()).decode()}'\n")
    options = "--config", str(tmp_path / "geminga.toml"), "--workers", "1", "--owners", "1"
    tried = {
        f"Bearer {jwt.encode({'sub': 'shop'}, 'another key that has 32 bytes and more')}": "no key here has signed",
        f"Bearer {jwt.encode({'sub': 'shop', 'exp': int(time.time()) - 60}, KEY)}": "the token has expired",
        "Bearer nonsense": "the credentials are no token",
        f"Basic {base64.b64encode(b'shop:wrong').decode()}": "wrong password",
        f"Basic {base64.b64encode(b'nobody:wrong').decode()}": "unknown user",
    }
    with contextlib.closing(Broker(tmp_path / "data", *options)) as strict:
        strict.start()
        for credentials in tried:
            assert _status(strict, credentials) == 401
        told = [line for line in strict.log().splitlines() if "[G404]" in line]
        assert len(told) == len(tried)
        for line, cause in zip(told, tried.values(), strict=True):
            assert "from 127.0.0.1 by" in line and cause in line, (line, cause)


def _status(broker, credentials):
    import urllib.error
    import urllib.request
    asked = urllib.request.Request(f"{broker.http_url}/admin/v2/tenants", headers={"Authorization": credentials})
    try:
        with urllib.request.urlopen(asked, timeout=HANG_SECONDS) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.slow
def test_tenants_and_namespaces_are_bounded_over_http_and_in_imports(tmp_path):
    """What exists stays usable; nothing of an import that would exceed a bound is made."""
    (tmp_path / "broker.conf").write_text("maxTenants=3\nmaxNamespacesPerTenant=2\n")
    options = "--config", str(tmp_path / "broker.conf"), "--workers", "1", "--owners", "1"
    with contextlib.closing(Broker(tmp_path / "data", *options)) as bounded:
        admin = bounded.start().http_url + "/admin/v2"
        body = json.dumps({"adminRoles": [], "allowedClusters": ["standalone"]}).encode()
        assert len(json.loads(request("GET", f"{admin}/tenants")[1])) == 2
        assert request("PUT", f"{admin}/tenants/one", body)[0] == 204
        status, text = request("PUT", f"{admin}/tenants/two", body)
        assert (status, json.loads(text)) == (412, {"reason": "Exceed the maximum number of tenants"})
        assert request("PUT", f"{admin}/tenants/one", body)[0] == 409
        assert [request("PUT", f"{admin}/namespaces/one/{name}")[0] for name in "ab"] == [204, 204]
        status, text = request("PUT", f"{admin}/namespaces/one/c")
        assert (status, json.loads(text)) == (412, {"reason": "Exceed the maximum number of namespace in tenant :one"})
        for wanted, answer in (({"tenants": {"two": {}}}, 412), ({"namespaces": {"one/b": {}, "one/c": {}}}, 412),
                               ({"tenants": {"one": {}}, "namespaces": {"one/b": {}}}, 200)):
            status, text = request("POST", f"{bounded.http_url}/ops/v1/definitions",
                                   json.dumps({"version": 1} | wanted).encode())
            assert status == answer and ("Exceed the maximum number of" in text) == (answer == 412), (status, text)
        assert json.loads(request("GET", f"{admin}/namespaces/one")[1]) == ["one/a", "one/b"]


@pytest.mark.slow
def test_a_running_broker_tells_pulsars_settings_as_they_were_written(tmp_path):
    settings = {"keepAliveIntervalSeconds": "15", "maxUnackedMessagesPerSubscriptionOnBrokerBlocked": "0.25",
                "exposeTopicLevelMetricsInPrometheus": "false", "managedLedgerMaxSizePerLedgerMbytes": "100",
                "replicatedSubscriptionsSnapshotFrequencyMillis": "5000", "tokenSecretKey": "data:;base64,AAAA",
                "ttlDurationDefaultInSeconds": "60", "allowAutoTopicCreationType": "partitioned"}
    (tmp_path / "broker.conf").write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
    options = "--config", str(tmp_path / "broker.conf"), "--workers", "1", "--owners", "1"
    with contextlib.closing(Broker(tmp_path / "data", *options)) as broker:
        base = broker.start().http_url + "/admin/v2/brokers/configuration"
        assert request("POST", f"{base}/ttlDurationDefaultInSeconds/70")[0] == 200
        told = json.loads(request("GET", f"{base}/runtime")[1])
        assert settings.items() - told.items() == {("tokenSecretKey", "data:;base64,AAAA"),
                                                   ("ttlDurationDefaultInSeconds", "60")}
        assert [told[name] for name in ("tokenSecretKey", "ttlDurationDefaultInSeconds", "webServicePortTls")] == [
            "*****", "70", ""]


@pytest.mark.slow
def test_a_check_of_a_good_configuration_ends_with_ok_and_the_files_name(tmp_path):
    (tmp_path / "geminga.toml").write_text("workers = 3\n")
    status, printed, complaints = run("config", "check", "--config", tmp_path / "geminga.toml", "--data-dir", tmp_path)
    assert (status, complaints) == (0, [])
    assert printed.splitlines()[-1] == f"{tmp_path}/geminga.toml: ok"


def test_who_cannot_check_as_the_brokers_user_is_told_the_line_that_does(monkeypatch, capsys):
    """On an installed host, another user than root and the broker's gets no answer that would not hold."""
    monkeypatch.setattr(installed, "_service_user", lambda: pwd.getpwuid(1).pw_name)
    monkeypatch.setattr(installed.os, "geteuid", lambda: 2)
    assert main(["config", "check"]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and said.endswith("root can: sudo geminga config check\n")

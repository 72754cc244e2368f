"""Pages of subscriptions and messages show each role what REST answers to it, and nothing else."""
import base64
import json
import urllib.request
from urllib.parse import quote

import pytest

from ..harness import HANG_SECONDS, Broker, eventually
from .test_sessions import SECRET, ask, token

pytestmark = pytest.mark.slow
TOPIC, PATH = "persistent://acme/eu/orders", "persistent/acme/eu/orders"
PAGE = f"/console/topics/{PATH}/subscriptions/billing"
ROLES = {"producer": ["produce"], "consumer": ["consume"]}


def as_role(role):
    return {"Authorization": f"Bearer {token(role)}"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A broker that asks for tokens; a producer and a consumer have rights on one topic, a stranger has none."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "geminga.toml").write_text(
        f'[authentication]\nmethods = ["token"]\nsecret_keys = ["data:;base64,{SECRET}"]\n'
        '[authorization]\nenabled = true\nsuper_user_roles = ["admin"]\n')
    broker = Broker(folder / "data", "--config", str(folder / "geminga.toml"))
    try:
        broker.start()
        for method, path, body in (
                ("PUT", "/admin/v2/tenants/acme", {"adminRoles": [], "allowedClusters": ["standalone"]}),
                ("PUT", "/admin/v2/namespaces/acme/eu", None), ("PUT", f"/admin/v2/{PATH}", None),
                ("PUT", f"/admin/v2/{PATH}/subscription/billing", None),
                *(("POST", f"/admin/v2/{PATH}/permissions/{role}", rights) for role, rights in ROLES.items())):
            answer = ask(broker, method, path, body, **as_role("admin"))
            assert answer.status == 204, (path, answer.text)
        answer = ask(broker, "POST", f"/ops/v1/messages/{PATH}", {"payload": "secret text"}, **as_role("producer"))
        assert answer.status == 200, answer.text
        yield broker
    finally:
        broker.close()


@pytest.mark.parametrize("role, sees", [("admin", True), ("consumer", True), ("producer", False)])
def test_only_consumers_see_messages_of_a_subscription(guarded, role, sees):
    page = ask(guarded, "GET", PAGE, **as_role(role))
    assert page.status == 200 and "1 message is not acknowledged" in page.text
    assert ("secret text" in page.text) is sees and ("Messages not acknowledged" in page.text) is sees


def test_a_stranger_sees_neither_the_subscription_nor_the_messages(guarded):
    page = ask(guarded, "GET", PAGE, **as_role("stranger"))
    assert page.status == 401 and "You may not see this" in page.text and "billing</bdi>" not in page.text
    for role in ("stranger", "producer"):
        page = ask(guarded, "GET", f"/console/messages?place={quote(TOPIC, safe='')}", **as_role(role))
        assert "You may not read these messages." in page.text and "data-search" not in page.text


@pytest.mark.parametrize("path", [f"messages/{PATH}", f"messages/{PATH}/billing", f"payload/{PATH}/0:0",
                                  f"search/{PATH}", "search/acme/eu", f"redrive/{PATH}"])
def test_rest_refuses_messages_to_those_who_may_not_consume(guarded, path):
    for role in ("producer", "stranger"):
        answer = ask(guarded, "GET", f"/ops/v1/{path}", **as_role(role))
        assert answer.status in (401, 403) and "secret" not in answer.text, (role, answer.text)


def test_a_consumer_of_one_topic_may_not_search_its_namespace_nor_redrive(guarded):
    assert ask(guarded, "GET", "/ops/v1/search/acme/eu", **as_role("consumer")).status == 403
    assert ask(guarded, "POST", f"/ops/v1/redrive/{PATH}", {}, **as_role("consumer")).status == 401
    found = ask(guarded, "GET", f"/ops/v1/search/{PATH}?grep=secret", **as_role("consumer"))
    assert found.status == 200 and '"secret text"' in found.text


@pytest.mark.parametrize("role, ends", [("consumer", False), ("producer", True)])
def test_a_tail_is_for_consumers(guarded, role, ends):
    asked = urllib.request.Request(f"{guarded.http_url}/console/tail?topic={quote(TOPIC, safe='')}",
                                   headers=as_role(role))
    with urllib.request.urlopen(asked, timeout=HANG_SECONDS) as answer:
        event, data = (answer.readline().decode().partition(": ")[2].strip() for _ in range(2))
    told = json.loads(data)
    if ends:
        assert event == "ended" and "Not authorized" in told["reason"]
    else:
        assert event == "rows" and [row["payload"] for row in told["rows"]] == ["secret text"]


def test_dialogs_say_who_may_not(guarded):
    values = f"topic={quote(TOPIC, safe='')}&subscription=billing"
    for action, may, may_not in (("skip-messages", "consumer", "producer"), ("publish", "producer", "consumer")):
        assert "data-method" in ask(guarded, "GET", f"/console/actions/{action}?{values}", **as_role(may)).text
        refused = ask(guarded, "GET", f"/console/actions/{action}?{values}", **as_role(may_not)).text
        assert "data-method" not in refused and "Not authorized" in refused


def test_what_a_browser_publishes_stands_in_the_audit_log_without_its_content(guarded):
    body = {"payloadBase64": base64.b64encode(b"hidden").decode()}
    assert ask(guarded, "POST", f"/ops/v1/messages/{PATH}", body, **as_role("consumer")).status == 401
    assert ask(guarded, "POST", f"/ops/v1/messages/{PATH}", body, **as_role("producer")).status == 200
    log = guarded.data_dir / "audit.log"
    wanted = {("consumer", 401), ("producer", 200)}

    def told():
        return {(line["role"], line["status"]) for line in map(json.loads, log.read_text().splitlines())
                if line["request"] == f"POST /ops/v1/messages/{PATH}"}

    eventually(lambda: wanted <= told())
    assert "hidden" not in log.read_text() and body["payloadBase64"] not in log.read_text()

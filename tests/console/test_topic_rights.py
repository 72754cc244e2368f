"""Pages of topics for roles that may not see or do everything: what is left out, and what dialogs say."""
import html
from urllib.parse import urlencode

import pytest

from .test_sessions import ask, several, sign_in, token, two_namespaces  # noqa: F401 - a fixture

pytestmark = pytest.mark.slow
TOPIC = "persistent/acme/eu/orders"


@pytest.fixture(scope="module")
def reader(several):  # noqa: F811
    """The cookie of a role that may produce and consume in one namespace of two."""
    make = two_namespaces(several, "/admin/v2/persistent/acme/{namespace}/orders")
    make("PUT", f"/admin/v2/{TOPIC}/subscription/billing")
    return sign_in(several, token=token("reader"))


def test_a_table_asks_for_a_namespace_that_the_role_may_see(several, reader):  # noqa: F811
    for table in ("topics", "subscriptions"):
        whole = ask(several, "GET", f"/console/{table}", Cookie=reader)
        assert whole.status == 200 and "Choose a namespace that you may look at." in whole.text
        assert "acme" not in whole.text
        assert ask(several, "GET", f"/console/rows/{table}", Cookie=reader).text.count("<tr") == 0
    own = ask(several, "GET", "/console/topics?tenant=acme&namespace=eu", Cookie=reader).text
    assert f'href="/console/topics/{TOPIC}"' in own and "acme/us" not in own
    other = ask(several, "GET", "/console/topics?tenant=acme&namespace=us", Cookie=reader).text
    assert "Choose a namespace" in other and "us/orders" not in other


def test_the_page_of_a_topic_leaves_out_what_the_role_may_not_see(several, reader):  # noqa: F811
    page = ask(several, "GET", f"/console/topics/{TOPIC}", Cookie=reader)
    assert page.status == 200 and "billing" in page.text and 'id="storage"' in page.text
    assert 'id="policies"' not in page.text and "set-retention" not in page.text
    whole = ask(several, "GET", f"/console/topics/{TOPIC}", Cookie=sign_in(several, token=token("admin"))).text
    assert 'id="policies"' in whole and "set-retention" in whole
    for path in ("", "/delayed", "/schemas"):
        refused = ask(several, "GET", f"/console/topics/persistent/acme/us/orders{path}", Cookie=reader)
        assert refused.status in (401, 403), path
        assert "You may not see this" in refused.text or "may not see" in refused.text, path


@pytest.mark.parametrize("action", ["delete-topic", "truncate", "terminate", "trim", "unload", "compact",
                                    "upload-schema", "set-messageTTL"])
def test_a_dialog_says_that_the_role_may_not(several, reader, action):  # noqa: F811
    values = {"topic": f"persistent://{TOPIC.removeprefix('persistent/')}", "force": "true", "value": "60",
              "type": "STRING"}
    answer = ask(several, "GET", f"/console/actions/{action}?{urlencode(values)}", Cookie=reader)
    text = html.unescape(answer.text)
    if action == "upload-schema":      # producers may
        assert "data-method" in text
    else:
        assert "You may not do this" in text and "data-method" not in text


def test_a_table_that_nobody_has_is_not_there(several, reader):  # noqa: F811
    assert ask(several, "GET", "/console/rows/secrets", Cookie=reader).status == 404
    assert ask(several, "GET", "/console/topics?sort=colour", Cookie=reader).status == 200

"""Pages of tenants, namespaces and access in a real browser: what they show, what they change, and to whom."""
import json
import re
import uuid
from urllib.parse import quote

import pytest

from ..harness import eventually, request
from .browser import needs_browser
from .test_sessions import ask, secret_of, sign_in, token
from .test_sessions import several as guarded  # noqa: F401 - a broker at which people sign in

pytestmark = [pytest.mark.slow, needs_browser]
HOSTILE = '<img src=x onerror="document.title=1">\u202e'


def done(broker, method, path, body=None):
    status, text = request(method, broker.http_url + path, json.dumps(body).encode() if body is not None else b"")
    assert status in (200, 204), (path, status, text)


def get(broker, path):
    status, text = request("GET", broker.http_url + path)
    assert status == 200, (path, text)
    return json.loads(text)


def settled(browser, is_done, seconds):
    """Wait until a change is made and its dialog closed; else the page that loads again would end the next one."""
    eventually(lambda: is_done() and not browser.all("dialog[open]"), seconds)


@pytest.fixture
def tenant(own):
    name = f"t{uuid.uuid4().hex[:8]}"
    done(own, "PUT", f"/admin/v2/tenants/{name}", {"adminRoles": ["alice"], "allowedClusters": ["standalone"]})
    done(own, "PUT", f"/admin/v2/namespaces/{name}/eu")
    return name


def test_a_tenant_is_created_changed_and_deleted(browser, own):
    name = f"t{uuid.uuid4().hex[:8]}"
    browser.open(own.http_url + "/console/tenants")
    browser.click("Create a tenant")
    browser.see("Name: fill this in.")
    browser.fill("dialog [name=tenant]", name)
    browser.fill("dialog [name=roles]", "alice, bob")
    browser.see("Administered by alice, bob, and super users.")
    browser.click("Create")
    browser.see("0 namespaces")
    assert browser.url == f"{own.http_url}/console/tenants/{name}"
    assert get(own, f"/admin/v2/tenants/{name}")["adminRoles"] == ["alice", "bob"]
    browser.click("Administrators")
    browser.fill("dialog [name=roles]", "bob")
    browser.see("alice may no longer administer it")
    browser.click("Change")
    settled(browser, lambda: get(own, f"/admin/v2/tenants/{name}")["adminRoles"] == ["bob"], 10)
    browser.open(f"{own.http_url}/console/tenants/{name}")
    browser.click("Delete the tenant")
    browser.see("The tenant and 0 namespaces go")
    browser.click("Delete")
    eventually(lambda: browser.url == own.http_url + "/console/tenants")
    assert name not in get(own, "/admin/v2/tenants")


def test_a_namespace_is_created_and_shows_its_policies_and_numbers(browser, own, client, tenant):
    browser.open(f"{own.http_url}/console/tenants/{tenant}")
    browser.see("One namespace")
    browser.click("Create a namespace")
    browser.fill("dialog [name=namespace]", "us")
    browser.see("has no topics yet")
    browser.click("Create")
    browser.see("No policy is set")
    assert browser.url == f"{own.http_url}/console/namespaces/{tenant}/us"
    change = "[...document.querySelectorAll('.policies tr')].find((row) => row.innerText.startsWith(arguments[0])" \
        ").querySelectorAll('button')[arguments[1]].click()"
    browser.run("document.querySelector('details.more').open = true")
    browser.run(change, "messageTTL", 0)
    browser.fill("#field-value", "3600")
    browser.see("messageTTL of this namespace becomes 3600, for all its topics")
    browser.click("Same by command")
    assert f"geminga admin namespaces set-message-ttl {tenant}/us --messageTTL 3600" in browser.text
    browser.click("Set")
    eventually(lambda: re.search(r"3600\s+namespace", browser.text))
    assert get(own, f"/admin/v2/namespaces/{tenant}/us/messageTTL") == 3600
    browser.run(change, "messageTTL", 1)
    browser.see("Afterwards the value of the broker is in force: 0.")
    browser.click("Remove")
    browser.see("No policy is set")
    topic = f"persistent://{tenant}/us/orders"
    client.subscribe(topic, "billing").close()
    producer = client.create_producer(topic)
    for _ in range(7):
        producer.send(b"x")
    producer.close()
    eventually(lambda: browser.one(".tile:nth-child(3) .figure").text == "7")      # without a reload
    browser.click("Set a property")
    browser.fill("dialog [name=key]", "team")
    browser.fill("dialog [name=value]", HOSTILE[:-1])
    browser.see("The property is new.")
    browser.click("Set")
    browser.see("onerror")
    assert browser.run("return document.title") != "1"


def test_a_namespace_with_topics_says_what_goes_with_it(browser, own, client, tenant):
    topic = f"persistent://{tenant}/eu/orders"
    client.subscribe(topic, "billing").close()
    producer = client.create_producer(topic)
    for _ in range(3):
        producer.send(b"x" * 100)
    producer.close()
    browser.open(f"{own.http_url}/console/namespaces/{tenant}/eu")
    browser.click("Delete the namespace")
    browser.see("One topic goes with all its messages")
    assert "a backlog of 3" in browser.text and "force_delete_namespaces" in browser.text
    assert not browser.one("dialog [data-confirm]").is_enabled()
    name = "forceDeleteNamespaceAllowed"
    done(own, "POST", f"/admin/v2/brokers/configuration/{name}/true")
    browser.click("Cancel")
    browser.click("Delete the namespace")
    browser.see("tick the field above")
    browser.one("dialog [name=force]").click()
    eventually(lambda: browser.run("return !document.querySelector('dialog [data-confirm]').disabled"))
    browser.click("Delete")
    eventually(lambda: browser.url.endswith(f"/console/tenants/{tenant}"))
    assert get(own, f"/admin/v2/namespaces/{tenant}") == []
    done(own, "DELETE", f"/admin/v2/brokers/configuration/{name}")


def test_grants_are_given_changed_and_taken_away(browser, own, tenant):
    place = f"/admin/v2/namespaces/{tenant}/eu"
    browser.open(f"{own.http_url}/console/namespaces/{tenant}/eu")
    browser.see("Nothing was granted.")
    browser.click("Grant on the namespace")
    browser.fill("dialog [name=role]", "carol")
    browser.see("Tick what the role may do.")
    browser.one("dialog [name=produce]").click()
    browser.see("carol may produce.")
    browser.click("Grant")
    settled(browser, lambda: get(own, f"{place}/permissions") == {"carol": ["produce"]}, 10)
    browser.open(browser.url)
    browser.click("Change")
    browser.see("carol may produce.")
    browser.one("dialog [name=produce]").click()
    browser.one("dialog [name=consume]").click()
    browser.see("It may no longer produce")
    browser.click("Grant")
    settled(browser, lambda: get(own, f"{place}/permissions") == {"carol": ["consume"]}, 10)
    browser.open(browser.url)
    browser.click("Grant a subscription")
    browser.fill("dialog [name=subscription]", "billing")
    browser.fill("dialog [name=role]", "dave")
    browser.see("Only dave may read from billing now")
    browser.click("Grant")
    settled(browser, lambda: get(own, f"{place}/permissions/subscription") == {"billing": ["dave"]}, 10)
    browser.open(f"{own.http_url}/console/access?role=dave")
    browser.see("One grant")
    browser.click("Revoke")
    browser.see("No role is left for billing")
    browser.click("Revoke")
    settled(browser, lambda: get(own, f"{place}/permissions/subscription") == {}, 10)
    browser.open(f"{own.http_url}/console/access?role=carol&tenant={tenant}")
    browser.click("Revoke")
    browser.see("carol loses what was granted here")
    browser.click("Revoke")
    settled(browser, lambda: get(own, f"{place}/permissions") == {}, 10)
    browser.open(browser.url)
    browser.see("0 grants")


def test_a_grant_on_a_topic_leaves_those_of_its_namespace(browser, own, tenant):
    topic = f"{tenant}/eu/orders"
    done(own, "PUT", f"/admin/v2/persistent/{topic}")
    done(own, "POST", f"/admin/v2/namespaces/{tenant}/eu/permissions/erin", ["produce"])
    done(own, "POST", f"/admin/v2/persistent/{topic}/permissions/erin", ["consume"])
    browser.open(f"{own.http_url}/console/access?role=erin")
    browser.see("2 grants")
    row = [one for one in browser.all("tbody tr") if "topic" in one.text][0]
    row.find_elements("css selector", "button")[0].click()
    browser.see("erin may consume.")
    browser.one("dialog [name=produce]").click()
    browser.see("erin may produce, consume.")
    browser.click("Grant")
    path = f"/admin/v2/persistent/{topic}/permissions"
    settled(browser, lambda: get(own, path) == {"erin": ["consume", "produce"]}, 10)
    browser.open(browser.url)
    row = [one for one in browser.all("tbody tr") if "topic" in one.text][0]
    row.find_elements("css selector", "button")[1].click()
    browser.see("erin loses what was granted here")
    browser.click("Revoke")
    settled(browser, lambda: get(own, path) == {"erin": ["produce"]}, 10)


def test_names_that_are_no_html_and_no_other_names(browser, own, tenant):
    done(own, "POST", f"/admin/v2/namespaces/{tenant}/eu/permissions/{quote(HOSTILE, safe='')}", ["consume"])
    for page in (f"/console/namespaces/{tenant}/eu", f"/console/access?tenant={tenant}", f"/console/tenants/{tenant}"):
        browser.open(own.http_url + page)
        assert browser.all("main img") == [] and browser.run("return document.title") != "1", page
    browser.open(f"{own.http_url}/console/access?tenant={tenant}")
    browser.see('<img src=x onerror="document.title=1">\\u202e')
    browser.click("Revoke")
    browser.see("loses what was granted here")
    browser.click("Revoke")
    settled(browser, lambda: get(own, f"/admin/v2/namespaces/{tenant}/eu/permissions") == {}, 10)


# -- who may see what

def test_a_role_sees_what_rest_would_answer_to_it(guarded):  # noqa: F811 - the fixture
    admin, alice = (sign_in(guarded, token=token(role)) for role in ("admin", "alice"))
    secret = {"X-Geminga-Csrf": secret_of(guarded, admin)}
    assert ask(guarded, "PUT", "/admin/v2/tenants/acme", {"adminRoles": ["alice"], "allowedClusters": ["standalone"]},
               Cookie=admin, **secret).status == 204
    for path in ("/console/clients", "/console/tenants", "/console/audit", "/console/nights", "/console/configuration",
                 "/console/log", "/console/transactions", "/console/schedules"):
        page = ask(guarded, "GET", path, Cookie=alice)
        assert page.status in (401, 403) and "You may not see this" in page.text, path
        assert ask(guarded, "GET", path, Cookie=admin).status == 200, path
        assert f'href="{path}"' not in ask(guarded, "GET", "/", Cookie=alice).text
        assert f'href="{path}"' in ask(guarded, "GET", "/", Cookie=admin).text
    assert ask(guarded, "GET", "/console/tenants/acme", Cookie=alice).status == 200
    assert ask(guarded, "GET", "/console/documents", Cookie=alice).status == 200
    start = ask(guarded, "GET", "/", Cookie=alice).text
    assert "alice may not see the state of the broker" in start and "owner-0" not in start
    assert ask(guarded, "GET", "/console/news?since=1", Cookie=alice).text == ""


def test_the_access_page_says_who_somebody_is(guarded):  # noqa: F811
    page = ask(guarded, "GET", "/console/access", Cookie=sign_in(guarded, token=token("admin"))).text
    assert "A super user" in page and "<bdi>admin</bdi>" in page
    page = ask(guarded, "GET", "/console/access", Cookie=sign_in(guarded, token=token("bob"))).text
    assert "No super user" in page and "Name a tenant that the role administers" in page


def test_a_question_about_rights_is_answered_with_the_reason(guarded):  # noqa: F811
    admin = sign_in(guarded, token=token("admin"))
    query = "/console/access?who={}&action=consume&topic=public/default/orders"
    assert "<strong class=\"good\">Yes." in ask(guarded, "GET", query.format("admin"), Cookie=admin).text
    page = ask(guarded, "GET", query.format("nobody"), Cookie=admin).text
    assert "<strong class=\"bad\">No." in page and "These could grant it" in page
    page = ask(guarded, "GET", query.format("nobody") + "%00%2f", Cookie=admin)
    assert page.status == 200 and "failure" in page.text


def test_a_dialog_tells_a_role_that_it_may_not(guarded):  # noqa: F811
    alice = sign_in(guarded, token=token("bob"))
    told = ask(guarded, "GET", "/console/actions/create-tenant?tenant=x&roles=", Cookie=alice).text
    assert "disabled" in told and "super-user" in told

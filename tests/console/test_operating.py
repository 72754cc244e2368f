"""Pages for operating a broker, in a real browser: clients, transactions, audit, nights, configuration, log."""
import json
import re

import pulsar
import pytest

from geminga.supervisor import main
from geminga.supervisor.console import document_pages

from ..breaches import assert_none
from ..harness import eventually, request, unique_topic
from ..supervisor.test_transactions import begin_with_message
from ..workers.peer import Peer
from .browser import needs_browser

pytestmark = [pytest.mark.slow, needs_browser]
HOSTILE = '<b onmouseover="document.title=1">\u202e'


def get(broker, path):
    status, text = request("GET", broker.http_url + path)
    assert status == 200, (path, text)
    return json.loads(text)


def texts(browser, selector):
    return browser.run("return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent.trim())",
                       selector)


# -- clients and transactions

def test_a_connection_is_found_sorted_and_closed(browser, own, client):
    topic = unique_topic()
    consumer = client.subscribe(topic, "billing")
    browser.open(own.http_url + "/console/clients")
    browser.see("Pulsar-CPP")
    browser.click("Consumers")
    eventually(lambda: browser.url.endswith("sort=consumers"))
    assert browser.one("th[aria-sort]").get_attribute("aria-sort") == "descending"
    browser.click("Consumers")
    eventually(lambda: "reverse=true" in browser.url)
    assert browser.one("th[aria-sort]").get_attribute("aria-sort") == "ascending"
    browser.fill("main [name=match]", "no such library")
    browser.click("Filter")
    browser.see("No client is connected.")
    browser.open(own.http_url + "/console/clients?topic=" + topic.removeprefix("persistent://"))
    browser.see("One connection")
    before = texts(browser, "tbody td:first-child")
    browser.click("Close")
    browser.see("One producer or consumer ends.")
    assert f"geminga clients close {before[0]}" in browser.run(
        "return document.querySelector('dialog [data-same]').textContent")
    browser.click("Close")
    eventually(lambda: before[0] not in texts(browser, "tbody td:first-child") and not browser.all("dialog[open]"))
    assert "closed" not in browser.text
    consumer.close()


def test_names_of_clients_are_text(browser, own):
    connection = pulsar.Client(own.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = connection.subscribe(unique_topic(), HOSTILE)
    browser.open(own.http_url + "/console/clients")
    browser.see("Pulsar-CPP")
    assert browser.all("main b") == []
    consumer.close()
    connection.close()


def test_an_open_transaction_is_shown_and_aborted(browser, own):
    topic = unique_topic()
    with Peer(own.service_url) as peer:
        _, path = begin_with_message(peer, 0, topic)
        browser.open(own.http_url + "/console/transactions")
        browser.see(f"({path.replace('/', ',')})")
        browser.click("Abort")
        browser.see("One message of the transaction is never delivered; 0 acknowledgements are undone")
        browser.click("Abort")
        browser.see("No transaction is open.")
        assert get(own, "/ops/v1/transactions")["rows"] == []


def test_transactions_that_are_switched_off_are_not_in_the_navigation(start_broker, tmp_path):
    (tmp_path / "off.toml").write_text("[transactions]\nenabled = false\n")
    broker = start_broker("--config", str(tmp_path / "off.toml"))
    assert "/console/transactions" not in request("GET", broker.http_url + "/")[1]


# -- the audit log

def test_changes_are_shown_newest_first_and_found(browser, own):
    topics = [unique_topic("audited").replace("://", "/") for _ in range(3)]
    for topic in topics:
        assert request("PUT", f"{own.http_url}/admin/v2/{topic}", b"")[0] == 204
    browser.open(own.http_url + "/console/audit?match=audited")
    browser.see(topics[0])
    assert texts(browser, "tbody td:nth-child(4)") == [f"PUT /admin/v2/{topic}" for topic in reversed(topics)]
    browser.fill("main [name=match]", topics[1].rpartition("/")[2])
    browser.click("Filter")
    eventually(lambda: len(browser.all("tbody tr")) == 1)
    browser.open(own.http_url + "/console/audit?role=nobody")
    browser.see("No such change was made.")


def test_older_changes_are_a_page_away(browser, own):
    for number in range(120):
        request("PUT", f"{own.http_url}/admin/v2/{unique_topic(f'page{number}').replace('://', '/')}", b"")
    browser.open(own.http_url + "/console/audit?match=/page")
    assert len(browser.all("tbody tr")) == 100
    browser.click("Older")
    eventually(lambda: "at=" in browser.url)
    assert len(browser.all("tbody tr")) == 20 and "match=%2Fpage" in browser.url
    browser.click("Newest")
    eventually(lambda: "at=" not in browser.url)
    assert len(browser.all("tbody tr")) == 100


def test_a_request_with_html_in_it_is_text(browser, own):
    request("PUT", f"{own.http_url}/admin/v2/namespaces/public/default/properties",
            json.dumps({"x": HOSTILE}).encode())
    request("POST", f"{own.http_url}/admin/v2/namespaces/public/default/permissions/%3Cb%3E%E2%80%AE", b'["consume"]')
    browser.open(own.http_url + "/console/audit?match=permissions")
    browser.see("%3Cb%3E%E2%80%AE")
    browser.click("Rights that were set")
    browser.see('["consume"]')
    assert browser.all("main td b") == []
    request("DELETE", f"{own.http_url}/admin/v2/namespaces/public/default/permissions/%3Cb%3E%E2%80%AE")


# -- nights

def test_a_topic_is_compacted_and_the_page_follows(browser, own, client):
    topic = unique_topic("compacted")
    producer = client.create_producer(topic)
    for number in range(20):
        producer.send(b"x" * 200, partition_key=str(number % 2))
    producer.close()
    browser.open(own.http_url + "/console/nights")
    browser.see("There was no nightly job yet.")
    browser.click("Compact a topic")
    browser.fill("dialog [name=topic]", "non-persistent://public/default/x")
    browser.see("Only persistent topics are compacted")
    browser.fill("dialog [name=topic]", topic.rpartition("/")[2])
    browser.see("a view with the newest message of each key is made")
    browser.click("Compact")
    browser.see(topic.removeprefix("persistent://"))
    eventually(lambda: get(own, "/ops/v1/compaction")["ended"])
    browser.see("done")
    assert "G5" not in browser.text


def test_a_backup_is_made_and_shown(browser, own, tmp_path):
    browser.open(own.http_url + "/console/nights")
    browser.click("Make a backup")
    browser.fill("dialog [name=folder]", "here")
    browser.see("The folder is an absolute path")
    browser.fill("dialog [name=folder]", str(tmp_path))
    browser.fill("dialog [name=keep]", "2")
    browser.see("all but the newest 2 backups are deleted there")
    browser.click("Back up")
    browser.see(str(tmp_path))
    eventually(lambda: not browser.all("dialog[open]"))
    assert get(own, "/ops/v1/backup")["folder"].startswith(str(tmp_path))
    browser.open(own.http_url + "/")
    browser.see(str(tmp_path))


def test_a_night_is_shown_with_its_results(browser, own, client, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("GEMINGA_NIGHTLY_TABLES_URL", str(tmp_path))
    topic = unique_topic("tabled")
    client.create_producer(topic).send(b"one")
    place = f"{own.http_url}/admin/v2/{topic.replace('://', '/')}/export"
    assert request("POST", place, b'"messages"')[0] == 204
    assert main.main(["nightly", "run", "--data-dir", str(own.data_dir)]) == 0
    capsys.readouterr()
    report = get(own, "/ops/v1/compaction/report")
    browser.open(own.http_url + "/console/nights")
    browser.see(report["status"])
    assert "Partitions compacted" in browser.text and "One table" in browser.text
    assert topic.removeprefix("persistent://") in browser.text
    assert request("DELETE", place)[0] == 204


# -- the configuration

def test_set_keys_come_first_and_a_setting_is_changed_and_reset(browser, own):
    browser.open(own.http_url + "/console/configuration")
    browser.see("keys are not at their defaults")
    keys = texts(browser, "tbody td:first-child")
    sources = texts(browser, "tbody td:nth-child(3)")
    is_set = [source != "default" for source in sources]
    assert is_set == sorted(is_set, reverse=True) and "data_dir" in keys[:sum(is_set)]
    browser.fill("main [name=match]", "message_ttl")
    browser.choose("main [name=only]", "those that change at once")
    browser.click("Filter")
    eventually(lambda: len(browser.all("tbody tr")) == 1)
    [key] = texts(browser, "tbody td:first-child")
    browser.click("Change")
    browser.fill("dialog [name=value]", "3600")
    browser.see(f"{key} is ")
    browser.click("Change")
    browser.see("changed at run time")
    row = next(row for row in get(own, "/ops/v1/configuration")["rows"] if row["key"] == key)
    assert row["set_at_run_time"] and row["text"] == "3600"
    browser.click("Reset")
    browser.see("has the value of the configuration at once")
    browser.click("Reset")
    eventually(lambda: "changed at run time" not in browser.text)


def test_a_value_that_is_refused_is_told_in_the_dialog(browser, own):
    browser.open(own.http_url + "/console/configuration?match=message_ttl&only=run")
    browser.click("Change")
    browser.fill("dialog [name=value]", "soon")
    path = "return document.querySelector('dialog [data-confirm]').dataset.path ?? ''"
    eventually(lambda: browser.run(path).endswith("/soon"))
    browser.click("Change")
    browser.see("That failed: Invalid dynamic-config value")
    assert [line for line in browser.problems() if "412" not in line] == []      # the browser tells of the refusal


# -- the log

def test_new_lines_come_by_themselves_and_filters_hold(browser, own):
    topic = unique_topic("logged")
    browser.open(own.http_url + "/console/log?match=logged")
    assert request("PUT", f"{own.http_url}/admin/v2/{topic.replace('://', '/')}", b"")[0] == 204
    browser.see(topic.rpartition("/")[2])
    browser.choose("main [name=level]", "error")
    browser.click("Filter")
    browser.see("No such line is kept.")
    old = own.child("worker", 0)
    own.wait_replaced("worker", 0, own.kill("worker", 0))
    assert old is not None
    browser.open(own.http_url + "/console/log?level=error")
    browser.see("starting it again")
    browser.click("G201")
    browser.see("processes")
    assert browser.url.endswith("/console/documents/runbook/processes.md")


def test_the_level_is_changed_for_a_while(browser, own):
    browser.open(own.http_url + "/console/log")
    browser.see("Lines of level info and above are logged")
    browser.click("Change the level for a while")
    browser.fill("dialog [name=seconds]", "x")
    browser.see("Seconds are a whole number")
    browser.fill("dialog [name=seconds]", "60")
    browser.see("log lines of level debug and above for 1 min")
    browser.click("Change")
    browser.see("debug for everything")
    assert [rule["level"] for rule in get(own, "/ops/v1/log-level")["for_now"]] == ["debug"]
    browser.click("Back to the configured level")
    browser.see("The change of the level ends at once")
    browser.click("Reset")
    eventually(lambda: get(own, "/ops/v1/log-level")["for_now"] == [])


def test_lines_with_html_and_hidden_characters_are_text(browser, own, client):
    consumer = client.subscribe(unique_topic(), HOSTILE)
    browser.open(own.http_url + "/console/log?match=onmouseover")
    browser.see("\\u202e")
    assert browser.all("main b") == [] and "\u202e" not in browser.text
    consumer.close()


# -- documents

def test_a_page_is_found_and_leads_to_others(browser, own):
    browser.open(own.http_url + "/console/documents")
    browser.see("Runbook")
    browser.fill("main [name=match]", "disk room")
    browser.click("Search")
    browser.see("places")
    browser.click("disk: the data folder has no room, or cannot be used")
    browser.see("G101")
    assert browser.url.endswith("/console/documents/runbook/disk.md")
    browser.open(own.http_url + "/console/documents?match=zzzqqq")
    browser.see("0 places")


def test_every_link_of_a_page_leads_to_a_page_and_a_heading():
    html = {name: str(document_pages.as_html(name)) for name in document_pages.pages()}
    assert_none(f"{name}: {target} leads nowhere" for name, text in html.items()
                for target in re.findall(r'href="([^"]+)"', text)
                if not target.startswith(("http://", "https://")) and not _is_place(html, name, *target.split("#")))
    assert [name for name, text in html.items() if "style=" in text or "<script" in text] == []


def _is_place(html, name, path, anchor=""):
    """Whether a link from the page `name` leads to a page, and to a heading of it."""
    page = path.removeprefix(document_pages.PREFIX) if path else name
    return page in html and (not anchor or f'id="{anchor}"' in html[page] or anchor in _first(page))


def _first(page):
    """Return the anchor of a page's title, which stands above the text."""
    return [document_pages._anchor(document_pages.title_of(page), {})]


@pytest.mark.parametrize("path", ["docs/nothing.md", "../pyproject.toml", "%2e%2e/pyproject.toml", "docs/%2e%2e/x.md",
                                  "runbook", "docs/console.md%00"])
def test_only_documents_are_shown(own, path):
    assert request("GET", f"{own.http_url}/console/documents/{path}")[0] == 404


def test_installed_pages_are_found_as_those_of_the_checkout(tmp_path, monkeypatch):
    """The package has the runbook beside docs; links between pages are those of the package."""
    for name, text in {"README.md": "# R\n", "docs/a.md": "# A\n[r](../runbook/b.md#x) [m](../README.md) [c](a.py)\n",
                       "runbook/b.md": "# B\n## x\n[a](../docs/a.md) <i>no</i>\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for kept in (document_pages.pages, document_pages.title_of, document_pages.as_html, document_pages._sections):
        kept.cache_clear()
    monkeypatch.setattr(document_pages, "_CHECKOUT", tmp_path / "absent")
    monkeypatch.setattr(document_pages, "_INSTALLED", tmp_path)
    try:
        assert list(document_pages.pages()) == ["README.md", "docs/a.md", "runbook/b.md"]
        html = str(document_pages.as_html("docs/a.md"))
        assert 'href="/console/documents/runbook/b.md#x"' in html and 'href="/console/documents/README.md"' in html
        assert "a.py" not in html
        other = str(document_pages.as_html("runbook/b.md"))
        assert "&lt;i&gt;" in other and 'href="/console/documents/docs/a.md"' in other and 'id="x"' in other
        assert [one.section.page for one in document_pages.search("X")] == ["runbook/b.md"]
        assert document_pages.search(" ") == []
    finally:
        for kept in (document_pages.pages, document_pages.title_of, document_pages.as_html, document_pages._sections):
            kept.cache_clear()

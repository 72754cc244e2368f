"""With -o json every command prints one JSON value and nothing else, and names of fields keep one rule."""
import json
import re
import subprocess

import click
import pytest

from ..harness import COMMAND, HANG_SECONDS, request
from ..proto.client_frames import T
from ..standby.pair import Standby
from ..workers.peer import Peer
from .test_grammar import NOTHING_TO_PRINT, ours

pytestmark = pytest.mark.slow

CAMEL, SNAKE = re.compile(r"[a-z][A-Za-z0-9]*"), re.compile(r"[a-z][a-z0-9_]*")
MESSAGES = {"produce", "consume", "search"}      # commands that print messages
# Definitions have tenants and policies as Pulsar's admin API has them, and tokens have claims as RFC 7519 has them.
OTHERS = {"definitions export", "admin tokens show", "admin tokens validate"}
# Fields whose keys are data: topics, reasons, versions, properties of messages, percentiles.
MAPS = {"files", "targets", "not_possible", "properties", "publish_ms", "end_to_end_ms"}
TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJqb2UifQ.x"


def names(value):
    """Yield the names of all fields in a JSON value."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield name
            if name not in MAPS:
                yield from names(item)
    elif isinstance(value, list):
        for item in value:
            yield from names(item)


def taken_back(own, run, verb):
    """Return what a verb of undelete prints about a topic that was deleted, or a backlog that was cleared."""
    place, topic = f"{own.http_url}/admin/v2", f"deleted-{verb}"
    at = f"{place}/persistent/public/default/{topic}"
    assert request("POST", f"{place}/namespaces/public/default/deletedRetention", b"3600")[0] == 204
    assert request("PUT", f"{at}/subscription/s")[0] == 204
    run(f"produce {topic} hello", "--url", own.service_url)
    what = ("POST", f"{at}/subscription/s/skip_all") if verb == "backlog" else ("DELETE", at)
    assert request(*what)[0] == 204
    assert request("POST", f"{place}/namespaces/public/default/deletedRetention", b"0")[0] == 204
    return run(f"undelete {verb} {topic}" + (" s" if verb == "backlog" else ""), "--admin-url", own.http_url)


@pytest.fixture(scope="module")
def printed(own, client, tmp_path_factory):
    """{command: JSON value that it prints}, of all commands that print their result."""
    place, folder = tmp_path_factory.mktemp("json"), own.data_dir
    at = ("--url", own.service_url)
    http = ("--admin-url", own.http_url)
    (place / "message").write_text("hello")

    def run(words, *more):
        done = subprocess.run([COMMAND[0], *words.split(), *map(str, more), "-o", "json"], capture_output=True,
                              text=True, timeout=HANG_SECONDS, check=False, cwd=place,
                              env={"PATH": "/usr/bin:/bin", "HOME": str(place)})
        assert done.stderr == "", words
        return json.loads(done.stdout)

    consumer = client.subscribe("orders", "billing")
    with Peer(own.service_url) as peer:
        began = peer.ask(T.NEW_TXN, request_id=1, txn_ttl_millis=60_000, tc_id=0).newTxnResponse
    shown = {
        "produce": run("produce orders hello", *at), "consume": run("consume orders", *at),
        "search": run("search orders", "--data-dir", folder),
        "redrive": run("redrive --dry-run --to orders orders", *at, *http),
        "undelete list": run("undelete list", *http),
        **{f"undelete {verb}": taken_back(own, run, verb) for verb in ("topic", "backlog", "discard")},
        "schedule set": run("schedule set orders tick --every 1d go", *http),
        "schedule list": run("schedule list", *http), "schedule show": run("schedule show orders tick", *http),
        "schedule run": run("schedule run orders tick", *http),
        **{f"schedule {verb}": run(f"schedule {verb} orders tick", *http) for verb in ("pause", "resume", "delete")},
        "bench": run("bench -n 10", *at, *http), "topics": run("topics", *http),
        "subscriptions": run("subscriptions", *http), "clients list": run("clients list", *http),
        "transactions list": run("transactions list", *http),
        "transactions abort": run(f"transactions abort 0,{began.txnid_least_bits}", *http),
        "why": run("why orders billing", *http), "why-denied": run("why-denied joe orders", *http),
        "status": run("status", *http), "log level": run("log level", *http),
        "debug bundle": run("debug bundle", "--data-dir", folder, "bundle.tar.gz"),
        "config check": run("config check", "--data-dir", folder), "config show": run("config show"),
        "tune": run("tune", "--data-dir", folder), "reload": run("reload", "--data-dir", folder),
        "definitions export": run("definitions export", *http),
        "import": run("import orders --from", own.service_url, *at, *http),
        "export": run("export orders --to", own.service_url, *at),
        "context set": run("context set here", *at), "context list": run("context list"),
        "context use": run("context use here"), "context show": run("context show"),
        "context remove": run("context remove here"),
        "backup": run("backup", "--data-dir", folder, place / "backups"),
        "nightly": run("nightly --engine here", "--data-dir", folder), "tables": run("tables", "--data-dir", folder),
        "verify": run("verify", folder),
        "upgrade check": run("upgrade check", folder),
        "ledger dump": run("ledger dump", next(folder.glob("partitions/*/*.ledger"))),
        "admin policies": run("admin policies"),
        "admin delayed list": run(f"admin --admin-url {own.http_url} delayed list orders --by message"),
        "admin tokens show": run("admin tokens show", TOKEN),
    }
    (place / "definitions").write_text(json.dumps(shown["definitions export"]))
    shown["definitions import"] = run("definitions import", place / "definitions", *http)
    shown["restore"] = run("restore", shown["backup"]["folder"], place / "restored")
    address = next(one["address"] for one in shown["clients list"] if one["consumers"])
    shown["clients close"] = run("clients close", address, *http)
    (place / "key").write_bytes(bytes(range(32)))
    token = subprocess.run([COMMAND[0], "admin", "tokens", "create", "-sk", place / "key", "-s", "joe"], check=True,
                           capture_output=True, text=True).stdout.strip()
    shown["admin tokens validate"] = run("admin tokens validate -sk", place / "key", token)
    consumer.close()
    standby = Standby(place / "second", own.service_url)
    try:
        standby.start().wait_complete()
        shown["drain"] = run("drain", "--data-dir", folder)
        shown["promote"] = run("promote", "--data-dir", standby.data_dir)
    finally:
        standby.close()
    return shown


def test_every_command_prints_one_value(printed):
    """A command that prints nothing but its result is in this test, too."""
    all_commands = {one.command_path.removeprefix("geminga ") for one in ours()
                    if not isinstance(one.command, click.Group)}
    missing = all_commands - printed.keys() - {path.removeprefix("geminga ") for path in NOTHING_TO_PRINT}
    assert missing == set()
    assert [path for path, value in printed.items() if value is None] == []


def test_names_of_messages_are_pulsars_and_all_others_are_snake_case(printed):
    wrong = [(path, name) for path, value in printed.items() if path not in OTHERS
             for name in names(value) if not (CAMEL if path in MESSAGES else SNAKE).fullmatch(name)]
    assert wrong == []


def test_answers_have_what_was_done(printed):
    assert [row["key"] for row in printed["config check"]["keys"]] == ["data_dir"]
    assert printed["reload"]["changes"] == []
    assert printed["definitions import"]["changes"] == []
    by_key = {row["key"]: row for row in printed["config show"]}
    assert by_key["network.port"] == {"key": "network.port", "value": 6650, "origin": "default"}
    assert [row["topic"] for row in printed["import"]] == ["persistent://public/default/orders"]
    assert printed["restore"]["files"] > 0 and printed["restore"]["findings"] == []
    assert printed["restore"]["verified"]["entries"] > 0
    assert printed["debug bundle"]["archive"].endswith("/bundle.tar.gz")
    assert printed["context remove"]["name"] == "here" and printed["drain"] == {"outstanding": 0}
    assert printed["promote"]["stopped"] is False and printed["promote"]["behind_ms"] >= 0
    assert printed["admin tokens show"] == {"header": {"alg": "HS256"}, "claims": {"sub": "joe"}}

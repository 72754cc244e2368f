"""Odd names are answered as Pulsar answers them, over every way in, but for the reasons below."""
from pathlib import Path

import pytest

from geminga.proto import names
from geminga.storage.catalogue.catalogue import open_catalogue

from ..harness import request
from .sweep import odd_names

RECORDED = odd_names.recorded((Path(__file__).parent / "sweep" / "odd_names.json").read_text())
BLANK = [name for name in odd_names.NAMES if names.is_blank(name)]
SLASHED = [name for name in odd_names.PATHS if name not in ("/", "a/", "//")]
SYSTEM = "__change_events", "__transaction_buffer_snapshot", "a__transaction_pending_ack"
PULSAR_FAILS = "500", "503", "504", "silence", "closed", "UnknownError", "ServiceNotReady"
# why -> whether it explains this difference: way, name, Pulsar's answer, ours
REASONS = {
    "a failure of Pulsar's own is a refusal here, or a name that is not there":
        lambda way, name, theirs, ours: theirs in PULSAR_FAILS and ours in (
            "400", "404", "409", "412", "204", "InvalidTopicName"),
    "a name with a slash is one of Pulsar 1, with a cluster":
        lambda way, name, theirs, ours: name in (*SLASHED, "a/") and ours in ("400", "412", "InvalidTopicName"),
    "a partition belongs to a topic that has a name":
        lambda way, name, theirs, ours: name.strip() == "-partition-0" and ours in ("400", "412", "InvalidTopicName"),
    "there are no system topics, and nobody creates them":
        lambda way, name, theirs, ours: name in SYSTEM and ours in (
            "400", "404", "405", "409", "NotAllowedError", "TopicNotFound"),
    "a subscription that no consumer can use is not created over REST":
        lambda way, name, theirs, ours: way == "PUT subscription" and ours == "412" and (
            name in (*BLANK, "+", "pulsar.repl.x", "pulsar.dedup")),
    "Pulsar decodes names in paths of schemas twice":
        lambda way, name, theirs, ours: way == "GET schema" and (name, theirs, ours) == ("+", "412", "404"),
    "a path with a line feed is no path of a WebSocket":
        lambda way, name, theirs, ours: way.startswith("WebSocket") and "\n" in name and ours == "404",
    "all refused subscriptions are 409 for a WebSocket":
        lambda way, name, theirs, ours: way == "WebSocket consumer" and (theirs, ours) == ("400", "409"),
    "a partition's name is nobody else's":
        lambda way, name, theirs, ours: "a-partition-0" in name and way.startswith("PUT") and ours == "412",
    "non-persistent topics with such names are created by use, as persistent ones are":
        lambda way, name, theirs, ours: way == "PRODUCER, non-persistent" and "a-partition-0" in name and (
            theirs, ours) == ("TopicNotFound", "ok"),
}


@pytest.mark.slow
def test_odd_names_are_answered_as_pulsar_answers_them(own):
    found = odd_names.played(own.http_url, own.service_url)
    differences = [(way, name, theirs, found[way][name]) for way, answers in RECORDED.items()
                   for name, theirs in answers.items() if found[way][name] != theirs]
    explained = {why: [one for one in differences if is_so(*one)] for why, is_so in REASONS.items()}
    assert [one for one in differences if not any(one in some for some in explained.values())] == []
    assert [why for why, some in explained.items() if not some] == []      # a reason that is none any more
    assert "Traceback" not in own.log()


def test_what_is_named_with_braces_is_reached_over_rest(broker):
    """Without a pattern of its own, a part of aiohttp's paths takes no braces."""
    at, topic = f"{broker.http_url}/admin/v2", "public/default/%7Bname%7D"
    schema, role = f"{at}/schemas/{topic}/schema", f"{at}/namespaces/public/default/permissions/%7Bx%7D"
    assert request("PUT", f"{at}/persistent/{topic}")[0] == 204
    assert request("POST", schema, b'{"type": "STRING", "schema": "", "properties": {}}')[0] == 200
    assert request("GET", schema)[0] == request("DELETE", schema)[0] == 200
    assert (request("POST", role, b'["consume"]')[0], request("DELETE", role)[0]) == (204, 204)
    assert request("DELETE", f"{at}/persistent/{topic}")[0] == 204


@pytest.mark.parametrize("name", [*BLANK, "\x1c", "\u2007a", "\u1680", "-partition-0", " -partition-3"])
def test_only_names_that_are_blank_to_java_are_blank(name):
    assert names.is_blank(name) == (name in BLANK or name in ("\x1c", "\u1680"))
    assert not names.is_blank("\u00a0") and not names.is_blank("\u2007") and not names.is_blank("\x85")


def test_a_topic_with_a_blank_name_of_an_older_version_can_be_used_and_deleted(start_broker):
    own = start_broker()
    path = f"{own.http_url}/admin/v2/persistent/public/default/%20"
    assert request("PUT", path)[0] == request("GET", path + "/stats")[0] == 412
    catalogue = open_catalogue(own.data_dir / "catalogue.sqlite")
    catalogue.topics.create(names.parse("persistent://public/default/ "), 0)
    catalogue.commit()
    catalogue.close()
    assert request("PUT", path + "/subscription/s", b"{}")[0] == 204
    assert request("GET", path + "/stats")[0] == 200
    own.stop()
    own.start()
    path = f"{own.http_url}/admin/v2/persistent/public/default/%20"
    assert request("DELETE", path + "?force=true")[0] == 204
    assert request("GET", path + "/stats")[0] == 412

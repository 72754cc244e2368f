"""`geminga definitions`: the export of one broker makes another one equal, once, and a wrong one is refused as a whole.
"""
import json

import pytest

from ..harness import Broker, request
from .test_serve import run

TOPIC = "persistent://acme/orders/placed"
CLUSTER = {"serviceUrl": "http://far:8080", "brokerServiceUrl": "pulsar://far:6650"}
RECORD = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]})


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    made = Broker(tmp_path_factory.mktemp("other") / "data")
    yield made.start()
    made.close()


def admin(broker, method, path, body=None):
    status, text = request(method, f"{broker.http_url}/admin/v2/{path}",
                           None if body is None else json.dumps(body).encode())
    assert status < 300, (method, path, status, text)


@pytest.fixture(scope="module")
def full(own):
    """A broker with definitions of every kind."""
    admin(own, "PUT", "clusters/far", CLUSTER)
    admin(own, "POST", "clusters/far/failureDomains/d", {"brokers": ["b"]})
    admin(own, "PUT", "tenants/acme", {"adminRoles": ["boss"], "allowedClusters": ["standalone"]})
    admin(own, "PUT", "namespaces/acme/orders")
    admin(own, "POST", "namespaces/acme/orders/retention", {"retentionTimeInMinutes": 30, "retentionSizeInMB": 100})
    admin(own, "POST", "namespaces/acme/orders/messageTTL", 3600)
    admin(own, "POST", "namespaces/acme/orders/permissions/shop", ["produce"])
    admin(own, "POST", "namespaces/acme/orders/permissions/subscription/mail", ["mailer"])
    admin(own, "PUT", "namespaces/acme/orders/properties", {"owner": "me"})
    admin(own, "PUT", "persistent/acme/orders/placed/partitions", 3)
    admin(own, "PUT", "persistent/acme/orders/placed/subscription/mail?replicated=true", "earliest")
    admin(own, "PUT", "persistent/acme/orders/placed/subscription/mail/properties", {"for": "mails"})
    admin(own, "POST", "persistent/acme/orders/placed/maxConsumers", 7)
    admin(own, "POST", "persistent/acme/orders/placed/permissions/shop", ["consume"])
    admin(own, "PUT", "scalable/acme/orders/grown?numInitialSegments=3", {"team": "a"})
    admin(own, "PUT", "scalable/acme/orders/grown/subscriptions/mail")
    admin(own, "POST", "scalable/acme/orders/grown/permissions/shop", ["consume"])
    admin(own, "PUT", "persistent/acme/orders/plain")
    admin(own, "PUT", "persistent/acme/orders/plain/properties", {"colour": "red"})
    for kind, text in (("STRING", ""), ("JSON", RECORD)):
        admin(own, "POST", "schemas/acme/orders/plain/schema",
              {"type": kind, "schema": text, "properties": {"of": kind}})
        if kind == "STRING":
            admin(own, "DELETE", "schemas/acme/orders/plain/schema")
    admin(own, "POST", "schemas/acme/orders/placed/schema",
          {"type": "KEY_VALUE", "schema": json.dumps({"key": RECORD, "value": RECORD}), "properties": {
              "key.schema.type": "JSON", "value.schema.type": "JSON", "kv.encoding.type": "SEPARATED",
              "key.schema.name": "",
              "value.schema.name": "", "key.schema.properties": "{}", "value.schema.properties": "{}"}})
    admin(own, "POST", "brokers/configuration/ttlDurationDefaultInSeconds/600")
    return own


def export(broker, path):
    assert run("definitions", "export", "--admin-url", broker.http_url, path)[0] == 0
    return json.loads(path.read_text())


def bring(broker, wanted, path, *more):
    path.write_text(json.dumps(wanted))
    return run("definitions", "import", "--admin-url", broker.http_url, *more, path)


def test_what_one_tells_makes_another_the_same_and_once(full, other, tmp_path):
    told, before = export(full, tmp_path / "told"), export(other, tmp_path / "before")
    assert told["topics"][TOPIC]["subscriptions"] == {"mail": {"properties": {"for": "mails"}, "replicated": True}}
    grown = told["topics"]["topic://acme/orders/grown"]
    assert (grown["segments"], grown["properties"], list(grown["subscriptions"])) == (3, {"team": "a"}, ["mail"])
    assert [one["type"] for one in told["topics"]["persistent://acme/orders/plain"]["schemas"]] == [None, "JSON"]
    status, printed, _ = bring(other, told, tmp_path / "file", "--dry-run")
    assert status == 0 and "namespaces/acme/orders: made" in printed and export(other, tmp_path / "after") == before
    status, done, complaints = bring(other, told, tmp_path / "file")
    assert (status, done, complaints) == (0, printed, [])
    assert export(other, tmp_path / "after") == told
    assert bring(other, told, tmp_path / "file")[:2] == (0, "")
    status, text = request("GET", f"{other.http_url}/admin/v2/persistent/acme/orders/placed/subscriptions")
    assert json.loads(text) == ["mail"]
    assert request("GET", f"{other.http_url}/admin/v2/namespaces/acme/orders/messageTTL")[1] == "3600"


def test_what_is_named_becomes_what_is_said_and_nothing_else_changes(full, tmp_path):
    before = export(full, tmp_path / "before")
    wanted = {"version": 1, "topics": {TOPIC: {"partitions": 4, "policies": {"maxConsumers": 9}}}}
    status, printed, _ = bring(full, wanted, tmp_path / "file")
    assert status == 0 and "4 partitions instead of 3" in printed
    after = export(full, tmp_path / "after")
    assert after["topics"][TOPIC]["policies"] == {"maxConsumers": 9}
    after["topics"][TOPIC]["policies"], after["topics"][TOPIC]["partitions"] = before["topics"][TOPIC]["policies"], 3
    assert after == before


@pytest.mark.parametrize(("wanted", "said"), [
    ([], "expected an object"), ({}, "version"), ({"version": 2}, "version"),
    ({"version": 1, "topic": {}}, "unknown key 'topic'"),
    ({"topics": {TOPIC: {"partition": 1}}}, "unknown key 'partition'"), ({"topics": {"placed": {}}}, "complete name"),
    ({"topics": {TOPIC: {"partitions": 1}}}, "cannot become"),
    ({"topics": {TOPIC: {"partitions": 4, "policies": {"ttl": 1}}}}, "'ttl'"),
    ({"topics": {TOPIC: {"partitions": 4, "policies": {"maxConsumers": "x"}}}}, "maxConsumers"),
    *(({"topics": {"topic://acme/orders/x": {"segments": count}}}, "segments") for count in (0, 1_025, True, "2")),
    ({"topics": {"topic://acme/orders/x": {"partitions": 1}}}, "unknown key 'partitions'"),
    ({"topics": {"segment://acme/orders/x/0000-ffff-0": {}}}, "not its segment"),
    ({"topics": {"persistent://acme/nowhere/x": {}}}, "no namespace"), ({"namespaces": {"nobody/x": {}}}, "no tenant"),
    ({"namespaces": {"acme/orders": {"policies": {"permissions": {"shop": ["fly"]}}}}}, "permissions"),
    ({"tenants": {"acme": {"adminRoles": "boss"}}}, "adminRoles"),
    ({"clusters": {"far": {"addresses": {}}}}, "unknown key"),
    ({"clusters": {"far": {"data": {"url": "x"}}}}, "unknown key 'url'"),
    ({"clusters": {"far": {"peers": [1]}}}, "expected a list of texts"),
    ({"clusters": {"far": {"failureDomains": {"d": {}}}}}, "brokers: expected a list of texts"),
    ({"clusters": {"far": {"failureDomains": {"d": ["b"]}}}}, "expected an object"),
    ({"tenants": {"acme": {"allowedClusters": ["moon"]}}}, "moon"),
    ({"namespaces": {"acme/orders": {"policies": {"replicationClusters": ["far"]}}}}, "replicationClusters"),
    ({"configuration": {"brokerName": "x"}}, "non-dynamic"),
    ({"configuration": {"ttlDurationDefaultInSeconds": "soon"}}, "dynamic-config"),
    ({"topics": {"persistent://acme/orders/plain": {"schemas": [{"version": 1, "type": "STRING"}]}}}, "another one"),
    ({"topics": {"persistent://acme/orders/plain": {"schemas": [{"version": 9, "type": "JSON", "schema": "no"}]}}},
     "schema"),
])
def test_what_is_wrong_is_refused_in_one_line_and_nothing_changes(full, tmp_path, wanted, said):
    before = export(full, tmp_path / "before")
    if isinstance(wanted, dict) and wanted and "version" not in wanted:
        wanted = {"version": 1, "tenants": {"fresh": {}}} | wanted
    status, printed, complaints = bring(full, wanted, tmp_path / "file")
    assert (status, printed, len(complaints)) == (1, "", 1) and said in complaints[0], complaints
    assert export(full, tmp_path / "after") == before

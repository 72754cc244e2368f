"""Policies: what is read, what is refused, and which scope's holds."""
import pytest

from geminga.proto.names import parse
from geminga.storage.catalogue import open_catalogue
from geminga.storage.options import StorageOptions
from geminga.storage.policies import AGE_QUOTA, BYTES_QUOTA, KNOWN, Policies, broker_policies, clash, policies_of

TOPIC = parse("persistent://public/default/orders")
OPTIONS = StorageOptions(retention_s=90, retention_bytes=5 << 20, message_ttl_s=7, backlog_quota_bytes=11, backlog_quota_age_s=13,
                         backlog_quota_policy="producer_exception")


@pytest.fixture
def catalogue(tmp_path):
    found = open_catalogue(tmp_path / "catalogue.sqlite")
    yield found
    found.close()


def retention(minutes, mib):
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": mib}


def test_without_any_configuration_nothing_is_kept_nothing_expires_and_nothing_is_bounded():
    found = broker_policies(StorageOptions())
    assert found == Policies()
    assert not found.retains


def test_the_topics_policy_is_stronger_than_its_namespaces_and_that_than_the_brokers(catalogue):
    """Each by itself: what is not set there is looked for further up, also for each kind of quota."""
    assert policies_of(catalogue, TOPIC, OPTIONS) == broker_policies(OPTIONS)
    catalogue.set_policy("public/default", "messageTTL", 60)
    catalogue.set_policy("public/default", "retention", retention(10, -1))
    catalogue.set_policy("public/default", BYTES_QUOTA, KNOWN[BYTES_QUOTA].read({"limit": "100", "policy": "producer_request_hold"}))
    catalogue.set_policy(str(TOPIC), "messageTTL", 0)
    catalogue.set_policy("public/other", "messageTTL", 999)
    found = policies_of(catalogue, TOPIC, OPTIONS)
    assert (found.message_ttl_s, found.retention_s, found.retention_bytes) == (0, 600, -1)
    assert (found.quota_bytes, found.quota_bytes_action, found.quota_age_s, found.quota_age_action) == (
        100, "producer_request_hold", 13, "producer_exception")
    assert policies_of(catalogue, parse("public/default/else"), OPTIONS).message_ttl_s == 60
    catalogue.set_policy(str(TOPIC), "messageTTL", None)
    assert policies_of(catalogue, TOPIC, OPTIONS).message_ttl_s == 60


def test_a_partition_has_its_topics_policies(catalogue):
    catalogue.set_policy(str(TOPIC), "retention", retention(-1, 3))
    found = policies_of(catalogue, TOPIC.partition_name(3), StorageOptions())
    assert (found.retention_s, found.retention_bytes, found.retains) == (-1, 3 << 20, True)


def test_a_policy_of_a_newer_broker_is_passed_over(catalogue):
    catalogue.set_policy(str(TOPIC), "somethingNew", {"x": 1})
    assert policies_of(catalogue, TOPIC, StorageOptions()) == Policies()


@pytest.mark.parametrize("name", KNOWN)
def test_what_holds_is_shown_as_it_is_set(name):
    """Setting what is shown changes nothing."""
    found = broker_policies(StorageOptions(retention_s=120, retention_bytes=5 << 20, message_ttl_s=7, backlog_quota_bytes=11,
                                           backlog_quota_age_s=13))
    known = KNOWN[name]
    assert known.fields(known.read(known.shown(found))).items() <= {field: getattr(found, field) for field in Policies.__slots__}.items()


@pytest.mark.parametrize(("name", "sent", "kept"), [
    ("retention", {"retentionTimeInMinutes": "7", "retentionSizeInMB": -1, "else": 1}, retention(7, -1)),
    ("retention", {}, retention(0, 0)),
    ("messageTTL", "5", 5),
    ("deduplication", "true", True),
    ("deduplication", False, False),
    (BYTES_QUOTA, {"limit": "10240", "policy": "producer_exception"},
     {"limit": 10240, "limitSize": 10240, "limitTime": 0, "policy": "producer_exception"}),
    (AGE_QUOTA, {"limitTime": 60, "policy": "consumer_backlog_eviction"},
     {"limit": 0, "limitSize": 0, "limitTime": 60, "policy": "consumer_backlog_eviction"}),
])
def test_values_are_read_as_clients_send_them(name, sent, kept):
    assert KNOWN[name].read(sent) == kept


@pytest.mark.parametrize(("name", "sent", "text"), [
    ("retention", retention(0, 20), "a single time or size limit to 0"),
    ("retention", retention(-1, 0), "a single time or size limit to 0"),
    ("retention", retention(-2, 5), "time limit must be >= -1"),
    ("retention", retention(5, -2), "size limit must be >= -1"),
    ("retention", retention(3_000_000_000, 5), "too large"),
    ("retention", [1], "expected an object"),
    ("messageTTL", -1, "message TTL must >= 0"),
    ("messageTTL", True, "expected a whole number"),
    ("messageTTL", 1.5, "expected a whole number"),
    ("messageTTL", "9" * 5_000, "expected a whole number"),
    ("deduplication", "perhaps", "expected true or false"),
    (BYTES_QUOTA, {"limitSize": 5}, "policy is one of"),
    (BYTES_QUOTA, {"limitSize": 5, "policy": ["producer_exception"]}, "policy is one of"),
    (BYTES_QUOTA, {"limitSize": {}, "policy": "producer_exception"}, "expected a whole number"),
])
def test_what_is_no_value_is_refused_with_the_reason(name, sent, text):
    with pytest.raises(ValueError, match=text):
        KNOWN[name].read(sent)


@pytest.mark.parametrize(("kept", "clashes"), [
    ({"retention": retention(10, 20), BYTES_QUOTA: {"limitSize": 20 << 20}}, True),
    ({"retention": retention(10, 20), BYTES_QUOTA: {"limitSize": (20 << 20) - 1}}, False),
    ({"retention": retention(10, 20), AGE_QUOTA: {"limitTime": 600}}, True),
    ({"retention": retention(10, 20), AGE_QUOTA: {"limitTime": 599}}, False),
    ({"retention": retention(-1, -1), BYTES_QUOTA: {"limitSize": 1 << 40}}, False),
    ({BYTES_QUOTA: {"limitSize": 1 << 40}}, False),
])
def test_more_is_retained_than_the_quota_lets_be_there(kept, clashes):
    assert clash(kept) == clashes

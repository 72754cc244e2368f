"""Policies: how values are read and refused, and which level's value is in force."""
import subprocess
import sys
from pathlib import Path

import pytest

from geminga.proto.names import parse
from geminga.storage.catalogue.catalogue import open_catalogue
from geminga.storage.catalogue.policies import (
    AGE_QUOTA,
    BYTES_QUOTA,
    Policies,
    applied,
    broker_policies,
    clash,
    policies_of,
)
from geminga.storage.catalogue.policy_declaration import default, fields, read
from geminga.storage.catalogue.policy_table import TABLE
from geminga.storage.catalogue.policy_values import Invalid
from geminga.storage.catalogue.stored_policies import RIGHTS
from geminga.storage.options import StorageOptions

ROOT = Path(__file__).resolve().parents[2]
TOPIC = parse("persistent://public/default/orders")
OPTIONS = StorageOptions(retention_s=90, retention_bytes=5 << 20, message_ttl_s=7, backlog_quota_bytes=11,
                         backlog_quota_age_s=13, backlog_quota_policy="producer_exception")


@pytest.fixture
def catalogue(tmp_path):
    found = open_catalogue(tmp_path / "catalogue.sqlite")
    yield found
    found.close()


def retention(minutes, mib):
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": mib}


def kept_of(name, sent):
    return read(TABLE[name], sent)


def test_without_any_configuration_nothing_is_kept_nothing_expires_and_nothing_is_bounded():
    found = broker_policies(StorageOptions())
    assert found == Policies()
    assert not found.retains


def test_the_topics_policy_is_stronger_than_its_namespaces_and_that_than_the_brokers(catalogue):
    """A policy that a topic does not have comes from its namespace, each kind of quota by itself."""
    assert policies_of(catalogue, TOPIC, OPTIONS) == broker_policies(OPTIONS)
    catalogue.policies.set("public/default", "messageTTL", 60)
    catalogue.policies.set("public/default", "retention", retention(10, -1))
    quota = {"limit": "100", "policy": "producer_request_hold"}
    catalogue.policies.set("public/default", BYTES_QUOTA, kept_of(BYTES_QUOTA, quota))
    catalogue.policies.set(str(TOPIC), "messageTTL", 0)
    catalogue.policies.set("public/other", "messageTTL", 999)
    found = policies_of(catalogue, TOPIC, OPTIONS)
    assert (found.message_ttl_s, found.retention_s, found.retention_bytes) == (0, 600, -1)
    assert (found.quota_bytes, found.quota_bytes_action, found.quota_age_s, found.quota_age_action) == (
        100, "producer_request_hold", 13, "producer_exception")
    assert policies_of(catalogue, parse("public/default/else"), OPTIONS).message_ttl_s == 60
    catalogue.policies.set(str(TOPIC), "messageTTL", None)
    assert policies_of(catalogue, TOPIC, OPTIONS).message_ttl_s == 60


def test_a_partition_has_its_topics_policies(catalogue):
    catalogue.policies.set(str(TOPIC), "retention", retention(-1, 3))
    found = policies_of(catalogue, TOPIC.partition_name(3), StorageOptions())
    assert (found.retention_s, found.retention_bytes, found.retains) == (-1, 3 << 20, True)


def test_the_older_form_of_a_strategy_holds_where_the_newer_says_nothing(catalogue):
    options = StorageOptions(schema_compatibility_strategy="FORWARD")
    assert policies_of(catalogue, TOPIC, options).schema_strategy == "FORWARD"
    catalogue.policies.set("public/default", "schemaAutoUpdateCompatibilityStrategy", "AlwaysCompatible")
    for newer, holds in ((None, "ALWAYS_COMPATIBLE"), ("UNDEFINED", "ALWAYS_COMPATIBLE"), ("BACKWARD", "BACKWARD")):
        catalogue.policies.set("public/default", "schemaCompatibilityStrategy", newer)
        assert policies_of(catalogue, TOPIC, OPTIONS).schema_strategy == holds
    catalogue.policies.set(str(TOPIC), "schemaCompatibilityStrategy", "UNDEFINED")
    assert policies_of(catalogue, TOPIC, OPTIONS).schema_strategy == "BACKWARD"
    assert applied(catalogue, TOPIC, TABLE["schemaCompatibilityStrategy"], OPTIONS) == "BACKWARD"


@pytest.mark.parametrize(("kept", "may", "partitions"), [
    (None, True, 4),
    ({"allowAutoTopicCreation": False}, False, 4),
    ({"allowAutoTopicCreation": True, "topicType": "non-partitioned"}, True, 0),
    ({"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2}, True, 2),
])
def test_topics_come_to_be_as_their_namespace_says(catalogue, kept, may, partitions):
    catalogue.policies.set("public/default", "autoTopicCreation", kept)
    found = policies_of(catalogue, TOPIC, StorageOptions(auto_create_partitions=4))
    assert (found.auto_create_topics, found.new_topics_partitions if may else partitions) == (may, partitions)


def test_a_policy_of_a_newer_broker_is_passed_over(catalogue):
    catalogue.policies.set(str(TOPIC), "somethingNew", {"x": 1})
    assert policies_of(catalogue, TOPIC, StorageOptions()) == Policies()


@pytest.mark.parametrize("policy", TABLE.values(), ids=lambda policy: policy.name)
def test_a_row_is_whole(policy):
    """Each row of the policy table names fields of Policies and options that exist. It names the file where the
    policy takes effect, or the reason why it has none.
    """
    assert policy.doc.endswith(".")
    # authorization reads rights itself, a list of clusters is checked against the allowed ones when it is set, and what
    # changes segments or gives metrics labels is no policy of any partition: it is read as a whole
    is_used = any(part.field for part in policy.parts) or policy.name in (
        *RIGHTS, "allowedClusters", "scalableTopicAutoScale", "allowedTopicPropertyKeysForMetrics")
    assert bool(policy.where) == is_used != bool(policy.why)
    assert not policy.where or (ROOT / policy.where).is_file()
    assert policy.levels
    names = [part.json for part in policy.parts]
    assert names == [""] or ("" not in names and len(set(names)) == len(names))
    for part in policy.parts:
        assert not part.field or part.field in Policies.__slots__
        assert not part.key or hasattr(StorageOptions(), part.key)


@pytest.mark.parametrize("policy", TABLE.values(), ids=lambda policy: policy.name)
def test_what_holds_is_shown_as_it_is_set(policy):
    """A client that sets the value in force, as it was shown, changes nothing."""
    options = StorageOptions(retention_s=120, retention_bytes=5 << 20, message_ttl_s=7, backlog_quota_bytes=11,
                             backlog_quota_age_s=13)
    found, shown = broker_policies(options), default(policy, options)
    if "topic" in policy.levels and policy.where and shown is not None:
        kept = read(policy, shown)
        assert fields(policy, kept).items() <= {field: getattr(found, field) for field in Policies.__slots__}.items()


def test_the_command_line_may_import_the_table_at_once():
    """The table imports only Python's own packages and its value types: the command has to start at once."""
    code = "import sys; before = set(sys.modules); import geminga.storage.catalogue.policy_table; " \
           "print(*sorted(set(sys.modules) - before))"
    came = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name for name in came if name.split(".")[0] not in sys.stdlib_module_names} <= {
        "geminga", "geminga.storage", "geminga.storage.catalogue", "geminga.storage.catalogue.policy_table",
        "geminga.storage.catalogue.policy_declaration", "geminga.storage.catalogue.policy_checks",
        "geminga.storage.catalogue.policy_values"}


@pytest.mark.parametrize(("name", "sent", "kept"), [
    ("retention", {"retentionTimeInMinutes": "7", "retentionSizeInMB": -1, "else": 1}, retention(7, -1)),
    ("retention", {}, retention(0, 0)),
    ("messageTTL", "5", 5),
    ("deduplication", "true", True),
    ("deduplication", False, False),
    (BYTES_QUOTA, {"limit": "10240", "policy": "producer_exception"},
     {"limit": 10240, "limitSize": 10240, "limitTime": 0, "policy": "producer_exception"}),
    (BYTES_QUOTA, {"limitSize": -1, "policy": "producer_exception"},
     {"limit": -1, "limitSize": -1, "limitTime": 0, "policy": "producer_exception"}),
    (BYTES_QUOTA, {"policy": "producer_exception"},
     {"limit": -1, "limitSize": -1, "limitTime": 0, "policy": "producer_exception"}),
    (AGE_QUOTA, {"limitTime": 60, "policy": "consumer_backlog_eviction"},
     {"limit": 0, "limitSize": 0, "limitTime": 60, "policy": "consumer_backlog_eviction"}),
])
def test_values_are_read_as_clients_send_them(name, sent, kept):
    assert kept_of(name, sent) == kept


@pytest.mark.parametrize(("name", "sent", "text"), [
    ("retention", retention(0, 20), "a single time or size limit to 0"),
    ("retention", retention(-1, 0), "a single time or size limit to 0"),
    ("retention", retention(-2, 5), "time limit must be >= -1"),
    ("retention", retention(5, -2), "size limit must be >= -1"),
    ("retention", retention(3_000_000_000, 5), "too large"),
    ("offloadPolicies", {"managedLedgerOffloadAutoTriggerSizeThresholdBytes": -(1 << 63)}, "too large"),
    ("retention", [1], "expected an object"),
    ("messageTTL", -1, "the value must be 0 or more"),
    ("messageTTL", True, "expected a whole number"),
    ("messageTTL", 1.5, "expected a whole number"),
    ("messageTTL", "9" * 5_000, "expected a whole number"),
    ("deduplication", "perhaps", "expected true or false"),
    (BYTES_QUOTA, {"limitSize": 5}, "policy is one of"),
    (BYTES_QUOTA, {"limitSize": 5, "policy": ["producer_exception"]}, "policy: expected one of"),
    (BYTES_QUOTA, {"limitSize": 0, "policy": "producer_exception"}, "limitSize is 0"),
    (BYTES_QUOTA, {"limit": 0, "policy": "producer_request_hold"}, "limitSize is 0"),
    (BYTES_QUOTA, {"limitSize": {}, "policy": "producer_exception"}, "expected a whole number"),
])
def test_what_is_no_value_is_refused_with_the_reason(name, sent, text):
    with pytest.raises(Invalid, match=text):
        kept_of(name, sent)


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


@pytest.mark.parametrize(("seconds", "size", "retains"), [
    (0, 0, False), (5, 0, False), (0, 5, False), (-1, 0, False), (0, -1, False),
    (5, 5, True), (-1, 5, True), (5, -1, True), (-1, -1, True)])
def test_nothing_is_retained_where_a_bound_is_zero(seconds, size, retains):
    found = Policies(retention_s=seconds, retention_bytes=size)
    assert (found.retains, found.work_alone) == (retains, retains)


# -- what follows from what holds

@pytest.mark.parametrize("policies, expected", [
    (Policies(), False), (Policies(message_ttl_s=5), True), (Policies(delete_inactive_topics=True), True),
    (Policies(subscription_expiration_s=5), True), (Policies(compaction_threshold=5), True),
    (Policies(retention_s=5, retention_bytes=-1), True), (Policies(retention_s=5), False),
    (Policies(retention_bytes=5), False),
    (Policies(quota_age_s=5, quota_age_action="consumer_backlog_eviction"), True),
    (Policies(quota_age_s=5, quota_age_action="producer_exception"), False),
    (Policies(quota_bytes=5, quota_age_action="consumer_backlog_eviction"), False)], ids=str)
def test_what_is_to_be_done_for_partitions_that_nobody_uses(policies, expected):
    assert policies.work_alone == expected


def test_retention_keeps_where_both_of_its_bounds_let_something_be_kept():
    for seconds, size, expected in ((0, 0, False), (5, 0, False), (0, 5, False), (5, 5, True), (-1, -1, True),
                                    (-1, 0, False)):
        assert Policies(retention_s=seconds, retention_bytes=size).retains == expected


def test_a_quota_of_nothing_is_a_quota():
    for policies, expected in ((Policies(), False), (Policies(quota_bytes=0), True), (Policies(quota_age_s=0), False),
                               (Policies(quota_age_s=1), True)):
        assert policies.has_quota == expected


def test_a_period_of_a_rate_is_a_second_at_least():
    found = Policies(dispatch_period_s=0, subscription_dispatch_period_s=-3)
    assert (found.dispatch_rate[2], found.subscription_dispatch_rate[2]) == (1, 1)


def test_blank_fields_are_shown_as_what_is_further_up(catalogue):
    delayed = TABLE["delayedDelivery"]
    for scope, tick_ms in (("public/default", 700), (str(TOPIC), 0)):
        kept = kept_of("delayedDelivery", {"active": True, "tickTime": tick_ms})
        catalogue.policies.set(scope, "delayedDelivery", kept)
    assert applied(catalogue, TOPIC, delayed, OPTIONS)["tickTime"] == 700
    assert policies_of(catalogue, TOPIC, OPTIONS).delay_tick_ms == 700


# -- numbers and lists

NUMBERS = ["maxProducers", "messageTTL"]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("wrong", [True, False, 1.0, None, "x", "", [], {}, 1 << 31, -(1 << 31), "2147483648",
                                   "-2147483648"], ids=repr)
def test_what_is_no_number_of_32_bits_is_none(name, wrong):
    with pytest.raises(Invalid):
        read(TABLE[name], wrong)


def test_the_least_and_the_largest_value_are_values():
    policy = TABLE["delayedDelivery"]
    for part in policy.parts:
        for bound, beyond in ((part.least, -1), (part.most, 1)):
            if bound is not None:
                assert read(policy, {"active": True, part.json: bound})[part.json] == bound
                with pytest.raises(Invalid):
                    read(policy, {"active": True, part.json: bound + beyond})
    assert [part for part in policy.parts if part.least is not None and part.most is not None]


def test_a_list_of_choices_has_each_once():
    assert kept_of("subscriptionTypesEnabled", ["Shared", "Exclusive", "Shared"]) == ["Exclusive", "Shared"]

"""What names of topics mean, and which are refused."""
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal

COMPLETE = {
    "orders": "persistent://public/default/orders",
    "acme/eu/orders": "persistent://acme/eu/orders",
    "persistent://acme/eu/orders": "persistent://acme/eu/orders",
    "non-persistent://acme/eu/orders": "non-persistent://acme/eu/orders",
    "a.b:c=d-e_f/n1/x": "persistent://a.b:c=d-e_f/n1/x",
    "persistent://acme/eu/with space, ключ and :": "persistent://acme/eu/with space, ключ and :",
    "orders-partition-3": "persistent://public/default/orders-partition-3",
    "topic://acme/eu/orders": "topic://acme/eu/orders",
    "segment://acme/eu/orders/0000-7fff-12": "segment://acme/eu/orders/0000-7fff-12",
}
INVALID = [
    "", "/", "//", "a/b", "a/b/", "/b/c", "a//c", "a/b/c/d", "://", "persistent://", "persistent://a",
    "persistent://a/b", "persistent://a/b/",
    "persistent:///b/c", "persistent://a//c", "PERSISTENT://a/b/c", "http://localhost:8080/x",
    "persistent://a b/c/d",
    "persistent://a\n/b/c", "persistent://a/b\n/c", "persistent://ä/b/c", "persistent://a/b/c\0d",
    "persistent://a/b/" + "x" * names.LENGTH_MAX,
    "topic://a/b", "topic://a/b/c/d", "topic://a/b/c-partition-0", "topic://a/b/", "topic://",
    "segment://", "segment://a/b/c", "segment://a/b/0000-ffff-0", "segment://a/b//0000-ffff-0",
    "segment://a/b/c/d/0000-ffff-0", "segment://a/b/c-partition-1/0000-ffff-0", "segment://a/b/c/0000-ffff-0/",
    *(f"segment://a/b/c/{odd}" for odd in (
        "", "0000-ffff", "0000-ffff-", "0000-ffff-00", "0000-ffff--1", "0000-FFFF-0", "000-ffff-0", "00000-ffff-0",
        "0000-10000-0", "8000-7fff-0", "0000-ffff-0x1", "0000-ffff-\u0660", "0000-ffff-0\n", " 0000-ffff-0",
        "0000-ffff-" + "9" * 19, "gggg-ffff-0", "0000-ffff-0-partition-0")),
]


def test_parts_of_the_longest_topics_have_names():
    """Partitions and segments are longer than their topic, which could not be used if they could not be named."""
    local = "x" * (names.LENGTH_MAX - len("a/b/"))
    for text in (f"persistent://a/b/{local}", f"topic://a/b/{local}"):
        topic = names.parse(text)
        part = topic.segment_name(10 ** 17, 0, 0xffff) if topic.is_scalable else topic.partition_name(999_999_999)
        assert names.parse(str(part)) == part
        with pytest.raises(Refusal):
            names.parse(f"{text}x")


def refusal_of(text: str) -> Refusal:
    with pytest.raises(Refusal) as caught:
        names.parse(text)
    return caught.value


def test_producers_of_one_client_for_several_segments_have_one_name():
    first, second = (names.parse(f"segment://a/b/c/{name}") for name in ("0000-7fff-1", "8000-ffff-12"))
    assert names.across_segments("p-seg-1", first) == names.across_segments("p-seg-12", second) == "p-seg-"
    partition = names.parse("a/b/c-partition-3")
    assert names.across_segments("p-seg-3", partition) == names.across_segments("p-seg-0", partition.base) == "p-seg-"
    for name, topic in (("p-seg-2", first), ("p-seg-1", second), ("p", first), ("p-seg-1", names.parse("a/b/c-seg-1"))):
        assert names.across_segments(name, topic) == name


@pytest.mark.parametrize("text, complete", COMPLETE.items())
def test_a_name_means_a_complete_one(text, complete):
    """Short and complete names are parsed to the complete name."""
    assert str(names.parse(text)) == complete
    assert names.parse(complete) == names.parse(text)


@pytest.mark.parametrize("text", INVALID, ids=lambda text: repr(text)[:40])
def test_what_names_no_topic_is_refused(text):
    assert refusal_of(text).code == api.InvalidTopicName


@pytest.mark.parametrize("text", ["x" * 5_000_000, "a/b/" + "\1/" * 1_000_000, "é://" + "é" * 100_000])
def test_a_refusal_is_short_however_long_the_name(text):
    """The refusal of a very long name fits into a frame that clients accept."""
    assert len(refusal_of(text).message) < 2_000


def test_a_name_of_pulsar_1_is_refused_with_a_hint():
    """A name with a cluster between tenant and namespace, as in Pulsar 1, is refused with a hint."""
    refusal = refusal_of("persistent://tenant/cluster/namespace/topic")
    assert (refusal.code, "Pulsar 1" in refusal.message) == (api.InvalidTopicName, True)
    assert "domain://tenant/namespace/topic" in refusal.message


def test_the_parts_of_a_name():
    found = names.parse("non-persistent://acme/eu/orders-partition-12")
    assert (found.domain, found.tenant, found.namespace_name, found.local_name) == ("non-persistent", "acme", "eu",
                                                                                    "orders-partition-12")
    assert (found.namespace, found.partition, found.is_persistent) == ("acme/eu", 12, False)


@pytest.mark.parametrize("local, partition", [
    ("orders", -1), ("orders-partition-0", 0), ("orders-partition-12", 12), ("orders-partition-999999999", 999_999_999),
    ("orders-partition-", -1), ("orders-partition-x", -1), ("orders-partition--1", -1), ("orders-partition-01", -1),
    ("-partition-1", -1),
    ("orders-partition-1x", -1), ("orders-partition-1\n", -1), ("orders-partition-1-partition-2", 2),
    ("two\nlines-partition-3", 3),
    ("orders-partition-1000000000", -1), ("orders-partition-٣", -1),
])
def test_a_partition_is_known_by_the_end_of_its_name(local, partition):
    """A name is a partition's if it ends with "-partition-" and a canonical number within the protocol's range."""
    assert names.parse(f"persistent://public/default/{local}").partition == partition


@pytest.mark.slow
@settings(deadline=None, derandomize=True)
@given(local=st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20),
       number=st.integers(0, 999_999_999))
def test_a_partition_and_its_topic_name_each_other(local, number):
    topic = names.parse(f"persistent://acme/eu/{local}")
    partition = topic.partition_name(number)
    assert partition.partition == number
    assert partition.base == topic
    assert names.parse(str(partition)) == partition
    if topic.partition < 0:
        assert topic.base is topic


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=300)
@given(text=st.text(st.sampled_from("ab/:-\n\0 persistent"), max_size=30) | st.text(max_size=30))
def test_any_text_is_a_name_or_refused(text):
    try:
        found = names.parse(text)
    except Refusal as refusal:
        assert refusal.code == api.InvalidTopicName
    else:
        assert names.parse(str(found)) == found


@pytest.mark.parametrize("text", ["public/default", "a.b/c_d"])
def test_a_namespace_is_tenant_and_name(text):
    assert names.parse_namespace(text) == text


@pytest.mark.parametrize("text", ["", "public", "/", "a/", "/b", "a/b/c", "a /b", "a/b\n"])
def test_what_is_no_namespace_is_refused(text):
    with pytest.raises(Refusal):
        names.parse_namespace(text)


@pytest.mark.parametrize("name, is_system", [
    ("topic://pulsar/system/transaction_coordinator_assign", True), ("topic://pulsar/system/healthcheck", True),
    ("segment://pulsar/system/x/0000-ffff-0", True), ("topic://public/system/x", False),
    ("persistent://pulsar/system/anything", True), ("non-persistent://pulsar/system/x", True),
    ("persistent://public/default/__change_events", True),
    ("persistent://public/default/__change_events-partition-0", True),
    ("persistent://public/default/x__change_events", False), ("persistent://public/system/x", False),
    ("persistent://pulsar/systems/x", False)])
def test_which_topics_brokers_use_among_themselves(name, is_system):
    assert names.is_system(name) == is_system


# -- scalable topics

def test_a_segment_is_named_by_its_topic_its_hashes_and_its_number():
    topic = names.parse("topic://acme/eu/orders")
    segment = topic.segment_name(12, 0, 0x7fff)
    assert str(segment) == "segment://acme/eu/orders/0000-7fff-12" and names.parse(str(segment)) == segment
    assert segment.segment == (12, 0, 0x7fff) and segment.base == topic and topic.base == topic
    assert (segment.is_segment, segment.is_scalable, topic.is_segment, topic.is_scalable) == (True, False, False, True)
    assert segment.is_persistent and topic.is_persistent and segment.namespace == "acme/eu" and segment.partition == -1


def test_a_scalable_topic_and_a_regular_one_have_each_others_name():
    scalable, regular = names.parse("topic://acme/eu/x"), names.parse("acme/eu/x")
    assert (scalable.regular, regular.scalable) == (regular, scalable)
    assert (scalable.scalable, regular.regular) == (scalable, regular) and scalable != regular
    assert scalable.segment_name(0, 0, 9).regular == regular
    assert names.parse("non-persistent://acme/eu/x").regular == names.parse("non-persistent://acme/eu/x")

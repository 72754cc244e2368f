"""Compacting keeps of each key the newest message, under its id, and nothing else."""
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from geminga.storage.jobs import nightly

from .topics import CODECS, Message, Topic

MESSAGES = st.builds(Message, st.one_of(st.none(), st.sampled_from(["", "a", "b", "k" * 20, "é"]), st.integers(0, 30).map(str)),
                     st.one_of(st.just(b""), st.binary(min_size=1, max_size=40)), st.booleans())
STEPS = st.lists(st.one_of(
    st.tuples(st.just("publish"), MESSAGES, st.sampled_from(CODECS)),
    st.tuples(st.just("publish_batch"), st.lists(MESSAGES, min_size=1, max_size=70), st.sampled_from(CODECS)),
    st.tuples(st.just("publish_chunks"), st.builds(Message, st.sampled_from(["a", "b", "c"]), st.binary(min_size=3, max_size=9)),
              st.integers(2, 3), st.uuids().map(str)),
    st.tuples(st.just("roll")), st.tuples(st.just("compact"))), max_size=25)


@given(STEPS, st.booleans())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_view_has_the_newest_message_of_each_key(tmp_path_factory, steps, retains_keyless):
    topic = Topic(tmp_path_factory.mktemp("data"))
    topic.publish(Message("always", b"there"))
    for step, *arguments in [*steps, ("compact",)]:
        if step == "compact":
            report = topic.compact(retains_keyless=retains_keyless)
            assert report.outcome in (nightly.COMPACTED, nightly.NOTHING_NEW), report
            expected = topic.newest(retains_keyless)
            assert topic.contents() == expected
            if report.outcome == nightly.COMPACTED:
                assert report.damage == ()
        else:
            getattr(topic, step)(*arguments)

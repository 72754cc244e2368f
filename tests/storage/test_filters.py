"""A filter says of each message what SQL-92 says of a row, and the same of one message, of arrays and of batches."""
import contextlib
import sqlite3
import struct
import time
from unittest import mock

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from geminga.proto import batch_parts, compression
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.metadata import PAD
from geminga.storage.filters import entries, language
from geminga.storage.filters.alike import Alike
from geminga.storage.filters.language import FilterError, Name, compile_filter
from geminga.storage.filters.runs import Runs

TEXTS = st.sampled_from(
    ["", "a", "b", "ab", "abc", "a%c", "a_c", "aXc", "B", "10", "x" * 9, "x" * 17, "é", "日本", "a\0"])
NUMBERS = st.one_of(st.integers(-20, 20), st.sampled_from([0.5, -1.25, 1e3]))
NAMES = ("s1", "s2", "n1", "n2", "key")


def quoted(text):
    return "'" + text.replace("'", "''") + "'"


signs = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
strings = st.sampled_from(["s1", "s2", "key"])
numbers = st.sampled_from(["n1", "n2"])
plain = TEXTS.filter(lambda text: "\0" not in text)      # SQLite ends a text there
conditions = st.one_of(
    st.builds("{} {} {}".format, strings, signs, plain.map(quoted)),
    st.builds("{} {} {}".format, numbers, signs, NUMBERS),
    st.builds("{} {}IN ({})".format, strings, st.sampled_from(["", "NOT "]),
              st.lists(plain.map(quoted), min_size=1, max_size=3).map(", ".join)),
    st.builds("{} IN ({})".format, numbers, st.lists(NUMBERS.map(str), min_size=1, max_size=3).map(",".join)),
    st.builds("{} {}BETWEEN {} AND {}".format, numbers, st.sampled_from(["", "NOT "]), NUMBERS, NUMBERS),
    st.builds("{} BETWEEN {} AND {}".format, strings, plain.map(quoted), plain.map(quoted)),
    st.builds("{} {}LIKE {}".format, strings, st.sampled_from(["", "NOT "]),
              st.text("abc%_X", max_size=6).map(quoted)),
    st.builds("{} LIKE {} ESCAPE '!'".format, strings,
              st.lists(st.sampled_from(["a", "c", "!%", "!_", "%", "_"]), max_size=5).map("".join).map(quoted)),
    st.builds("{} IS {}NULL".format, st.sampled_from(NAMES), st.sampled_from(["", "NOT "])))
expressions = st.recursive(conditions, lambda inner: st.one_of(
    st.builds("({}) AND ({})".format, inner, inner), st.builds("({}) OR ({})".format, inner, inner),
    st.builds("{} AND {} OR {}".format, inner, inner, inner), st.builds("NOT ({})".format, inner)), max_leaves=6)
values = st.fixed_dictionaries({}, optional={
    "s1": plain, "s2": plain, "key": plain, "n1": NUMBERS.map(str), "n2": NUMBERS.map(str)})


@settings(max_examples=400, deadline=None)
@given(expressions, st.lists(values, min_size=1, max_size=4))
@example("NOT (s1 = 'a')", [{}])
@example("n1 <> 1 OR n1 = 1", [{}])
def test_a_filter_means_what_the_same_text_means_in_sql(text, rows):
    expression, found, expected = compile_filter(text), [], []
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.execute("PRAGMA case_sensitive_like = ON")
        database.execute('CREATE TABLE messages (s1 TEXT, s2 TEXT, n1 NUMERIC, n2 NUMERIC, "key" TEXT)')
        for row in rows:
            database.execute("DELETE FROM messages")
            database.execute("INSERT INTO messages VALUES (?, ?, ?, ?, ?)", [row.get(name) for name in NAMES])
            expected.append(bool(database.execute(f"SELECT count(*) FROM messages WHERE {text}").fetchone()[0]))
            found.append(expression.matches({Name(name, name == "key"): value for name, value in row.items()}))
    assert found == expected


# -- entries

def fill(own, message):
    for name, value in message.items():
        if name == "key":
            own.partition_key = value
        else:
            own.properties.add(key=name, value=value)


def entry_of(metadata, payload):
    head = metadata.SerializeToString()
    content = struct.pack(">I", len(head)) + head + payload
    return b"\x0e\x01" + struct.pack(">I", crc32c(content)) + content


def single(message, **fields):
    metadata = api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, **fields)
    fill(metadata, message)
    return entry_of(metadata, b"payload")


def batch(messages, codec=api.NONE, **fields):
    body = b""
    for number, message in enumerate(messages):
        own = api.SingleMessageMetadata(payload_size=7)
        fill(own, message)
        head = own.SerializeToString()
        body += struct.pack(">I", len(head)) + head + b"body %02d" % (number % 100)
    metadata = api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2,
                                   num_messages_in_batch=len(messages), **fields)
    if codec:
        metadata.compression, metadata.uncompressed_size = codec, len(body)
    return entry_of(metadata, compression.compress(codec, body))


def judged(expression, some):
    """{number of the entry: bits} of the entries that match, judged all together."""
    found, at, known = {}, 0, Alike(expression)
    while at < len(some):
        ends = np.cumsum([len(entry) for entry in some[at:]])
        data = np.frombuffer(b"".join(some[at:]) + bytes(PAD), np.uint8)
        part = entries.judge(expression, data, ends - [len(entry) for entry in some[at:]], ends, known)
        assert len(part.matches), "judge made no progress"
        assert part.parts.keys() <= set(np.flatnonzero(part.matches).tolist())
        found |= {at + number: part.parts.get(number) for number in np.flatnonzero(part.matches).tolist()}
        at += len(part.matches)
    return found


def one_by_one(expression, some):
    found = {}
    for number, entry in enumerate(some):
        bits, count = entries.bits_of(expression, entry)
        if bits:
            found[number] = None if bits.bit_count() == count else bits
    return found


any_values = st.fixed_dictionaries({}, optional={
    name: st.one_of(TEXTS, NUMBERS.map(str), st.text(max_size=90)) for name in (*NAMES, "other")})
any_entries = st.one_of(
    st.builds(single, any_values), st.builds(single, any_values, deliver_at_time=st.just(7)),
    st.builds(batch, st.lists(any_values, min_size=1, max_size=5),
              st.sampled_from([api.NONE, api.LZ4, api.ZLIB, api.ZSTD, api.SNAPPY])),
    st.builds(lambda message: single(message)[:25], any_values),      # cut within its metadata
    st.just(bytes(64)))


@settings(max_examples=200, deadline=None)
@given(expressions, st.lists(any_entries, min_size=1, max_size=40), st.sampled_from([1, 1, entries.BATCHES_MIN]))
def test_entries_judged_together_are_judged_as_one_by_one(text, some, least):
    expression = compile_filter(text)
    with mock.patch.object(entries, "BATCHES_MIN", least):
        assert judged(expression, some) == one_by_one(expression, some)


@settings(max_examples=200, deadline=None)
@given(expressions, st.lists(st.fixed_dictionaries({"s1": st.sampled_from("abc"), "other": st.sampled_from("xyz")},
                                                   optional={"key": st.sampled_from(["k", "l"])}),
                             min_size=1, max_size=5), st.lists(st.integers(0, 4), min_size=8, max_size=200))
def test_entries_that_resemble_each_other_are_judged_as_one_by_one(text, kinds, order):
    expression = compile_filter(text)
    some = [single(kinds[number % len(kinds)], event_time=place % 100) for place, number in enumerate(order)]
    assert judged(expression, some) == one_by_one(expression, some)


@settings(max_examples=200, deadline=None)
@given(expressions, st.lists(any_values, min_size=1, max_size=3), st.lists(st.lists(
    st.sampled_from([0, 0, 0, 0, 1, 2]), min_size=1, max_size=30), min_size=1, max_size=4),
    st.lists(st.integers(0, 3), min_size=8, max_size=40), st.sampled_from([api.NONE, api.LZ4]))
def test_messages_of_batches_that_resemble_each_other_are_judged_as_one_by_one(text, kinds, shapes, order, codec):
    expression = compile_filter(text)
    shapes = [batch([kinds[number % len(kinds)] for number in shape], codec) for shape in shapes]
    some = [shapes[number % len(shapes)] for number in order]
    with mock.patch.object(entries, "BATCHES_MIN", 1):
        assert judged(expression, some) == one_by_one(expression, some)


same_form = st.builds(lambda *own: dict(zip(("s1", "other", "s2"), own, strict=True)), st.sampled_from("abcd"),
                      st.sampled_from("xyz"), st.text("ab~", min_size=19, max_size=19))


@settings(max_examples=200, deadline=None)
@given(expressions, st.lists(same_form, min_size=1, max_size=6), st.integers(1, 50), st.data())
def test_messages_of_one_form_are_judged_as_one_by_one_and_without_runs(text, kinds, count, data):
    expression, numbers = compile_filter(text), st.integers(0, len(kinds) - 1)
    some = [batch([kinds[data.draw(numbers)] for _ in range(count)]) for _ in range(8)]
    with mock.patch.object(Runs, "_judge_run", mock.Mock(side_effect=AssertionError)):
        found = judged(expression, some)
    assert found == one_by_one(expression, some)


def test_a_message_of_the_same_size_with_another_form_is_not_judged_by_the_first_one():
    own = {"s1": "a", "other": "x"}
    some = [batch([own] * 20), *[batch([*[own] * at, {"s1": "b", "other": "y"}, {"s2": "a", "other": "x"},
                                        *[own] * (18 - at)]) for at in range(19)]]
    found = judged(compile_filter("s1 = 'a'"), some)
    assert found == {0: None} | {at + 1: (1 << 20) - 1 ^ 3 << at for at in range(19)}


@pytest.mark.parametrize("codec", [api.NONE, api.ZSTD])
def test_a_few_odd_messages_do_not_have_batches_read_one_by_one(codec):
    own = [{"s1": "a" if number % 3 else "b", **({"s2": "odd"} if number in (40, 99) else {})} for number in range(100)]
    some = [batch(own, codec), batch([{"s1": "b"}] * 100, codec)] * 40
    refused = mock.Mock(side_effect=AssertionError)
    with mock.patch.object(entries, "_one_by_one", refused), mock.patch.object(entries.packed, "unpack", refused):
        found = judged(compile_filter("s1 = 'b'"), some)
    assert found == {number: None if number % 2 else sum(1 << at for at in range(0, 100, 3)) for number in range(80)}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text("ab", max_size=70), min_size=8, max_size=60), st.text("ab", max_size=3))
def test_values_of_any_length_are_told_apart(texts, wanted):
    expression = compile_filter(f"other LIKE '{wanted}%b' OR other = 'a'")
    some = [single({"other": text}) for text in texts]
    assert set(judged(expression, some)) == {
        number for number, text in enumerate(texts)
        if (text.startswith(wanted) and text[len(wanted):].endswith("b")) or text == "a"}


@pytest.mark.parametrize("count", [1, 20, 50])
def test_messages_of_a_batch_are_judged_each_by_itself(count):
    some = [batch([{"s1": "a"}, {"s1": "b"}, {}, {"s1": "a"}], api.ZSTD)] * count
    assert judged(compile_filter("s1 = 'a'"), some) == dict.fromkeys(range(count), 0b1001)
    assert judged(compile_filter("s1 IS NULL"), some) == dict.fromkeys(range(count), 0b0100)
    assert judged(compile_filter("s1 = 'c'"), some) == {}
    assert judged(compile_filter("s1 = 'c' OR s1 <> 'c' OR s1 IS NULL"), some) == dict.fromkeys(range(count))


@pytest.mark.parametrize("count", [1, 20, 50])
@pytest.mark.parametrize("entry", [
    batch([{}] * 3, encryption_keys=[api.EncryptionKeys(key="k", value=b"v")]),
    batch([{}] * (entries.MESSAGES_MAX + 1)),
    entry_of(api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, num_messages_in_batch=3,
                                 compression=api.LZ4, uncompressed_size=100), b"no lz4"),
    entry_of(api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, num_messages_in_batch=3,
                                 compression=api.ZLIB, uncompressed_size=entries.UNPACKED_MAX + 1), b"x"),
], ids=["encrypted", "many", "corrupt", "large"])
def test_what_cannot_be_read_matches_as_a_whole(entry, count):
    assert judged(compile_filter("s1 = 'a'"), [entry] * count) == dict.fromkeys(range(count))


def test_the_key_and_properties_of_an_encrypted_message_are_read():
    own = single({"s1": "a"}, encryption_keys=[api.EncryptionKeys(key="k", value=b"v")])
    assert set(judged(compile_filter("s1 = 'a'"), [own, single({})] * 8)) == set(range(0, 16, 2))


def test_the_last_of_several_properties_of_one_name_counts():
    metadata = api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
    for value in ("a", "b"):
        metadata.properties.add(key="s1", value=value)
    some = [entry_of(metadata, b"")] * 10
    for text, expected in (("s1 = 'b'", range(10)), ("s1 = 'a'", ())):
        assert set(judged(compile_filter(text), some)) == set(expected) == set(one_by_one(compile_filter(text), some))


def test_about_a_value_that_is_too_long_nothing_is_known_but_that_it_is_there():
    some = [single({"s1": "a" * 5_000})] * 10
    for text, count in (("s1 LIKE 'a%'", 0), ("NOT s1 LIKE 'a%'", 0), ("s1 IS NULL", 0), ("s1 IS NOT NULL", 10)):
        assert len(judged(compile_filter(text), some)) == len(one_by_one(compile_filter(text), some)) == count


def test_one_call_judges_a_bounded_number_of_bytes():
    some = [batch([{"s1": "x" * 1_000}] * 2_000, api.ZSTD)] * 20
    ends = np.cumsum([len(entry) for entry in some])
    part = entries.judge(compile_filter("s1 = 'a'"), np.frombuffer(b"".join(some) + bytes(PAD), np.uint8),
                         ends - [len(entry) for entry in some], ends, Alike(compile_filter("s1 = 'a'")))
    assert 1 <= len(part.matches) < 10
    assert judged(compile_filter("s1 = 'a'"), some) == {}


# -- the language's edges

@pytest.mark.parametrize("text, at", [
    ("", 1), ("a", 2), ("a =", 4), ("a = 'x", 5), ("a = b", 5), ("a IN ()", 7), ("a IN ('x', 1)", 12), ("(a = 1", 7),
    ("a = 1 b = 2", 7), ("a LIKE 1", 8), ("a LIKE 'x' ESCAPE 'xy'", 19), ("a IS 1", 6), ("a NOT = 1", 7),
    ("'a' = a", 1),
    ("a < TRUE", 5), ("a BETWEEN 1 AND 'x'", 11), ("a = 1 AND", 10), ("a ; 1", 3), ("AND = 1", 1), ('"" = 1', 1),
    ("a = 1" + " OR a = 1" * language.TERMS_MAX, 9 * language.TERMS_MAX + 1),
    ("(" * 40 + "a = 1" + ")" * 40, 34), ("NOT " * 40 + "a = 1", 133),
    ("a IN (" + "1," * 300 + "1)", 519),
])
def test_a_broken_filter_says_where(text, at):
    with pytest.raises(FilterError, match=rf"at character {at}\b"):
        compile_filter(text)


def test_a_filter_has_a_length():
    with pytest.raises(FilterError, match="longer than 4096"):
        compile_filter("a = '" + "x" * 5_000 + "'")


@pytest.mark.parametrize("text, row, expected", [
    ("\"x-y\" = 'a'", {"x-y": "a"}, True), ('"say ""hi""" = 1', {'say "hi"': "1"}, True),
    ("a = 'it''s'", {"a": "it's"}, True), ("a.b$c_1 = 1", {"a.b$c_1": "1.0"}, True),
    ("a = TRUE", {"a": "True"}, True), ("a <> FALSE", {"a": "no"}, False), ("a = 'TRUE'", {"a": "true"}, False),
    ("a > 9", {"a": "10"}, True), ("a > '9'", {"a": "10"}, False), ("a = 10", {"a": "1e1"}, True),
    ("a = 9007199254740993", {"a": "9007199254740992"}, False), ("a > 1", {"a": "many"}, False),
    ("NOT a > 1", {"a": "many"}, False), ("a = 1", {"a": " 1"}, False), ("a < 1", {"a": "nan"}, False),
    ("\"key\" = 'a'", {"key": "a"}, True), ("A = 'a'", {"a": "a"}, False),
    ("a in ('a') and a like '_'", {"a": "a"}, True),
])
def test_names_texts_and_numbers(text, row, expected):
    assert compile_filter(text).matches({Name(name): value for name, value in row.items()}) is expected


def test_a_pattern_is_never_tried_twice():
    """A pattern that makes regular expressions go back takes as long as one that does not."""
    expression = compile_filter("a LIKE '" + "%a" * 60 + "%_b'")
    began = time.process_time()
    assert not expression.matches({Name("a"): "a" * 4_000})
    assert time.process_time() - began < 1      # going back would take longer than the universe has


# -- batches in part

@given(st.lists(st.booleans(), min_size=1, max_size=80).filter(any), st.sampled_from([api.NONE, api.ZLIB, api.LZ4]))
@settings(deadline=None)
def test_a_batch_keeps_the_chosen_messages_only(kept, codec):
    messages = [{"s1": str(number)} for number in range(len(kept))]
    mask = sum(1 << number for number, is_kept in enumerate(kept) if is_kept)
    rewritten = batch_parts.chosen(batch(messages, codec), mask)
    left = [number for number, is_kept in enumerate(kept) if is_kept]
    found = [entries.bits_of(compile_filter(f"s1 = '{number}'"), rewritten) for number in left]
    assert found == [(1 << place, len(left)) for place in range(len(left))]


@given(st.integers(1, 1 << 100), st.integers(0, 1 << 100))
def test_bits_of_a_batch_in_part_and_of_the_whole(mask, some):
    narrow = batch_parts.narrowed(some & mask, mask)
    assert narrow.bit_length() <= mask.bit_count()
    assert batch_parts.widened(narrow, mask) == some & mask

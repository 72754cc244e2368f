"""Entries get another delivery time, and nothing else of them changes: as arrays and one by one, the same bytes."""
import random
import struct

import numpy as np
import pytest
from crc32c import crc32c

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto import sends, varints
from geminga.storage.enforcement import delivery_times

TAG = varints.encode(19 << 3)
NOW = 1_700_000_000_000
UNKNOWN = (b"\xf8\x3f\x05", b"\xc2\x3e\x02\x98\x01", b"\x9d\x01\x98\x01\x07\x00", b"\x9b\x01\x98\x01\x05\x9c\x01",
           b"\xa2\x06\x03abc")      # a varint, bytes, a time of another wire type, a group with one inside, bytes


def entry_of(raw, payload):
    body = struct.pack(">I", len(raw)) + raw + payload
    return b"\x0e\x01" + struct.pack(">I", crc32c(body)) + body


def metadata(n=0, **fields):
    return api.MessageMetadata(producer_name="p", sequence_id=n % 100, publish_time=NOW + n,
                               **fields).SerializeToString()


def rows_of(entries):
    found, at = [], 0
    for entry in entries:
        row = np.array([sends.read_one(api.CommandSend(producer_id=1, sequence_id=1), entry)], sends.SEND_ROW)
        row["offset"] = at
        at += len(entry)
        found.append(row)
    return np.concatenate(found), memoryview(b"".join(entries))


def parts(entry):
    """Return (metadata, payload) of an entry."""
    assert entry[:2] == b"\x0e\x01" and struct.unpack_from(">I", entry, 2)[0] == crc32c(entry[6:])
    end = 10 + struct.unpack_from(">I", entry, 6)[0]
    return entry[10:end], entry[end:]


def check(entries, times, monkeypatch):
    """Stamp entries as arrays and one by one, assert equal results, and return the new metadata."""
    rows, data = rows_of(entries)
    before = rows.copy(), bytes(data)
    times = np.array(times, np.int64)
    found, out = delivery_times.stamp(rows, data, times)
    with monkeypatch.context() as patched:
        patched.setattr(delivery_times, "_ALIKE_MIN", 1 << 40)
        singly, same = delivery_times.stamp(rows, data, times)
    assert bytes(out) == bytes(same) and (found == singly).all()
    assert (rows == before[0]).all() and bytes(data) == before[1]
    fresh, _ = rows_of([bytes(out[at:at + size]) for at, size in found[["offset", "size"]].tolist()])
    # what a worker would say of them: sizes, times, checksums, flags
    assert (fresh == found).all()
    assert found["size"].sum() == len(out) and (found["deliver_at"] == times).all()
    metas = []
    for (at, size), old, time in zip(found[["offset", "size"]].tolist(), entries, times.tolist(), strict=True):
        (new, payload), (was, old_payload) = parts(bytes(out[at:at + size])), parts(old)
        assert payload == old_payload
        parsed, expected = api.MessageMetadata.FromString(new), api.MessageMetadata.FromString(was)
        expected.deliver_at_time = time
        assert parsed.deliver_at_time == time
        for one in (parsed, expected):
            one.ClearField("deliver_at_time")
        assert parsed == expected
        metas.append(new)
    return metas


@pytest.mark.parametrize("asked", [{}, {"deliver_at_time": NOW + 77}], ids=["none", "one"])
@pytest.mark.parametrize("size", [0, 10, 2_000])
def test_what_looks_alike_is_rewritten_together(asked, size, monkeypatch):
    entries = [entry_of(metadata(n, partition_key=f"{n:05}", **asked), random.randbytes(size)) for n in range(100)]
    metas = check(entries, [NOW + 10_000 + n for n in range(100)], monkeypatch)
    field = len(TAG) + 6
    assert [len(new) for new in metas] == [len(metadata(0, partition_key="00000")) + field] * 100
    assert all(new[-field:-6] == TAG for new in metas)


def test_unknown_fields_stay_byte_for_byte(monkeypatch):
    """Unknown fields stay unchanged, also those that look like the delivery time inside other fields or groups."""
    for extra in UNKNOWN:
        plain = metadata(5)
        time = TAG + varints.encode(NOW)
        for raw in (plain + extra, extra + plain, extra + plain + time, plain + time + extra,
                    time + plain + extra + time + extra):
            [new, *others] = check([entry_of(raw, b"payload")] * 40, [NOW + 5] * 40, monkeypatch)
            assert new == raw.replace(time, b"") + TAG + varints.encode(NOW + 5)
            assert set(others) == {new}


def test_one_that_only_looks_like_the_others_is_rewritten_as_it_is(monkeypatch):
    """An entry with the size of the others but another layout is rewritten by its own layout."""
    timed = metadata(1, deliver_at_time=NOW + 9)
    head = len(timed) - len(TAG) - 6
    fake = timed[:head] + b"\xa2\x06\x05" + TAG + b"abc"
    assert len(fake) == len(timed)
    turned = timed[head:] + timed[:head]
    entries = [entry_of(raw, b"x") for raw in [timed] * 50 + [fake, turned] + [timed] * 50]
    metas = check(entries, [NOW + 20_000] * 102, monkeypatch)
    assert metas[50].startswith(fake) and metas[51].startswith(timed[:head])


@pytest.mark.slow
def test_any_entries(monkeypatch):
    """Batches, chunks, compressed and encrypted entries of several sizes, with gaps, are stamped like single ones."""
    for seed in range(60):
        random_ = random.Random(seed)
        kinds = [{}, {"deliver_at_time": NOW}, {"num_messages_in_batch": 3},
                 {"chunk_id": 1, "num_chunks_from_msg": 3, "uuid": "u"},
                 {"compression": 1, "uncompressed_size": 9},
                 {"encryption_keys": [api.EncryptionKeys(key="k", value=b"v")]},
                 {"deliver_at_time": 0}, {"deliver_at_time": -5},
                 {"properties": [api.KeyValue(key="a", value="b")] * 2}]
        chosen = random_.sample(kinds, random_.randint(1, 4))
        entries = [entry_of(metadata(random_.randrange(100), **random_.choice(chosen))
                            + random_.choice((b"", *UNKNOWN)[:seed % 6 + 1]),
                            random_.randbytes(random_.choice((5, 6)))) for _ in range(random_.choice((1, 31, 32, 300)))]
        first = random_.choice((1, NOW, (1 << 42) - 50))
        check(entries, [first + n for n in range(len(entries))], monkeypatch)


def test_entries_that_lie_apart():
    """Rows of one partition among those of others are stamped right."""
    entries = [entry_of(metadata(n), b"%04d" % n) for n in range(200)]
    rows, data = rows_of(entries)
    found, out = delivery_times.stamp(rows[::2].copy(), data, np.full(100, NOW, np.int64))
    assert [parts(bytes(out[at:at + size]))[1] for at, size in found[["offset", "size"]].tolist()] == [
        b"%04d" % n for n in range(0, 200, 2)]

"""Messages of batches that resemble each other, judged in runs: as long as the next message has the layout of the last.

Messages of one layout have one size, so where the n-th of them begins is known before any is read.  All messages of
many batches are loaded at those places and compared with the layout.  Up to the first one that differs, each begins
where the one before it ends, which is where it was looked for.  The next run of a batch begins at that one.

Batches all of whose messages have one layout, which are the most, have a shorter way: their words are compared without
a look at where runs end.  Batches whose runs are short are judged in other ways (entries.py).
"""
import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.batches import MESSAGE_MIN
from geminga.proto.frames import SIZE
from geminga.storage.filters import layouts
from geminga.storage.filters.language import Expression
from geminga.storage.filters.layouts import HEAD_MAX, Layout, Learner
from geminga.storage.filters.messages import is_match

UNPACKED_MAX = 8 << 20       # bytes of a decompressed batch, which clients fill with some 128 KiB
MESSAGES_MAX = 16_384        # of a batch, which clients fill with some 1,000
_RUNS_MAX = 24               # that are looked for in one call, and ...
_SHORT = 8                   # ... of a batch: runs but the first have at least that part of its messages on average
_KNOWN_MAX = 16              # layouts that are kept
_TOGETHER_SIZE = 1 << 20     # bytes of metadata that are compared at a time, which processors' caches hold
_PAYLOAD_SIZE = 3 << 3


class Runs:
    """Judges messages of batches, and remembers what they look like."""

    def __init__(self, expression: Expression):
        self._expression = expression
        self._learner = Learner(expression, layouts.SINGLE)
        self._layouts: list[Layout] = []

    def __repr__(self) -> str:
        return f"<Runs layouts={len(self._layouts)}>"

    def judge(self, data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64],
              count: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Judge the batches data[begin:end], of `count` messages each.

        Return (which are judged (n,), which of their messages match (n, count)).
        """
        at, done, runs = begins.astype(np.int64), np.zeros(len(begins), np.int64), np.zeros(len(begins), np.int64)
        matches = np.zeros((len(begins), count), bool)
        is_left = (ends - begins >= count * MESSAGE_MIN) & (ends - begins <= UNPACKED_MAX)
        self._judge_alike(data, at, ends, done, is_left, matches)
        for _ in range(_RUNS_MAX):
            left = np.flatnonzero(is_left & (done < count))
            if not len(left):
                break
            layout = self._layout(data, int(at[left[0]]), int(ends[left[0]]))
            if layout is None:
                is_left[left[0]] = False
                continue
            here = left[layout.has(_columns(data, at[left], layout))]
            self._judge_run(data, here, at, ends, done, layout, is_left, matches)
            is_left[here] &= (done[here] == count) | (done[here] * _SHORT >= count * runs[here])
            runs[here] += 1
        return is_left & (done == count), matches

    def _judge_alike(self, data: NDArray[np.uint8], at: NDArray[np.int64], ends: NDArray[np.int64],
                     done: NDArray[np.int64], is_left: NDArray[np.bool_], matches: NDArray[np.bool_]) -> None:
        """Judge those batches all of whose messages have the layout of the first message of all."""
        count, first = matches.shape[1], int(is_left.argmax())
        layout = self._layout(data, int(at[first]), int(ends[first])) if is_left[first] else None
        if layout is None:
            return
        stride, width = layout.size + layout.fields[_PAYLOAD_SIZE], len(layout.form)
        whole = np.flatnonzero(is_left & (ends - at == count * stride))
        if not len(whole):
            return
        form, fixed = (np.tile(np.array(words, np.uint64), count) for words in (layout.form, layout.fixed))
        step = max(1, _TOGETHER_SIZE // (8 * width * count))
        for start in range(0, len(whole), step):
            here = whole[start:start + step]
            places = at[here, None] + np.arange(0, count * stride, stride)
            unlike = _loaded(data, places.ravel(), layout).reshape(len(here), count * width)
            unlike ^= form
            varied = np.bitwise_or.reduce(unlike, axis=0)
            if (varied & fixed).any():
                is_alike = ~(unlike & fixed).any(axis=1)
                here, places, unlike = here[is_alike], places[is_alike], unlike[is_alike]
                if not len(here):
                    continue
                varied = np.bitwise_or.reduce(unlike, axis=0)
            verdict = layout.verdict_of_all(
                unlike.reshape(-1, width), np.bitwise_or.reduce(varied.reshape(count, width), axis=0).tolist(),
                lambda number, own=places: self._one(      # type: ignore[misc]
                    data[own.flat[number] + SIZE.size:own.flat[number] + layout.size].tobytes()))
            if verdict is not None:
                matches[here] = verdict if isinstance(verdict, bool) else verdict.reshape(len(here), count)
                done[here] = count

    def _judge_run(self, data: NDArray[np.uint8], here: NDArray[np.intp], at: NDArray[np.int64],
                   ends: NDArray[np.int64], done: NDArray[np.int64], layout: Layout, is_left: NDArray[np.bool_],
                   matches: NDArray[np.bool_]) -> None:
        """Judge the next messages of some batches, and move `at` and `done` behind them.

        here: numbers of batches whose next message has the layout.
        """
        count = matches.shape[1]
        stride = layout.size + layout.fields[_PAYLOAD_SIZE]
        reach = np.minimum(count - done[here], (ends[here] - at[here]) // stride)
        is_short = reach * 2 < count - done[here]      # what is looked at is bounded by the bytes of the batches
        if is_short.any():
            is_left[here[is_short]] = False
            here, reach = here[~is_short], reach[~is_short]
            if not len(here):
                return
        ahead = np.arange(int(reach.max()))
        places = (at[here, None] + ahead * stride).ravel()
        columns = _columns(data, places, layout)
        is_run = layout.has(columns).reshape(len(here), len(ahead))
        is_run &= ahead < reach[:, None]
        runs = np.where(is_run.all(axis=1), len(ahead), is_run.argmin(axis=1))
        is_run = ahead < runs[:, None]
        verdict = layout.verdict(columns, is_run.ravel(), lambda number: self._one(
            data[places[number] + SIZE.size:places[number] + layout.size].tobytes()))
        if verdict is None:
            is_left[here] = False
            return
        found = np.broadcast_to(verdict, is_run.size).reshape(is_run.shape)
        start = int(done[here[0]])
        if (done[here] == start).all():      # later runs overwrite what is behind this one
            matches[here, start:start + len(ahead)] = found
        else:
            rows, nexts = np.nonzero(is_run)
            matches[here[rows], done[here[rows]] + nexts] = found[rows, nexts]
        at[here] += runs * stride
        done[here] += runs

    def _layout(self, data: NDArray[np.uint8], begin: int, end: int) -> Layout | None:
        """Return the layout of the message that begins there, None if it is read in other ways."""
        size = SIZE.size + SIZE.unpack_from(data, begin)[0] if end - begin >= MESSAGE_MIN else 0
        if not MESSAGE_MIN <= size <= min(end - begin, HEAD_MAX):
            return None
        place = np.array([begin])
        for known in self._layouts:
            if known.size == size and known.has(_columns(data, place, known))[0]:
                return known
        head = data[begin:begin + size].tobytes()
        layout = self._learner.learn(head, SIZE.size)
        try:
            self._one(head[SIZE.size:])
        except DecodeError:
            return None
        if layout is None or layout.fields.get(_PAYLOAD_SIZE, end) > end - begin - size:
            return None
        self._layouts.insert(0, layout)
        del self._layouts[_KNOWN_MAX:]
        return layout

    def _one(self, head: bytes) -> bool:
        return is_match(self._expression, api.SingleMessageMetadata.FromString(head))


def _columns(data: NDArray[np.uint8], places: NDArray[np.int64], layout: Layout) -> "list[NDArray[np.uint64]]":
    """Return the words (n,) of metadata at these places (n,); of others where they are behind the data."""
    return list(_loaded(data, places, layout).T)


def _loaded(data: NDArray[np.uint8], places: NDArray[np.int64], layout: Layout) -> NDArray[np.uint64]:
    """Return the words (n, words) of metadata at these places (n,); of others where they are behind the data."""
    width = len(layout.form)
    blocks = np.ndarray(len(data) - 8 * width + 1, f"V{8 * width}", data, 0, (1,))
    words: NDArray[np.uint64] = blocks[np.minimum(places, len(blocks) - 1)].view("<u8").reshape(len(places), width)
    return words

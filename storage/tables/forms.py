"""Columns of payloads: kept as they are, read as text, read one by one, or as JSON that Arrow parses together."""
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from numpy.typing import NDArray

from geminga.storage.jobs.typed import NOT_FITTING, as_array, reason_of

VALUE = "value"
_WRAPPED = "v"                        # key of the object that is put around each JSON payload
_TOGETHER_BYTES = 4 << 20             # of payloads whose values are in memory as Python's objects

Read = Callable[[bytes], Any]         # payload -> value, as the column's Arrow type takes it.  Raises anything
Reasons: TypeAlias = dict[int, str]   # row -> why its payload does not fit
Columns: TypeAlias = tuple[list[pa.Array], Reasons]

class Form:
    """Payloads that are kept as they are; the base of forms that read payloads."""

    def __init__(self, schema: pa.Schema, *, takes_empty: bool = False):
        """takes_empty: whether a payload without bytes is a value, and not the absence of one."""
        self.schema, self.takes_empty = schema, takes_empty

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.schema.names}>"

    def read(self, payloads: pa.Array, versions: pa.Array, skipped: NDArray[np.bool_]) -> Columns:
        """Return the columns of payloads (n,); see Values.read."""
        return [payloads], {}


class OneByOne(Form):
    """Payloads that are read one by one, into one column or, for records, into a column for each field."""

    def __init__(self, kind: pa.DataType, read: Read | dict[bytes, Read], *, takes_empty: bool = False):
        """kind: a struct's fields are the columns.  read: the reader, or one for each version, the newest last."""
        super().__init__(pa.schema(list(kind)) if pa.types.is_struct(kind) else pa.schema([(VALUE, kind)]),
                         takes_empty=takes_empty)
        self.kind, self._read = kind, read

    def reader_of(self, version: bytes | None) -> Read:
        """Return the reader for messages of a schema version; the newest version's for messages that name none."""
        if not isinstance(self._read, dict):
            return self._read
        return next(reversed(self._read.values())) if version is None else self._read[version]

    def read(self, payloads: pa.Array, versions: pa.Array, skipped: NDArray[np.bool_]) -> Columns:
        reasons: Reasons = {}
        some = [self._some(payloads.slice(begin, count), versions.slice(begin, count), skipped[begin:begin + count],
                           begin, reasons) for begin, count in _pieces(payloads)]
        column = pa.concat_arrays(some) if len(some) != 1 else some[0]
        return _flat(column), reasons

    def _some(self, payloads: pa.Array, versions: pa.Array, skipped: NDArray[np.bool_], begin: int,
              reasons: Reasons) -> pa.Array:
        """Return the values of some payloads, the first of which is number `begin`."""
        values = [None if skip else self._value(at, payload, version, reasons) for at, (payload, version, skip)
                  in enumerate(zip(payloads.to_pylist(), versions.to_pylist(), skipped.tolist(), strict=True), begin)]
        return as_array(values, self.kind, lambda at, reason: reasons.update({begin + at: reason}))

    def _value(self, at: int, payload: bytes, version: bytes | None, reasons: Reasons) -> Any:
        try:
            return self.reader_of(version)(payload)
        except Exception as error:      # a payload may make the libraries raise anything
            reasons[at] = reason_of(error)
        return None


def _pieces(payloads: pa.Array) -> list[tuple[int, int]]:
    """Return (first, count) of payloads that are read together; an empty array is one piece."""
    sizes = np.cumsum(pc.fill_null(pc.binary_length(payloads), 0).to_numpy(zero_copy_only=False))
    if not len(sizes) or sizes[-1] <= _TOGETHER_BYTES:
        return [(0, len(payloads))]
    numbers = sizes // _TOGETHER_BYTES
    starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist()]
    return [(begin, end - begin) for begin, end in zip(starts, [*starts[1:], len(sizes)], strict=True)]


class Json(OneByOne):
    """JSON objects with fields of types that Arrow's parser has: parsed together."""

    def read(self, payloads: pa.Array, versions: pa.Array, skipped: NDArray[np.bool_]) -> Columns:
        some = payloads if not skipped.any() else pc.if_else(pa.array(skipped), pa.scalar(b"null"), payloads)
        column = self._parsed(some)
        return super().read(payloads, versions, skipped) if column is None else (_flat(column), {})

    def _parsed(self, payloads: pa.Array) -> pa.Array | None:
        """Return the payloads as structs, None if one of them does not fit.

        Each payload is put into an object of its own, so that it is at least one row.  As many rows as payloads are
        therefore one for each.
        """
        if not len(payloads):
            return pa.array([], self.kind)
        lines = pc.binary_join_element_wise(b'{"%s":' % _WRAPPED.encode(), payloads, b"}\n", b"")
        data = lines.buffers()[2]
        first, last = np.frombuffer(lines.buffers()[1], np.int32)[[0, len(lines)]].tolist()
        options = pj.ParseOptions(explicit_schema=pa.schema([(_WRAPPED, self.kind)]),
                                  unexpected_field_behavior="ignore")
        try:
            table = pj.read_json(pa.BufferReader(data.slice(first, last - first)),
                                 read_options=pj.ReadOptions(use_threads=False, block_size=max(1 << 20, last - first)),
                                 parse_options=options)
        except NOT_FITTING:
            return None
        column = table[_WRAPPED].combine_chunks()
        return column if len(column) == len(payloads) and not _has_infinite(column) else None


def _has_infinite(column: pa.Array) -> bool:
    """Whether a float of 32 bits is infinite: Arrow makes numbers infinite that are too large for them."""
    if column.type == pa.float32():
        return bool(pc.any(pc.is_inf(column)).as_py())
    if pa.types.is_struct(column.type):
        return any(map(_has_infinite, column.flatten()))
    return pa.types.is_list(column.type) and _has_infinite(column.flatten())


class Text(Form):
    """Payloads that are text."""

    def __init__(self) -> None:
        super().__init__(pa.schema([(VALUE, pa.string())]), takes_empty=True)

    def read(self, payloads: pa.Array, versions: pa.Array, skipped: NDArray[np.bool_]) -> Columns:
        some = pc.if_else(pa.array(skipped), pa.scalar(None, pa.binary()), payloads) if skipped.any() else payloads
        try:
            return [some.cast(pa.string())], {}
        except pa.ArrowInvalid:
            reasons: Reasons = {}
            values = [_utf8(at, value, reasons) for at, value in enumerate(some.to_pylist())]
            return [pa.array(values, pa.string())], reasons


def _utf8(at: int, value: bytes | None, reasons: Reasons) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError as error:
        reasons[at] = reason_of(error)
        return None


def _flat(column: pa.Array) -> list[pa.Array]:
    return column.flatten() if pa.types.is_struct(column.type) else [column]

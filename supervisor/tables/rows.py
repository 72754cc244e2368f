"""Batches of rows as messages to publish."""
import base64
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from geminga.supervisor.tables import avro_types
from geminga.supervisor.tables.payloads import Payloads
from geminga.supervisor.tables.roles import Roles
from geminga.workers.messages.entries import About, Outgoing
from geminga.workers.messages.outgoing import Wrong

_NOTHING = About()      # of rows without a key and others: their messages share it


class Messages:
    """Makes messages of rows."""

    def __init__(self, roles: Roles, payloads: Payloads) -> None:
        self._roles, self._payloads = roles, payloads

    def __repr__(self) -> str:
        return f"<Messages of {self._payloads}>"

    def of(self, batch: pa.RecordBatch) -> list[Outgoing | Wrong]:
        """Return the messages of rows (n,), and for a row that does not fit the reason, which names the column."""
        try:
            return self._all_of(batch)
        except Wrong as error:
            if len(batch) == 1:
                return [error]
        middle = len(batch) // 2      # most rows fit, so halves without a wrong one are made together
        return self.of(batch.slice(0, middle)) + self.of(batch.slice(middle))

    def _all_of(self, batch: pa.RecordBatch) -> list[Outgoing | Wrong]:
        for name in self._roles.columns:
            try:
                batch.column(name).validate(full=True)      # such as text that is not UTF-8
            except pa.ArrowInvalid as error:
                raise Wrong(f"{name}: {error}") from None
        payloads, abouts = self._made(batch), self._abouts(batch)
        return [Outgoing(b"", about._replace(is_null=True)) if payload is None else Outgoing(payload, about)
                for payload, about in zip(payloads, abouts, strict=True)]

    def _made(self, batch: pa.RecordBatch) -> list[bytes | None]:
        """Return payloads (n,), None for rows that say that they have no value."""
        name = self._roles.is_null
        if name is None or not pc.any(batch.column(name)).as_py():
            return self._payloads.of(batch)
        has_value = pc.invert(pc.fill_null(batch.column(name), False))
        made = iter(self._payloads.of(batch.filter(has_value)))
        return [next(made) if has else None for has in has_value.to_pylist()]

    def _abouts(self, batch: pa.RecordBatch) -> list[About]:
        roles, count = self._roles, len(batch)
        keys = [None] * count if roles.key is None else self.keys(batch)
        if roles.key is None:
            are_base64 = [False] * count
        elif avro_types.is_binary(batch.column(roles.key).type):
            are_base64 = [True] * count
        else:
            are_base64 = [False] * count if roles.key_is_base64 is None else [
                value is True for value in batch.column(roles.key_is_base64).to_pylist()]
        orders = [None] * count if roles.ordering_key is None else batch.column(roles.ordering_key).to_pylist()
        times = [0] * count if roles.event_time is None else _moments(batch.column(roles.event_time), roles.event_time)
        properties = self._properties(batch)
        if roles.key is roles.ordering_key is roles.event_time is None and properties is None:
            return [_NOTHING] * count
        return [About(key, key is not None and is_base64, order, pairs, event_time)
                for key, is_base64, order, pairs, event_time
                in zip(keys, are_base64, orders, properties or [()] * count, times, strict=True)]

    def keys(self, batch: pa.RecordBatch) -> list[str | None]:
        """Return the keys of rows (n,), which have a column for them."""
        assert self._roles.key is not None
        array = batch.column(self._roles.key)
        if avro_types.is_binary(array.type):
            return [None if key is None else base64.b64encode(key).decode() for key in array.to_pylist()]
        return _texts(array)

    def _properties(self, batch: pa.RecordBatch) -> list[tuple[tuple[str, str], ...]] | None:
        names, more = self._roles.properties, self._roles.more_properties
        if not names and more is None:
            return None
        columns = [_texts(batch.column(name)) for name in names]
        own: list[tuple[tuple[str, str], ...]]
        own = [tuple((name, text) for name, text in zip(names, row, strict=True) if text is not None)
               for row in zip(*columns, strict=True)] if names else [()] * len(batch)
        if more is None:
            return own
        return [(*((name, text) for name, text in pairs or () if text is not None and name not in names), *mine)
                for pairs, mine in zip(batch.column(more).to_pylist(), own, strict=True)]


def _texts(array: pa.Array) -> list[str | None]:
    texts: list[str | None] = (array if avro_types.is_text(array.type) else array.cast(pa.string())).to_pylist()
    return texts


def _moments(array: pa.Array, name: str) -> list[int]:
    """Return times (n,) in ms since 1970, 0 for null.  Raises Wrong."""
    kind: Any = array.type
    try:
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            array = array.cast(pa.timestamp("ms", getattr(kind, "tz", None)), safe=False)
        times = [time or 0 for time in array.cast(pa.int64()).to_pylist()]
    except pa.ArrowInvalid as error:
        raise Wrong(f"{name}: {error}") from None
    if min(times, default=0) < 0:
        raise Wrong(f"{name}: an event time before 1970 cannot be told")
    return times

"""One message: its key and properties, as the protobuf library reads them -> whether it matches."""
from typing import TYPE_CHECKING

from geminga.storage.filters.language import VALUE_SIZE_MAX, Expression, Name

if TYPE_CHECKING:
    from geminga.proto import pulsar_api_pb2 as api

_REMEMBERED_MAX = 1_024      # verdicts about messages one by one, ...
_REMEMBERED_SIZE_MAX = 256   # ... of values of at most so many characters


def is_match(expression: Expression, own: "api.MessageMetadata | api.SingleMessageMetadata") -> bool:
    """Return whether a message matches, as one with the same values did before."""
    properties = {pair.key: pair.value for pair in own.properties}
    values = tuple((own.partition_key if own.HasField("partition_key") else None) if name.is_key
                   else properties.get(name.text) for name in expression.names)
    if (known := expression.verdicts.get(values)) is not None:
        return known
    found = expression.matches(_values(expression, own))
    if all(value is None or len(value) <= _REMEMBERED_SIZE_MAX for value in values):
        if len(expression.verdicts) >= _REMEMBERED_MAX:
            expression.verdicts.clear()
        expression.verdicts[values] = found
    return found


def _values(expression: Expression, own: "api.MessageMetadata | api.SingleMessageMetadata") -> dict[Name, str | None]:
    """Return the values of a message that a filter asks for, see `Expression.matches`."""
    values: dict[Name, str | None] = {}
    properties = {_bytes(pair.key): _bytes(pair.value) for pair in own.properties}
    for name in expression.names:
        if name.is_key:
            value = _bytes(own.partition_key) if own.HasField("partition_key") else None
        else:
            value = properties.get(name.text.encode("utf-8", "surrogateescape"))
        if value is not None:
            values[name] = None if len(value) > VALUE_SIZE_MAX else value.decode("utf-8", "surrogateescape")
    return values


def _bytes(text: str | bytes) -> bytes:
    """Return a field's bytes: the protobuf library returns a string that is not UTF-8 as bytes."""
    return text if isinstance(text, bytes) else text.encode()

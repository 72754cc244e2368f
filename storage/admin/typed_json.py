"""JSON to dataclasses and back, checked against their annotations.

A question and its answer cross two processes as JSON. Both sides use the same dataclasses, and only this module
compares the received JSON with their annotations.
"""
import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from functools import lru_cache

from geminga.proto.names import TopicName


def dump(value: object) -> bytes:
    """Return a value as JSON: dataclasses, topic names, lists, dicts, strings and numbers."""
    return json.dumps(value, default=_plain).encode()


def _plain(value: object) -> object:
    if isinstance(value, TopicName):
        return str(value)
    assert dataclasses.is_dataclass(value), value
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def read(wanted: object, value: object) -> object:
    """Return a JSON value as an object of the annotation `wanted`.  Raises TypeError for a value of another type.

    Annotations are bool, int, float, str, None, object (any JSON), lists, tuples of fixed length, dicts with strings as
    keys, dataclasses, and any of these `| None`. A member `bytes` of a union is never JSON, and is ignored.
    """
    if wanted is object:
        return value
    if dataclasses.is_dataclass(wanted):
        assert isinstance(wanted, type)
        if not isinstance(value, dict):
            raise _mismatch(wanted, value)
        return wanted(**read_fields(wanted, value))
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (types.UnionType, typing.Union):
        if value is None and types.NoneType in inner:
            return None
        [only] = [one for one in inner if one not in (types.NoneType, bytes)]
        return read(only, value)
    if origin is list and isinstance(value, list):
        return [read(inner[0], item) for item in value]
    if origin is tuple and isinstance(value, list) and len(value) == len(inner):
        return tuple([read(kind, one) for kind, one in zip(inner, value, strict=True)])
    if origin is dict and isinstance(value, dict):
        return {name: read(inner[1], one) for name, one in value.items()}
    if not isinstance(wanted, type) or not _is_plain(wanted, value):
        raise _mismatch(wanted, value)
    return value


def _is_plain(wanted: type, value: object) -> bool:
    """Whether a JSON value is exactly of the wanted type: bool, int, float, str or None. An int is a float too."""
    if wanted is float:
        return type(value) in (int, float)
    return type(value) is wanted


def read_fields(kind: type, values: Mapping[str, object]) -> dict[str, object]:
    """Return {name: value} of a dataclass's fields, read as their annotations say.

    Raises TypeError for a name that the dataclass does not have.
    """
    hints = fields_of(kind)
    if unknown := values.keys() - hints.keys():
        raise TypeError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
    return {name: read(hints[name], value) for name, value in values.items()}


@lru_cache
def fields_of(kind: type) -> dict[str, object]:
    """Return {name: annotation} of a dataclass's fields."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _mismatch(wanted: object, value: object) -> TypeError:
    return TypeError(f"{wanted} was expected, not {value!r:.100}")

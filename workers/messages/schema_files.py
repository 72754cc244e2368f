"""Definitions of schemas as JSON: {"type": "AVRO", "schema": "...", "properties": {}}."""
import json
from pathlib import Path
from typing import Any

from geminga.storage.schemas import registry
from geminga.storage.schemas.registry import Definition, InvalidSchema, T


def definition(value: Any) -> Definition:
    """Return the definition that a JSON value describes.  Raises ValueError, InvalidSchema."""
    if not isinstance(value, dict) or not all(isinstance(value.get(name), str) for name in ("type", "schema")):
        raise ValueError('it is no object with "type" and "schema", which are texts, and "properties"')
    properties = value.get("properties") or {}
    if not isinstance(properties, dict) or not all(isinstance(one, str) for one in properties.values()):
        raise ValueError('"properties" is no object of texts')
    return of_parts(value["type"], value["schema"], properties)


def of_parts(type_name: str, schema: str, properties: dict[str, str]) -> Definition:
    """Return the definition with a type by its name.  Raises ValueError, InvalidSchema."""
    kind, data = registry.kind_of(type_name), schema.encode()
    return Definition(kind, _joined(data) if kind == T.KeyValue else data, properties)


def _joined(data: bytes) -> bytes:
    """Convert a KEY_VALUE definition from REST to the form in which clients send it to the broker.

    The data is {"key": ..., "value": ...} with definitions as JSON or as texts. Raises ValueError.
    """
    try:
        parts = json.loads(data)
        definitions = [parts[part] for part in ("key", "value")]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise ValueError("Invalid schema definition data for KEY_VALUE schema: an object with key and value") from None
    texts = [part if isinstance(part, str) else json.dumps(part, separators=(",", ":")) for part in definitions]
    return registry.joined(*(text.encode() for text in texts))


def read(path: str) -> Definition:
    """Return the definition in a file, which is valid for its type.  Raises ValueError, OSError."""
    try:
        read_definition = definition(json.loads(Path(path).read_bytes()))
        registry.validate(read_definition)
    except InvalidSchema as error:
        raise ValueError(error.message) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON: {error}" if isinstance(error, json.JSONDecodeError) else str(error)) from None
    return read_definition

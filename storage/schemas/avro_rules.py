"""Avro definitions: their meaning, and whether one can read messages written with another.

The avro library parses definitions. Its rules of compatibility are those of Avro's specification. Clients rely on the
rules of Java's resolution of schemas, which differ: records are compared by fields whatever their names, and an enum
may lack symbols.
"""
import functools
import json
import warnings
from typing import Any

import avro.schema
from avro.schema import ArraySchema, EnumSchema, FixedSchema, MapSchema, NamedSchema, RecordSchema, Schema, UnionSchema

# levels of nesting; arbitrary, more than real schemas have: the library's errors repeat every level
DEPTH_MAX = 100
# steps of one comparison; arbitrary: comparing unions of thousands of types, each with each, would take minutes
STEPS_MAX = 100_000
# Type of the writer -> other types that read its values.
_PROMOTED = {"int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",),
             "string": ("bytes",), "bytes": ("string",)}
_RANGES = {"int": 1 << 31, "long": 1 << 63}
# attributes that `meaning` takes from the parsed objects, or leaves out
_SAID_ELSEWHERE = ("type", "name", "namespace", "fields", "items", "values", "symbols", "doc", "aliases")


@functools.lru_cache(maxsize=4)      # key and value of two versions, each needed several times in a row
def parse(text: str) -> Schema:
    """Parse an Avro schema definition.  Raises ValueError with the reason."""
    try:
        definition = json.loads(text, parse_constant=_no_constant)
        _check_depth(definition)
        with warnings.catch_warnings():       # about unknown logical types, which are ignored on purpose
            warnings.simplefilter("ignore")
            schema = avro.schema.make_avsc_object(definition, validate_names=False)
        _check_names(schema, set())
    except Exception as error:                # the library raises whatever its code runs into
        raise ValueError(f"{type(error).__name__}: {str(error)[:200]}") from None
    return schema


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


def _check_depth(definition: Any) -> None:
    level = [definition]
    for _ in range(DEPTH_MAX):
        level = [inner for one in level if isinstance(one, dict | list)
                 for inner in (one.values() if isinstance(one, dict) else one)]
        if not level:
            return
    raise ValueError(f"nested deeper than {DEPTH_MAX}")


def _check_names(schema: Schema, seen: set[str]) -> None:
    """Check the names in an Avro schema by Java's rule: letters of any language, digits and _, in any namespace.

    The avro library lacks this rule.
    """
    if isinstance(schema, NamedSchema):
        if schema.fullname in seen:
            return
        seen.add(schema.fullname)
        aliases = schema.props.get("aliases") or []
        if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
            raise ValueError(f"aliases of {schema.fullname} are no list of names")
        fields = schema.fields if isinstance(schema, RecordSchema) else ()
        for name in (schema.name, *(field.name for field in fields)):
            if not name.isidentifier():
                raise ValueError(f"{name} is no name")
    for inner in _inner(schema):
        _check_names(inner, seen)


def _inner(schema: Schema) -> list[Schema]:
    match schema:
        case RecordSchema():
            return [field.type for field in schema.fields]
        case ArraySchema():
            return [schema.items]
        case MapSchema():
            return [schema.values]
        case UnionSchema():
            return list(schema.schemas)
    return []


# -- what a definition means

def meaning(schema: Schema) -> str:
    """Return a string that is equal for Avro schemas that differ only in formatting, documentation and aliases."""
    return json.dumps(_meaning(schema, set()), sort_keys=True)


def _meaning(schema: Schema, seen: set[str]) -> Any:
    said = {name: value for name, value in schema.props.items() if name not in _SAID_ELSEWHERE}
    if isinstance(schema, NamedSchema):
        if schema.fullname in seen:
            return schema.fullname
        seen.add(schema.fullname)
        said["name"] = schema.fullname
    match schema:
        case RecordSchema():
            return "record", said, [_field_meaning(field, seen) for field in schema.fields]
        case EnumSchema():
            return schema.type, said, list(schema.symbols)
    return schema.type, said, [_meaning(inner, seen) for inner in _inner(schema)]


def _field_meaning(field: avro.schema.Field, seen: set[str]) -> Any:
    said = {name: value for name, value in field.props.items() if name not in _SAID_ELSEWHERE}
    return field.name, said | {"order": field.order or "ascending"}, _meaning(field.type, seen)


# -- reading

def obstacle(reader: Schema, writer: Schema) -> str:
    """Return why the reader's Avro schema cannot read everything that the writer's can write, "" if it can."""
    try:
        return _Reading(reader).obstacle(reader, writer)
    except ValueError as error:
        return str(error)


class _Reading:
    """Comparison of a reader's with a writer's Avro schema, which remembers the pairs of records compared so far."""

    def __init__(self, reader: Schema):
        # (reader, writer) -> obstacle; "" while the pair is being compared
        self._records: dict[tuple[int, int], str] = {}
        self._branches: dict[int, dict[tuple[str, str], Schema]] = {}      # of each union: branches by type and name
        self._steps = 0
        self._names: dict[str, str] = {}                    # alias -> name, of the reader's types
        self._fields: dict[str, dict[str, str]] = {}        # record -> {alias: field}
        self._note_aliases(reader)

    def _note_aliases(self, schema: Schema) -> None:
        if isinstance(schema, NamedSchema):
            if schema.fullname in self._fields:
                return
            self._fields[schema.fullname] = {}
            for alias in _aliases(schema):
                full = alias if "." in alias or not schema.namespace else f"{schema.namespace}.{alias}"
                self._names[full] = schema.fullname
            for field in schema.fields if isinstance(schema, RecordSchema) else ():
                for alias in _aliases(field):
                    self._fields[schema.fullname][alias] = field.name
        for inner in _inner(schema):
            self._note_aliases(inner)

    def _step(self) -> None:
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise ValueError("too large to be compared")

    def _name(self, writer: NamedSchema) -> str:
        """Return the name that a writer's type has in the reader's schema, where it may be an alias."""
        full: str = writer.fullname
        return self._names.get(full, full)

    def obstacle(self, reader: Schema, writer: Schema, at: str = "the schema") -> str:
        kind, written = _kind(reader), _kind(writer)
        self._step()
        if isinstance(writer, UnionSchema):
            return next(filter(None, (self.obstacle(reader, branch, at) for branch in writer.schemas)), "")
        if isinstance(reader, UnionSchema):
            branch = self._branch(reader, writer)
            if branch is None:
                return f"{at}: no type of the union reads {written}"
            return self.obstacle(branch, writer, at)
        if kind != written:
            return "" if kind in _PROMOTED.get(written, ()) else f"{at}: {kind} does not read {written}"
        match reader, writer:
            case ArraySchema(), ArraySchema():
                return self.obstacle(reader.items, writer.items, f"elements of {at}")
            case MapSchema(), MapSchema():
                return self.obstacle(reader.values, writer.values, f"values of {at}")
            case RecordSchema(), RecordSchema():
                return self._record_obstacle(reader, writer)
            case NamedSchema(), NamedSchema() if reader.name != self._name(writer).rpartition(".")[2]:
                return f"{at}: {kind} {reader.fullname} does not read {writer.fullname}"
            case FixedSchema(), FixedSchema() if reader.size != writer.size:
                return f"{at}: {reader.size} bytes do not read {writer.size}"
        return ""

    def _branch(self, union: UnionSchema, writer: Schema) -> Schema | None:
        """Return the branch of the reader's union that reads a type of the writer, None if none does.

        Branches are tried in this order: the same type (and name), a record of the same shape, a type that can read
        another one.
        """
        written, alike = _kind(writer), None
        if id(union) not in self._branches:
            self._branches[id(union)] = {_called(branch): branch for branch in reversed(union.schemas)}
        called = (written, self._name(writer) if isinstance(writer, NamedSchema) else "")
        if called in self._branches[id(union)]:
            return self._branches[id(union)][called]
        if isinstance(writer, RecordSchema):
            for branch in union.schemas:
                self._step()
                if isinstance(branch, RecordSchema) and (alike is None or branch.name == writer.name) \
                        and not self.obstacle(branch, writer):
                    alike = branch
        return alike or next((branch for branch in union.schemas if branch.type in _PROMOTED.get(written, ())), None)

    def _record_obstacle(self, reader: RecordSchema, writer: RecordSchema) -> str:
        pair = id(reader), id(writer)
        if pair not in self._records:
            self._records[pair] = ""
            self._records[pair] = self._field_obstacle(reader, writer)
        return self._records[pair]

    def _field_obstacle(self, reader: RecordSchema, writer: RecordSchema) -> str:
        aliases = self._fields.get(self._name(writer), {})
        written = {aliases.get(field.name, field.name): field.type for field in writer.fields}
        for field in reader.fields:
            self._step()
            place = f"field {field.name} of {reader.fullname}"
            if field.name in written:
                if obstacle := self.obstacle(field.type, written[field.name], place):
                    return obstacle
            elif not field.has_default:
                return f"{place}: it has no default, and is not written"
            elif not _fits(field.type, field.default):
                return f"{place}: its default is not of its type"
        return ""


def _called(schema: Schema) -> tuple[str, str]:
    return _kind(schema), schema.fullname if isinstance(schema, NamedSchema) else ""


def _aliases(one: NamedSchema | avro.schema.Field) -> list[str]:
    aliases: Any = one.props.get("aliases")
    return aliases or []


def _kind(schema: Schema) -> str:
    return {"error": "record", "error_union": "union"}.get(schema.type, schema.type)


def _fits(schema: Schema, value: Any) -> bool:
    """Whether a JSON value is a valid default for an Avro type; for a union, for its first type."""
    match schema:
        case EnumSchema():
            return value in schema.symbols
        case ArraySchema():
            return isinstance(value, list) and all(_fits(schema.items, item) for item in value)
        case MapSchema():
            return isinstance(value, dict) and all(_fits(schema.values, one) for one in value.values())
        case UnionSchema():
            return bool(schema.schemas) and _fits(schema.schemas[0], value)
        case RecordSchema():
            return isinstance(value, dict) and all(
                _fits(field.type, value[field.name]) if field.name in value else field.has_default
                for field in schema.fields
            )
    match schema.type:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            end = _RANGES[schema.type]
            return isinstance(value, int) and not isinstance(value, bool) and -end <= value < end
        case "float" | "double":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "string" | "bytes" | "fixed":
            return isinstance(value, str)
    return False

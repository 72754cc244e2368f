"""Objects of Python with a field of one kind each; things.py has the rest of the program.

`write Python FORMAT KIND` publishes one, `read WRITER FORMAT KIND` reads one that WRITER has published.
"""
import enum
import json
import math

import pulsar
import things
from pulsar import schema
from read_tables import text_of


class Color(enum.Enum):
    RED = 1
    GREEN = 2


class Inner(schema.Record):
    a = schema.Integer()
    b = schema.String()


# The kinds that the library has, with a field and a value; others are read without a class.
KINDS = {
    "bool": (schema.Boolean(), True),
    "int8": (schema.Integer(), -6),
    "int32": (schema.Integer(), -2**31),
    "int64": (schema.Long(), 2**53 + 1),
    "uint64": (schema.Long(), 2**64 - 1),
    "float": (schema.Float(), 0.25),
    "double": (schema.Double(), 0.1),
    "nan": (schema.Double(), math.nan),
    "text": (schema.String(), "Zoë 🙂 \\ \"q\""),
    "bytes": (schema.Bytes(), b"\x00\xffa"),
    "enum": (schema.CustomEnum(Color), Color.GREEN),
    "list": (schema.Array(schema.Integer()), [1, 2]),
    "map": (schema.Map(schema.Long()), {"a": 2**53 + 1}),
    "nested": (Inner(), Inner(a=1, b="x")),
    "null": (schema.Integer(), None),
    "optional": (schema.Integer(), 7),
}


def class_of(kind):
    return type(kind.capitalize(), (schema.Record,), {"id": schema.Integer(), "value": KINDS[kind][0]})


def schema_of(format, record):
    return (schema.JsonSchema if format == "JSON" else schema.AvroSchema)(record)


def write(c, topic, kind, format):
    made = class_of(kind)
    producer = c.create_producer(topic, schema=schema_of(format, made))
    producer.send(made(id=0, value=KINDS[kind][1]))
    return "done"


def read(c, topic, kind, format):
    its = {}
    if kind in KINDS:
        its = {"schema": schema_of(format, class_of(kind))}
    elif format == "AVRO":
        its = {"schema": schema.AvroSchema(None, schema_definition=json.loads(things.TOLD["definitions"])[kind])}
    consumer = c.subscribe(topic, "python", initial_position=pulsar.InitialPosition.Earliest, **its)
    message = consumer.receive(things.MS)
    got = message.value() if its else json.loads(message.data())
    value = got["value"] if isinstance(got, dict) else got.value
    if isinstance(value, Inner):
        value = {"a": value.a, "b": value.b}
    return value.name if isinstance(value, enum.Enum) else text_of(value)


def installed(kind):
    for format in ("JSON", "AVRO"):
        for writer in ("Java", "Python", "Go", "Rust"):
            for step, does in (("write", write), ("read", read)):
                name = f"{writer} {format} {kind}"
                things.THINGS[f"{step} {name}"] = lambda c, topic, does=does, step=step, format=format: does(
                    c, topic.replace(f"-{step}-", "-"), kind, format)


for each in json.loads(things.TOLD["definitions"]):
    installed(each)
things.main()

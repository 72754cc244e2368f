"""Messages of objects.proto with a field of one kind each, written and read as objects.py does with classes of its own.

The module objects_pb2 is what protoc has made.
"""
import math

import objects_pb2 as made
import pulsar
import things
from pulsar.schema import ProtobufNativeSchema
from read_tables import text_of

KINDS = {
    "bool": True, "int8": -6, "int32": -2**31, "int64": 2**53 + 1, "uint64": 2**64 - 1, "float": 0.25, "double": 0.1,
    "nan": math.nan, "text": "Zoë 🙂 \\ \"q\"", "bytes": b"\x00\xffa", "enum": made.GREEN, "list": [1, 2],
    "map": {"a": 2**53 + 1}, "nested": made.Inner(a=1, b="x"), "null": None, "optional": 7,
}


def class_of(kind):
    return getattr(made, f"{kind.capitalize()}Box")


def write(c, topic, kind):
    value = {} if KINDS[kind] is None else {"value": KINDS[kind]}
    c.create_producer(topic, schema=ProtobufNativeSchema(class_of(kind))).send(class_of(kind)(**value))
    return "done"


def read(c, topic, kind):
    consumer = c.subscribe(topic, "python", schema=ProtobufNativeSchema(class_of(kind)),
                           initial_position=pulsar.InitialPosition.Earliest)
    message = consumer.receive(things.MS).value()
    value = message.value
    if kind in ("null", "optional") and not message.HasField("value"):
        return "null"
    if isinstance(value, made.Inner):
        value = {"a": value.a, "b": value.b}
    if kind in ("list", "map"):
        value = type(KINDS[kind])(value)
    return made.Color.Name(value) if kind == "enum" else text_of(value)


for each in KINDS:
    for writer in ("Java", "Python"):
        for step, does in (("write", write), ("read", read)):
            things.THINGS[f"{step} {writer} PROTOBUF {each}"] = lambda c, topic, does=does, step=step, each=each: does(
                c, topic.replace(f"-{step}-", "-"), each)
things.main()

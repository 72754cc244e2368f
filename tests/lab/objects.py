"""Objects of each language, through JSON, Avro and Protobuf, read by each other language, as columns, and by Geminga.

Each kind has topics of its own, in which a program publishes an object with a field of that kind: `programs/objects.*`.
Protobuf has programs of its own, with classes that `protoc` makes of `programs/objects.proto`.
"""

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..harness import request
from . import readers, registries
from .clients import JVM
from .programs.read_tables import text_of
from .running import Ground
from .subject import Answers, NotRun, Subject

NAME = "objects"
ABOUT = ("An object with one field, which a class, record or struct of each language has, published with the schema "
         "that its client makes of it; clients of Go and Rust take a definition. `clients` are the four languages, of "
         "Protobuf the two whose classes `protoc` makes, "
         "`tables` DuckDB, Arrow, pandas, Polars and Spark with the night's column, `geminga` what `geminga search` "
         "prints. The answer is the value if all read the same one.")

VERSIONS = {"Java": "4.2.4", "Python": "3.13.0", "Go": "v0.19.0", "Rust": "6.9.1"}
COMMAND_SECONDS = 120
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
# kind: (type in the definition of Avro, "" the same in that of JSON; else the type there; the value as text)
KINDS: dict[str, tuple[Any, Any, str]] = {
    "bool": ("boolean", "", "true"),
    "int8": ("int", "", "-6"),
    "int32": ("int", "", "-2147483648"),
    "int64": ("long", "", "9007199254740993"),
    "uint64": ("string", "", "18446744073709551615"),
    "float": ("float", "", "0.25"),
    "double": ("double", "", "0.1"),
    "nan": ("double", "", "NaN"),
    "char": ("int", "", "ß"),
    "text": ("string", "", 'Zoë 🙂 \\ "q"'),
    "bytes": ("bytes", "", "x00ff61"),
    "enum": ({"type": "enum", "name": "Color", "symbols": ["RED", "GREEN"]}, "", "GREEN"),
    "date": ({"type": "int", "logicalType": "date"}, "string", "2024-02-29"),
    "time": (MILLIS, "string", "2024-01-31T10:15:30.123Z"),
    "decimal": ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "string", "12.25"),
    "uuid": ({"type": "string", "logicalType": "uuid"}, "string", "00000000-0000-0001-0000-000000000002"),
    "list": ({"type": "array", "items": "int"}, "", "[1, 2]"),
    "map": ({"type": "map", "values": "long"}, "", "{a: 9007199254740993}"),
    "nested": ({"type": "record", "name": "Inner", "fields": [
        {"name": "a", "type": "int"}, {"name": "b", "type": "string"}]}, "", "{a: 1, b: x}"),
    "null": (["null", "int"], "", "null"),
    "optional": (["null", "int"], "", "7"),
}
AS_WRITTEN = "columns have the number or text that the client writes, by the definition: docs/tables.md"
SHOWN = "the client's JSON is shown as it is"
# (reader, format): (kinds that it has in another form, why)
DECIDED = {
    ("tables", "JSON"): (("char", "date", "time", "bytes", "enum", "uint64", "nan"), AS_WRITTEN),
    ("tables", "AVRO"): (("char",), AS_WRITTEN),
    ("geminga", "JSON"): (("char", "date", "time", "bytes", "enum", "nan"), SHOWN),
    ("geminga", "AVRO"): (("char", "bytes"), "bytes are base64, and characters numbers"),
    ("geminga", "PROTOBUF"): (("bytes",), "bytes are base64, as in JSON of Protobuf"),
}
PROTOBUF = "Java", "Python"
PYTHON_LACKS = {"char", "date", "time", "decimal", "uuid"}      # Protobuf lacks them too
LIBRARIES = {"DuckDB": ("duckdb", ("duckdb==2.0.1", readers.ARROW)), "Arrow": ("pyarrow", (readers.ARROW,)),
             "pandas": ("pandas", ("pandas==2.3.3", readers.ARROW)), "Polars": ("polars", ("polars==2.1.0",)),
             "Spark": ("pyspark", ("pyspark==4.3.0",))}


def _definitions(form: str) -> str:
    return json.dumps({kind: {"type": "record", "name": kind.capitalize(), "fields": [
        {"name": "id", "type": "int"}, {"name": "value", "type": (form == "JSON" and in_json) or in_avro}]}
        for kind, (in_avro, in_json, _) in KINDS.items()})


def _program_of_protobuf(language: str) -> list[str | Path]:
    """Return the command of a language's program for Protobuf.  Raises NotRun."""
    programs, version, definition = registries.PROGRAMS, VERSIONS[language], registries.PROGRAMS / "objects.proto"
    made = registries.installed("protobuf", language + definition.read_text(), lambda folder: registries.run(
        ["protoc", f"--{language.lower()}_out={folder}", f"-I{programs}", definition]))
    if language == "Python":
        python = registries.python(f"pulsar-client=={version}", "protobuf==6.33.0")
        return ["env", f"PYTHONPATH={made}", python, programs / "objects_protobuf.py"]
    jars = registries.jars({"org.apache.pulsar:pulsar-client": version,
                            "com.google.protobuf:protobuf-java": "3.25.8"}, {})
    classes = registries.classes(jars, programs / "Things.java", programs / "ProtobufObjects.java",
                                 *made.rglob("*.java"))
    return ["java", *JVM, "-cp", f"{classes}:{jars}/*", "ProtobufObjects"]


def _program(language: str) -> list[str | Path]:
    """Return the command of a language's program.  Raises NotRun."""
    programs, version = registries.PROGRAMS, VERSIONS[language]
    if language == "Java":
        jars = registries.jars({"org.apache.pulsar:pulsar-client": version}, {})
        made = registries.classes(jars, programs / "Things.java", programs / "Objects.java")
        return ["java", *JVM, "-cp", f"{made}:{jars}/*", "Objects"]
    if language == "Python":
        return [registries.python(f"pulsar-client=={version}", "fastavro==1.13.1"), programs / "objects.py"]
    if language == "Go":
        return [registries.go_program([programs / "things.go", programs / "objects.go"],
                                      {"github.com/apache/pulsar-client-go": version})]
    return [registries.rust_program(programs / "objects.rs", {
        "pulsar": f'{{ version = "={version}", default-features = false, '
                  'features = ["tokio-runtime", "compression"] }',
        "tokio": '{ version = "1", features = ["full"] }', "futures": '"0.3"', "serde_json": '"1"',
        "serde": '{ version = "1", features = ["derive"] }', "apache-avro": '"=0.21.0"'})]


def _done(ground: Ground, language: str, step: str, name: str, kinds: list[str], prefix: str, definitions: str
          ) -> dict[str, str]:
    """Have a language's program write or read objects; return its answers by kind.

    definitions: of the kinds, as JSON, for languages that take them as text.
    """
    try:
        command = _program_of_protobuf(language) if "PROTOBUF" in name else _program(language)
    except NotRun as why:
        return dict.fromkeys(kinds, f"not run: {why}")
    more = {} if language == "Java" else {"definitions": definitions}
    things = [f"{step} {name} {kind}" for kind in kinds]
    return {thing.split()[-1]: answer for thing, answer in ground.ask(command, things, prefix, more=more)}


def _registered(ground: Ground, topic: str) -> Any:
    """Return the definition that a topic's producer has registered."""
    _, text = request("GET", f"{ground.broker.http_url}/admin/v2/schemas/public/default/{topic}/schema")
    return json.loads(json.loads(text)["data"])


def _by_tables(ground: Ground, kinds: list[str], topic: str) -> dict[str, dict[str, str]]:
    tables = readers.night(ground, rejects=True)
    rejected = {kind: "the night rejected it" for kind in kinds
                if not list((tables / f"public/default/{topic}-{kind}").rglob("*.parquet"))}
    kinds = [kind for kind in kinds if kind not in rejected]
    told = {"tables": str(tables), "questions": json.dumps({
        kind: {"table": f"public/default/{topic}-{kind}/messages", "column": "value",
               "is_map": kind == "map"} for kind in kinds})}
    program = registries.PROGRAMS / "read_tables.py"
    return {"": rejected} | {
        name: dict(ground.ask([registries.python(*packages), program, library], kinds, "", None, told, broker=False))
        for name, (library, packages) in LIBRARIES.items()}


def _by_geminga(ground: Ground, kinds: list[str], topic: str) -> dict[str, dict[str, str]]:
    done = subprocess.run([Path(sys.executable).with_name("geminga"), "search", "public/default", "--url",
                           ground.told["service"], "-o", "jsonl"], capture_output=True, text=True,
                          timeout=COMMAND_SECONDS)
    said = {message["topic"].removeprefix("persistent://public/default/"): message
            for message in map(json.loads, done.stdout.splitlines())}
    return {"search": {kind: text_of(said[f"{topic}-{kind}"]["value"].get("value")) for kind in kinds}}


def _together(answers: dict[str, str]) -> str:
    """Return the answer that most readers give, and which of them give others."""
    # Go's library makes times of the year 1, with parts of a second that no run repeats, of those that may be null.
    answers = {reader: re.sub(r"0001-01-01T.*Z", "0001-01-01", text.replace(".123000Z", ".123Z"))
               for reader, text in answers.items()}
    texts = list(answers.values())
    most = max(texts, key=texts.count)
    return "; ".join([most, *(f"{reader}: {text}" for reader, text in answers.items() if text != most)])


def _asked(kinds: list[str]) -> dict[str, str]:
    return {f"{kind} by {reader}": KINDS[kind][2] for kind in kinds for reader in ("clients", "tables", "geminga")}


def _subject(language: str, form: str) -> Subject:
    name = f"{language} {form}"

    def answers(ground: Ground, kinds: list[str]) -> Iterator[tuple[str, dict[str, dict[str, str]]]]:
        prefix = f"objects-{uuid.uuid4().hex[:6]}"
        topic = f"{prefix}-{name.replace(' ', '-')}"
        ground.please({"please": "PUT", "path": "namespaces/public/default/schemaCompatibilityStrategy",
                       "body": "ALWAYS_COMPATIBLE"})
        if ground.is_geminga:
            ground.please({"please": "POST", "path": "namespaces/public/default/export", "body": "messages"})
        written = _done(ground, language, "write", name, kinds, prefix, _definitions(form))
        failed = {kind: f"lacks: {answer}" for kind, answer in written.items() if answer != "done"}
        kinds = [kind for kind in kinds if kind not in failed]
        # Before others read: a consumer registers its own definition as a new version, which changes the column.
        for reader, read in (("tables", _by_tables), ("geminga", _by_geminga)) if ground.is_geminga else ():
            yield reader, {"": failed} | (read(ground, kinds, topic) if kinds else {})
        said = json.dumps({kind: _registered(ground, f"{topic}-{kind}") for kind in kinds})
        yield "clients", {"": failed} | {
            other: _done(ground, other, "read", name, kinds, prefix, said)
            for other in (PROTOBUF if form == "PROTOBUF" else VERSIONS)}

    def ask(ground: Ground, asked: list[str]) -> Answers:
        kinds = list(dict.fromkeys(thing.split()[0] for thing in asked))
        if not ground.is_geminga:
            yield from ((thing, "") for thing in asked if not thing.endswith("clients"))      # nobody else can be asked
        for reader, by in answers(ground, kinds):
            for kind in kinds:
                if given := {other: said[kind] for other, said in by.items() if kind in said}:
                    yield f"{kind} by {reader}", _together(given)

    kinds = [kind for kind in KINDS if kind not in PYTHON_LACKS or (language != "Python" and form != "PROTOBUF")]
    return Subject(name, f"of client {VERSIONS[language].removeprefix('v')}", _asked(kinds), ask, compared=True,
                   decided={f"{kind} by {reader}": why for (reader, in_form), (some, why) in DECIDED.items()
                            if in_form == form for kind in some})


def subjects(newest: bool) -> list[Subject]:
    """Return a subject for each language and encoding, of pinned versions only."""
    return [] if newest else [*(_subject(language, form) for language in VERSIONS for form in ("JSON", "AVRO")),
                              *(_subject(language, "PROTOBUF") for language in PROTOBUF)]

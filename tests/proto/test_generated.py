"""The committed module and its types are what the definition beside them says."""
import ast
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from geminga.proto import pulsar_api_pb2

PROTO = Path(__file__).resolve().parents[2] / "proto"


def serialized_file(source):
    """Return the serialized FileDescriptorProto inside a generated module.

    The module is read, not imported: a second definition of the same file name would clash with ours in protobuf's
    pool.
    """
    (content,) = [
        node.args[0].value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "AddSerializedFile"
    ]
    return content


def parsed(content):
    return descriptor_pb2.FileDescriptorProto.FromString(content)


def generate(folder):
    """Run the command of pulsar_api.proto; the module and its types go to `folder`."""
    plugin = Path(sys.executable).parent / "protoc-gen-mypy"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--plugin={plugin}", "-I", PROTO, "--python_out", folder,
               "--mypy_out", folder]
    subprocess.run([*command, "pulsar_api.proto"], cwd=folder, check=True)


@pytest.mark.slow
def test_the_committed_module_is_generated_from_the_definition(tmp_path):
    """The committed module has every message, field, number, label and default of pulsar_api.proto.

    The text around the descriptor is not compared; it changes with each release of the generator.
    """
    generate(tmp_path)
    generated = serialized_file((tmp_path / "pulsar_api_pb2.py").read_text())
    committed = pulsar_api_pb2.DESCRIPTOR.serialized_pb
    assert parsed(generated) == parsed(committed)  # first, because its difference can be read
    assert generated == committed


def test_the_committed_types_are_generated_from_the_definition(tmp_path):
    """The committed stubs have every message and field of the module."""
    generate(tmp_path)
    assert (tmp_path / "pulsar_api_pb2.pyi").read_text() == (PROTO / "pulsar_api_pb2.pyi").read_text()

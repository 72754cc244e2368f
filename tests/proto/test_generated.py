"""The committed module is what the definition beside it says."""
import ast
import subprocess
import sys
from pathlib import Path

from google.protobuf import descriptor_pb2

from geminga.proto import pulsar_api_pb2

PROTO = Path(__file__).resolve().parents[2] / "proto"


def serialized_file(source):
    """The serialized FileDescriptorProto inside a generated module.

    Read, not imported: a second definition of the same file name would clash with ours in protobuf's pool.
    """
    (content,) = [
        node.args[0].value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "AddSerializedFile"
    ]
    return content


def parsed(content):
    return descriptor_pb2.FileDescriptorProto.FromString(content)


def test_the_committed_module_is_generated_from_the_definition(tmp_path):
    """Every message, field, number, label and default is equal: nobody edited one and forgot the other.

    The text around the descriptor is not compared; it changes with each release of the generator.
    """
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(PROTO), "--python_out", str(tmp_path), "pulsar_api.proto"]
    subprocess.run(command, cwd=tmp_path, check=True)
    generated = serialized_file((tmp_path / "pulsar_api_pb2.py").read_text())
    committed = pulsar_api_pb2.DESCRIPTOR.serialized_pb
    assert parsed(generated) == parsed(committed)  # first, because its difference can be read
    assert generated == committed

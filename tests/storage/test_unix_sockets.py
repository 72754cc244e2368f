"""Unix sockets in a data folder: served whatever the name by which they were bound means by then."""
import asyncio
import os
import re
import socket
from pathlib import Path

import pytest
import uvloop

from geminga.storage.runtime import unix_sockets

ROOT = Path(__file__).resolve().parent.parent.parent
LAYERS = "proto", "storage", "workers", "supervisor"
LOOPS = pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop],
                                ids=["asyncio", "uvloop"])


@pytest.fixture
def bound(tmp_path):
    """A listening socket whose name leads through a descriptor that is a plain file by now."""
    listener = unix_sockets.listen(tmp_path / "clients")
    number = int(re.fullmatch(r"/proc/self/fd/(\d+)/clients", listener.getsockname())[1])
    (tmp_path / "other").touch()
    opened = os.open(tmp_path / "other", os.O_RDONLY)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
    with pytest.raises(NotADirectoryError):
        os.stat(listener.getsockname())
    yield listener
    os.close(number)
    listener.close()


class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


def echo_of(path, text):
    with unix_sockets.connect(path, 30) as link:
        link.sendall(text)
        return link.recv(100)


@LOOPS
def test_a_socket_is_served_when_its_own_name_means_another_file(bound, tmp_path, loop_factory):
    """From Python 3.13 on, `create_unix_server` looks the name up, and fails."""
    async def run():
        server = await unix_sockets.serve(bound, Echo)
        heard = await asyncio.to_thread(echo_of, tmp_path / "clients", b"hello")
        server.close()
        return heard

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(run()) == b"hello"
    assert (tmp_path / "clients").is_socket() and (tmp_path / "other").exists()


@LOOPS
def test_streams_are_served_when_the_sockets_own_name_means_another_file(bound, tmp_path, loop_factory):
    async def talk(reader, writer):
        writer.write(await reader.readline())
        writer.close()

    async def run():
        server = await unix_sockets.serve_streams(bound, talk, 100)
        heard = await asyncio.to_thread(echo_of, tmp_path / "clients", b"hello\n")
        server.close()
        return heard

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(run()) == b"hello\n"
    assert (tmp_path / "clients").is_socket()


def test_a_socket_that_an_earlier_process_left_is_replaced_on_demand_only(tmp_path):
    unix_sockets.listen(tmp_path / "left").close()
    with pytest.raises(OSError, match="in use"):
        unix_sockets.listen(tmp_path / "left")
    with unix_sockets.listen(tmp_path / "left", is_replacing=True), unix_sockets.connect(tmp_path / "left") as link:
        assert link.family == socket.AF_UNIX


def test_a_path_of_any_length_can_be_listened_at_and_connected_to(tmp_path):
    folder = tmp_path / ("x" * 200)
    folder.mkdir()
    with unix_sockets.listen(folder / "clients"), unix_sockets.connect(folder / "clients"):
        assert (folder / "clients").is_socket()


def test_no_other_file_hands_a_unix_socket_to_a_loop():
    """Both methods look up the name of a socket that is handed over; `serve` and `serve_streams` do not."""
    users = [str(path.relative_to(ROOT)) for layer in LAYERS for path in sorted((ROOT / layer).rglob("*.py"))
             if re.search(r"(create|start)_unix_server\(", path.read_text())]
    assert users == []

"""A broker's start and end: messages to whoever started it, and the folder of its sockets."""
import socket

import pytest

from geminga.supervisor.processes import listening


@pytest.mark.parametrize(("spare", "is_there"), [(0, True), (-1, False)])
def test_sockets_lie_in_the_data_folder_unless_its_path_is_too_long_for_them(tmp_path, monkeypatch, spare, is_there):
    place = tmp_path.resolve() / "run"
    monkeypatch.setattr(listening, "_SOCKET_PATH_MAX", len(str(place)) + spare)
    made = listening.make_run_dir(tmp_path)
    assert (made == place, made.is_dir()) == (is_there, True)
    made.rmdir()


@pytest.mark.slow
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_port_that_nobody_listens_on_yet_is_not_shared_with_another_broker(address, count):
    """A broker that recovers has bound its port; a second one is told at its start, not when both would serve."""
    bound = listening.bind_shared(address, 0, "network.port", count)
    port = bound[0].getsockname()[1]
    try:
        assert {one.getsockname()[1] for one in bound} == {port}
        with pytest.raises(listening.CannotServe, match=f"network.port: cannot listen on {address}:{port}: .*in use"):
            listening.bind_shared(address, port, "network.port", count)
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            pass
    finally:
        for one in bound:
            one.close()

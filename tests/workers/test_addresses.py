"""Addresses that clients are told to connect to, by listener and scheme."""
import pytest

from geminga.workers.addresses import addresses
from geminga.workers.options import WorkerOptions


@pytest.mark.parametrize(("options", "ports", "told"), [
    ({}, (6650, -1), ("pulsar://127.0.0.1:6650", "")),
    ({}, (-1, 6651), ("", "pulsar+ssl://127.0.0.1:6651")),
    ({"bind": "0.0.0.0"}, (6650, 6651), ("pulsar://localhost:6650", "pulsar+ssl://localhost:6651")),
    ({"advertised_address": "::1"}, (6650, -1), ("pulsar://[::1]:6650", "")),
    ({"advertised_listeners": ("a:pulsar+ssl://a:1", "b:pulsar://b:2", "b:pulsar+ssl://b:3")}, (6650, 6651),
     ("pulsar://b:2", "pulsar+ssl://a:1")),
])
def test_who_names_no_listener_is_told_the_first_of_each_scheme(options, ports, told):
    """Without listeners it is told the broker's own address, never one that means "any", and no port that is not open.
    """
    assert addresses(WorkerOptions(**options), *ports)[:2] == told


def test_a_listener_has_an_address_of_each_scheme():
    said = "outer:pulsar://o:1", "outer:pulsar+ssl://o:2", "inner:pulsar+ssl://[::1]:3"
    assert addresses(WorkerOptions(advertised_listeners=said), 6650, 6651).listeners == {
        "outer": ("pulsar://o:1", "pulsar+ssl://o:2"), "inner": ("", "pulsar+ssl://[::1]:3")}

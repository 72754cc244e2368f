"""Clients on other hosts reach a broker that is configured with `bind = "0.0.0.0"` and nothing else.

A relay on another port stands for a port map, NAT or an SSH tunnel.  The broker sees everything that comes through the
relay under an address of the relay's own, so a client that leaves it for an address of the broker is found out.
"""
import json
import os
import signal
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pulsar
import pytest

from geminga.supervisor.processes.listening import reached_from_others

from ..conftest import _running_broker
from ..harness import HANG_MS, Broker, eventually, request, unique_topic
from ..proto.client_frames import T
from ..relay import SOURCE, Relay
from ..workers.peer import Peer
from .test_tls import Authority

PORTS = "service_url", "tls_url", "http_url"


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    if _running_broker() is not None:
        pytest.skip("needs a broker with its own configuration")
    return Authority(tmp_path_factory.mktemp("reach"))


@pytest.fixture(scope="module")
def everywhere(authority) -> Iterator[Broker]:
    """A broker that listens on all addresses, with and without TLS, and that has no advertised address."""
    own = Broker(authority.folder / "data", "--config", authority.configuration(), "--bind", "0.0.0.0")
    try:
        yield own.start()
    finally:
        own.close()


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


def uses(client: pulsar.Client, broker: Broker, topic: str) -> set[str]:
    """Publish and consume one message, and return the addresses under which the broker sees the client."""
    consumer, producer = client.subscribe(topic, "sub"), client.create_producer(topic)
    producer.send(b"one")
    message = consumer.receive(HANG_MS)
    assert message.data() == b"one"
    consumer.acknowledge(message)
    _, text = request("GET", f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/stats")
    stats = json.loads(text)
    seen = stats["publishers"] + stats["subscriptions"]["sub"]["consumers"]
    return {client["address"].removeprefix("/").rpartition(":")[0] for client in seen}


def test_a_client_stays_on_the_address_by_which_it_came(everywhere, connect):
    """A client that comes through a relay on another port stays on the relay with everything."""
    with Relay(port_of(everywhere.service_url)) as relay:
        client = connect(f"pulsar://127.0.0.1:{relay.port}")
        assert uses(client, everywhere, unique_topic("reach")) == {SOURCE}
        client.close()


def test_a_client_with_tls_stays_too(everywhere, authority, connect):
    """Over TLS a client stays on the relay, and the certificate is checked against the name that it was given."""
    with Relay(port_of(everywhere.tls_url)) as relay:
        client = connect(f"pulsar+ssl://localhost:{relay.port}", tls_trust_certs_file_path=authority.trusted,
                         tls_validate_hostname=True)
        assert uses(client, everywhere, unique_topic("reach")) == {SOURCE}
        client.close()


@pytest.mark.parametrize("scheme", ["pulsar", "http"])
def test_any_address_of_the_host_will_do(everywhere, connect, scheme):
    """On another address of the host, a client stays on this address; a lookup over HTTP names it as well."""
    port = port_of(everywhere.service_url if scheme == "pulsar" else everywhere.http_url)
    client = connect(f"{scheme}://127.0.0.3:{port}")
    assert uses(client, everywhere, unique_topic("reach")) == {"127.0.0.1"}
    client.close()


def looked_up(broker: Broker, host: str) -> dict[str, str]:
    url = f"{broker.http_url}/lookup/v2/topic/persistent/public/default/t"
    status, text = request("GET", url, Host=host)
    assert status == 200
    found: dict[str, str] = json.loads(text)
    return found


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.3", "127.0.0.3"), ("[::1]:1", "[::1]"),
                                             ("localhost:7000", "localhost")])
def test_a_lookup_over_http_answers_with_the_host_of_the_request(everywhere, host, shown):
    """The port by which the request came is kept.  Others are the broker's own: no header tells how they are mapped."""
    service, tls, http = (port_of(getattr(everywhere, name)) for name in PORTS)
    found = looked_up(everywhere, host)
    http = int(host.rpartition(":")[2]) if host != shown else http
    assert (found["brokerUrl"], found["brokerUrlTls"], found["httpUrl"]) == (
        f"pulsar://{shown}:{service}", f"pulsar+ssl://{shown}:{tls}", f"http://{shown}:{http}")
    assert found["httpUrlTls"] == f"https://{shown}:{port_of(everywhere.https_url)}"


def test_a_lookup_through_a_port_map_is_told_once_with_the_way_out(start_broker: Callable[..., Broker]):
    """A client with an http:// URL behind a map of ports is sent to a port that may not be there."""
    broker = start_broker("--bind", "0.0.0.0")
    looked_up(broker, f"localhost:{port_of(broker.http_url)}")
    assert "A lookup over HTTP came by port" not in broker.log()
    for _ in range(2):
        looked_up(broker, "localhost:7000")
    assert eventually(lambda: broker.log().count("A lookup over HTTP came by port 7000") == 1)
    assert "network.advertised_listeners" in broker.log()


@pytest.mark.parametrize("mapped", ["pulsar", "http"])
def test_a_client_of_an_advertised_listener_passes_a_port_map_with_both_urls(
        start_broker: Callable[..., Broker], tmp_path, connect, mapped):
    place = tmp_path / "geminga.toml"
    place.write_text("")
    broker = start_broker("--config", str(place), "--bind", "0.0.0.0")
    with Relay(port_of(broker.service_url)) as service, Relay(port_of(broker.http_url)) as http:
        place.write_text(f'[network]\nadvertised_listeners = ["out:pulsar://127.0.0.1:{service.port}"]\n')
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGHUP)
        assert eventually(lambda: looked_up(broker, "localhost")["brokerUrl"].endswith(f":{service.port}"))
        client = connect(f"{mapped}://127.0.0.1:{service.port if mapped == 'pulsar' else http.port}")
        assert uses(client, broker, unique_topic("reach")) == {SOURCE}
        client.close()


def asked(broker: Broker, **fields):
    with Peer(broker.service_url) as peer:
        return peer.ask(T.LOOKUP, topic=unique_topic("reach"), request_id=1, **fields).lookupTopicResponse


def test_an_advertised_address_wins(start_broker: Callable[..., Broker], tmp_path):
    """Once an address or a listener is advertised, clients are sent there, and a Host header changes nothing."""
    place = tmp_path / "geminga.toml"
    place.write_text('[network]\nadvertised_address = "localhost"\n')
    broker = start_broker("--config", str(place), "--bind", "0.0.0.0")
    answer, url = asked(broker), f"pulsar://localhost:{port_of(broker.service_url)}"
    assert (answer.brokerServiceUrl, answer.proxy_through_service_url) == (url, False)
    assert looked_up(broker, "127.0.0.3")["brokerUrl"] == url
    broker.stop()
    place.write_text('[network]\nadvertised_listeners = ["out:pulsar://out.example:1"]\n')
    broker.start()
    for fields in ({}, {"advertised_listener_name": "out"}):
        answer = asked(broker, **fields)
        assert (answer.brokerServiceUrl, answer.proxy_through_service_url) == ("pulsar://out.example:1", False)


@pytest.mark.parametrize(("binds", "host"), [
    (("127.0.0.1", "127.0.0.1"), "broker.example"), (("0.0.0.0", "0.0.0.0"), "broker.example"),
    (("0.0.0.0", "127.0.0.1"), "127.0.0.1")])
def test_http_has_the_advertised_address_too(start_broker: Callable[..., Broker], tmp_path, binds, host):
    """The broker's name in administration has it, unless HTTP is only for this host, and clients come from others."""
    place = tmp_path / "geminga.toml"
    place.write_text(f'http_bind = "{binds[1]}"\n[network]\nadvertised_address = "broker.example"\n')
    broker = start_broker("--config", str(place), "--bind", binds[0])
    told = f"{host}:{port_of(broker.http_url)}"
    assert request("GET", f"{broker.http_url}/admin/v2/brokers") == (200, json.dumps([told]))
    assert looked_up(broker, "127.0.0.3")["httpUrl"] == f"http://{told}"


def test_connect_takes_the_name_of_a_broker_behind_a_proxy(everywhere):
    """Clients that stay name the address of the lookup in CONNECT, which the broker accepts for what it is: a name."""
    assert asked(everywhere).proxy_through_service_url
    with Peer(everywhere.service_url, b"") as peer:
        answer = peer.ask(T.CONNECT, client_version="t", protocol_version=19, proxy_to_broker_url="a.example.com:6650")
        assert answer.type == T.CONNECTED


def test_the_address_for_other_hosts_is_printed(everywhere, own):
    """A start on all addresses prints the one for clients of this host, and the one for clients of others."""
    port = port_of(everywhere.service_url)
    assert f"  clients   pulsar://localhost:{port}\n" in everywhere.printed()
    if address := reached_from_others("0.0.0.0"):      # "" where the host has no network
        assert address not in ("localhost", "127.0.0.1", "0.0.0.0")
        assert f"  clients   pulsar://{address}:{port} (from other hosts)\n" in everywhere.printed()
    assert "from other hosts" not in own.printed()

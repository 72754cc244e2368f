"""Clusters and lists of clusters over HTTP: what is taken and refused, who sees credentials, what lists bring about."""
import json
import re

import pytest

from geminga.proto import names
from geminga.storage.runtime import unix_sockets
from geminga.supervisor.admin.resources import cluster_records
from geminga.supervisor.main import main
from geminga.workers.addresses import Addresses

from ..harness import Broker, request
from ..proto.client_frames import T, command, entry_of, message_metadata, send
from ..workers.peer import Peer, error_of

FAR = {"serviceUrl": "http://far:8080", "brokerServiceUrl": "pulsar://far:6650"}
SECRET = {"authenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
          "authenticationParameters": "token:abc"}


@pytest.fixture
def ask(own):
    """ask(method, path, body): (status, answer's JSON, or its text)."""
    def ask(method, path, body=None):
        status, text = request(method, f"{own.http_url}/admin/v2/{path}", None if body is None else
                               json.dumps(body).encode())
        return status, json.loads(text) if text else None
    return ask


@pytest.fixture
def far(ask):
    """Two other clusters, which the tenant `public` may use."""
    for name in ("far", "near"):
        assert ask("PUT", f"clusters/{name}", FAR)[0] in (200, 409)
    assert ask("POST", "tenants/public", {"allowedClusters": ["standalone", "far", "near"]})[0] == 204
    yield
    assert ask("POST", "namespaces/public/default/replication", ["standalone"])[0] == 200


@pytest.fixture
def far_of():
    """far_of(broker): replicate the broker's default namespace to another cluster."""
    def far_of(broker):
        for method, path, body in (
                ("PUT", "clusters/far", FAR), ("POST", "tenants/public", {"allowedClusters": ["standalone", "far"]}),
                ("POST", "namespaces/public/default/replication", ["standalone", "far"])):
            assert request(method, f"{broker.http_url}/admin/v2/{path}", json.dumps(body).encode())[0] < 300
    return far_of


# -- records

def test_a_record_is_kept_with_all_its_fields_and_replaced(ask):
    full = FAR | SECRET | {"brokerServiceUrlTls": "pulsar+ssl://far:6651,far2:6651",
                           "brokerClientTlsEnabled": True, "brokerClientTrustCertsFilePath": "/etc/far.pem",
                           "listenerName": "outside", "tlsAllowInsecureConnection": True}
    assert ask("PUT", "clusters/full", full)[0] == 200
    told = ask("GET", "clusters/full")[1]
    assert told == cluster_records.SWITCHES | full | {"authenticationParameters": "***"}
    assert ask("POST", "clusters/full", FAR)[0] == 200
    assert ask("GET", "clusters/full")[1] == cluster_records.SWITCHES | FAR
    assert ask("DELETE", "clusters/full")[0] == 204
    assert ask("GET", "clusters/full")[0] == 404


def test_hidden_credentials_that_are_sent_back_stay(own, ask):
    """A tool that reads a record, changes an address and sends it keeps the secret, which it has not seen."""
    assert ask("PUT", "clusters/hidden", FAR | SECRET)[0] == 200
    told = ask("GET", "clusters/hidden")[1]
    assert ask("POST", "clusters/hidden", told | {"serviceUrl": "http://farther:8080"})[0] == 200
    with unix_sockets.connect(own.data_dir / unix_sockets.HTTP, 30) as link:      # from the host, by the data folder
        link.sendall(b"GET /admin/v2/clusters/hidden HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: link.recv(1 << 16), b""))
    shown = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert (shown["authenticationParameters"], shown["serviceUrl"]) == ("token:abc", "http://farther:8080")
    defined = json.loads(request("GET", f"{own.http_url}/ops/v1/definitions")[1])["clusters"]["hidden"]["data"]
    assert defined["authenticationParameters"] == "***"
    body = json.dumps({"version": 1, "clusters": {"hidden": {"data": defined}}}).encode()
    assert json.loads(request("POST", f"{own.http_url}/ops/v1/definitions", body)[1]) == {"changes": []}
    assert ask("DELETE", "clusters/hidden")[0] == 204


@pytest.mark.parametrize(("more", "text"), [
    ({"brokerServiceUrl": "http://far:6650"}, "Illegal brokerServiceUrl"),
    ({"brokerServiceUrl": "pulsar://"}, "Illegal brokerServiceUrl"),
    ({"brokerServiceUrl": "pulsar://far:x"}, "Illegal brokerServiceUrl"),
    ({"brokerServiceUrl": "pulsar://far:6650,"}, "Illegal brokerServiceUrl"),
    ({"brokerServiceUrl": "pulsar://far:6650,http://far"}, "Illegal brokerServiceUrl"),
    ({"serviceUrl": "http://fa r:8080"}, "Illegal serviceUrl"), ({"serviceUrl": 5}, "serviceUrl: expected a text"),
    ({"brokerClientTlsEnabled": "yes"}, "brokerClientTlsEnabled: expected true or false"),
    ({"brokerClientTrustCertsFilePath": "far.pem"}, "begins with /"),
    ({"authenticationPlugin": "AuthenticationAthenz", "authenticationParameters": "{}"}, "AuthenticationAthenz is not"),
    ({"authenticationPlugin": "AuthenticationToken", "authenticationParameters": "token:"}, "there is no token"),
    ({"authenticationPlugin": "AuthenticationBasic", "authenticationParameters": "{}"}, "lacks userId"),
    ({"authenticationPlugin": "AuthenticationBasic", "authenticationParameters": '{"a":' * 3000}, "expected an object"),
    ({"authenticationParameters": "token:abc"}, "needs authenticationPlugin"),
    ({"proxyServiceUrl": "pulsar+ssl://proxy:4443", "proxyProtocol": "SNI"}, "a proxy by SNI is not supported"),
    ({"brokerClientTlsEnabledWithKeyStore": True}, "Java's key stores are not read"),
    ({"listenerName": "x" * 20_000}, "at most 16384 characters"),
])
def test_a_record_that_cannot_work_is_refused_with_the_reason(ask, more, text):
    status, told = ask("PUT", "clusters/wrong", FAR | more)
    assert status == 400 and text in told["reason"]
    assert ask("GET", "clusters/wrong")[0] == 404


def test_an_address_for_the_way_that_messages_are_to_go_is_needed(ask):
    for record in (FAR | {"brokerClientTlsEnabled": True}, {"brokerServiceUrlTls": "pulsar+ssl://far:6651"}):
        status, told = ask("PUT", "clusters/wrong", record)
        assert status == 412 and "brokerClientTlsEnabled says" in told["reason"]
    assert ask("GET", "clusters/wrong")[0] == 404
    assert ask("POST", "clusters/standalone", {"brokerServiceUrlTls": "pulsar+ssl://us:6651"})[0] == 200


def test_a_remote_is_not_this_broker(own, ask):
    status, told = ask("PUT", "clusters/standalone", FAR)
    assert status == 409 and "this broker's own name" in told["reason"]
    port = own.service_url.rpartition(":")[2]
    for record in ({"brokerServiceUrl": own.service_url}, {"serviceUrl": own.http_url},
                   {"brokerServiceUrl": f"pulsar://far:6650,pulsar://localhost:{port}"},
                   {"brokerServiceUrl": f"pulsar://far:6650,127.0.0.1:{port}"}):
        status, told = ask("PUT", "clusters/mirror", record)
        assert status == 412 and "is this broker itself" in told["reason"]
    assert ask("POST", "clusters/standalone", {"brokerServiceUrl": own.service_url})[0] == 200


def test_addresses_count_as_our_own_on_every_name_of_the_host():
    ours = Addresses("pulsar://broker.example.com:6650", "", "http://broker.example.com:8080", "",
                     {"in": ("pulsar://10.0.0.1:7000", "")}, True, {"pulsar": 6650, "http": 8080})
    for url in ("pulsar://BROKER.example.com:6650", "pulsar://broker.example.com", "pulsar://[::1]:6650",
                "pulsar://0.0.0.0:6650", "pulsar://10.0.0.1:7000"):
        with pytest.raises(cluster_records.Invalid, match="is this broker itself"):
            cluster_records.check_remote({"brokerServiceUrl": url}, ours)
    for url in ("pulsar://localhost:6651", "pulsar://far:6650", "pulsar://10.0.0.1:6650"):
        cluster_records.check_remote({"brokerServiceUrl": url}, ours)


def test_a_cluster_that_a_list_names_cannot_be_deleted(ask, far):
    assert ask("POST", "namespaces/public/default/replication", ["standalone", "far"])[0] == 200
    status, told = ask("DELETE", "clusters/far")
    assert (status, told["reason"]) == (412, "Cluster not empty: replicationClusters of public/default names it")
    status, told = ask("POST", "tenants/public", {"allowedClusters": ["standalone", "near"]})
    assert (status, told["reason"]) == (
        409, "far is in replicationClusters of public/default, so the tenant has to keep it")
    assert ask("POST", "namespaces/public/default/replication", ["standalone"])[0] == 200
    assert "allowedClusters of public names it" in ask("DELETE", "clusters/far")[1]["reason"]
    assert ask("POST", "tenants/public", {"allowedClusters": ["standalone", "near"]})[0] == 204
    assert ask("DELETE", "clusters/far")[0] == 204


# -- lists

def test_lists_of_a_namespace(ask, far):
    path = "namespaces/public/default/replication"
    assert ask("GET", path) == (200, ["standalone"])
    assert ask("POST", path, ["standalone", "far", "far"])[0] == 200
    assert ask("GET", path) == (200, ["far", "standalone"])
    assert ask("GET", "namespaces/public/default")[1]["replication_clusters"] == ["far", "standalone"]
    for names_, expected in ((["elsewhere", "standalone"], (403, "Invalid cluster id: elsewhere")),
                             (["far"], (412, "The list has to name standalone, the cluster of this broker")),
                             ([], (412, "ClusterIds should not be null or empty"))):
        status, told = ask("POST", path, names_)
        assert (status, told["reason"]) == expected
    assert ask("POST", "clusters/far/peers", ["near"])[0] == 204
    status, told = ask("POST", path, ["far", "near", "standalone"])
    assert status == 409 and "peer" in told["reason"]
    assert ask("POST", "clusters/far/peers", [])[0] == 204
    assert ask("GET", path) == (200, ["far", "standalone"])
    status, told = ask("DELETE", "namespaces/public/default")
    assert status == 412 and "more than one replication clusters" in told["reason"]


def test_what_a_tenant_and_a_namespace_may_use(ask, far):
    assert ask("PUT", "tenants/strict", {"allowedClusters": ["standalone"]})[0] == 204
    status, told = ask("PUT", "namespaces/strict/ns", {"replication_clusters": ["standalone", "far"]})
    assert (status, told["reason"]) == (
        403, "Cluster [far] is not in the list of allowed clusters list for tenant [strict]")
    assert ask("PUT", "namespaces/public/listed", {"replication_clusters": ["standalone", "far"]})[0] == 204
    assert ask("GET", "namespaces/public/listed/replication") == (200, ["far", "standalone"])
    allowed = "namespaces/public/listed/allowedClusters"
    assert ask("GET", allowed) == (200, [])
    status, told = ask("POST", allowed, ["standalone", "near"])
    assert status == 400 and told["reason"].startswith("Allowed clusters do not contain the replication cluster far")
    assert ask("POST", allowed, ["standalone", "far"])[0] == 200
    assert ask("POST", "namespaces/public/listed/replication", ["standalone", "near"])[0] == 403
    assert ask("POST", "namespaces/public/listed/replication", ["standalone"])[0] == 200
    assert ask("DELETE", "namespaces/public/listed")[0] == 204


def test_lists_of_a_topic(ask, far):
    topic = "persistent/public/default/listed"
    assert ask("PUT", topic)[0] == 204
    path = f"{topic}/replication"
    assert ask("GET", path) == (200, None)
    assert ask("GET", f"{path}?applied=true") == (200, ["standalone"])
    assert ask("POST", path, ["elsewhere"])[0] == ask("POST", path, ["far"])[0] == 412
    assert ask("POST", path, ["elsewhere", "standalone"])[0] == 403
    assert ask("POST", path, ["standalone", "far"])[0] == 204
    assert ask("GET", path) == ask("GET", f"{path}?applied=true") == (200, ["far", "standalone"])
    status, told = ask("DELETE", topic)
    assert status == 422 and "is replicated on clusters [far]" in told["reason"]
    assert ask("DELETE", path)[0] == 204
    assert ask("GET", path) == (200, None)
    assert ask("POST", path, ["standalone", "far"])[0] == 204
    assert ask("DELETE", f"{topic}?force=true")[0] == 204


def test_a_wrong_list_in_definitions_changes_nothing(own, ask, far):
    def bring(policies):
        body = json.dumps({"version": 1, "namespaces": {"public/default": {"policies": policies}}}).encode()
        status, text = request("POST", f"{own.http_url}/ops/v1/definitions", body)
        return status, json.loads(text)

    for wrong in (["far"], [], ["elsewhere", "standalone"]):
        status, told = bring({"replicationClusters": wrong})
        assert status == 400 and "replicationClusters" in told["reason"]
    assert bring({"replicationClusters": ["standalone", "far"]})[0] == 200
    assert ask("GET", "namespaces/public/default/replication") == (200, ["far", "standalone"])


def test_lists_by_command(own, ask, far, capsys):
    def run(*words):
        status = main(["admin", "--admin-url", own.http_url, *words])
        return status, capsys.readouterr().out

    assert run("clusters", "create", "by-command", "--broker-url-secure", "pulsar+ssl://x:6651", "--tls-enable",
               "--auth-plugin", "AuthenticationToken", "--auth-parameters", "file:///etc/token")[0] == 0
    assert '"brokerClientTlsEnabled": true' in run("clusters", "get", "by-command", "-o", "json")[1]
    assert run("clusters", "update", "by-command", "--broker-url", "pulsar://x:6650")[0] == 0
    assert run("clusters", "delete", "by-command")[0] == 0
    assert run("namespaces", "set-clusters", "public/default", "--clusters", "far,standalone")[0] == 0
    assert "far" in run("namespaces", "get-clusters", "public/default")[1]
    assert ask("PUT", "persistent/public/default/commanded")[0] == 204
    assert run("topicPolicies", "set-replication-clusters", "commanded", "--clusters", "standalone")[0] == 0
    assert run("topicPolicies", "set-replicator-dispatch-rate", "commanded", "-md", "7")[0] == 0
    rate = ask("GET", "persistent/public/default/commanded/replicatorDispatchRate")[1]
    assert rate["dispatchThrottlingRateInMsg"] == 7


# -- what they bring about

@pytest.mark.slow
def test_nothing_that_was_answered_is_missing_after_a_kill(tmp_path, far_of):
    """The broker is killed after the list and the receipts were answered, and again after its restart."""
    broker = Broker(tmp_path / "data")
    try:
        broker.start()
        far_of(broker)
        with Peer(broker.service_url) as publisher:
            publisher.open_producer("killed")
            for number in range(20):
                publisher.say(send(entry_of(message_metadata(sequence_id=number), b"%d" % number), sequence_id=number))
                assert publisher.hear().type == T.SEND_RECEIPT
        for _ in range(2):
            broker.kill_supervisor()
            broker.start()
        with replicator(broker) as peer:
            assert subscribed(peer, "persistent://public/default/killed").type == T.SUCCESS
            peer.say(command(T.FLOW, consumer_id=1, messagePermits=100))
            heard = [peer.hear_frame() for _ in range(20)]
        assert [entry.endswith(b"%d" % number) for number, (_, entry) in enumerate(heard)] == [True] * 20
    finally:
        broker.close()


def replicator(own):
    """Return a connection as the broker's own replicator has, by the data folder."""
    hello = command(T.CONNECT, client_version=names.REPLICATOR, protocol_version=21)
    peer = Peer(f"{unix_sockets.UNIX}{own.data_dir / unix_sockets.CLIENTS}", hello)
    assert peer.hear().type == T.CONNECTED
    return peer


def subscribed(peer, topic, consumer_id=1):
    return peer.ask(T.SUBSCRIBE, topic=topic, subscription="pulsar.repl.far", subType=0, consumer_id=consumer_id,
                    request_id=consumer_id)


def test_what_is_published_after_the_answer_goes_over_and_only_the_broker_reads_it(own, ask, far, capsys):
    topic = "persistent://public/default/over"
    with Peer(own.service_url) as publisher:
        publisher.open_producer(topic)
        publisher.say(send(entry_of(message_metadata(), b"before")))
        assert publisher.hear().type == T.SEND_RECEIPT
        assert ask("POST", "namespaces/public/default/replication", ["standalone", "far"])[0] == 200
        publisher.say(send(entry_of(message_metadata(sequence_id=1), b"after"), sequence_id=1))
        assert publisher.hear().type == T.SEND_RECEIPT
        hello = command(T.CONNECT, client_version=names.REPLICATOR, protocol_version=21)
        with Peer(own.service_url, hello) as pretender:      # who says so by TCP is none
            assert pretender.hear().type == T.CONNECTED
            assert error_of(subscribed(pretender, topic)) == 16      # ProducerBusy
    assert main(["why", "--admin-url", own.http_url, "over"]) == 0
    assert "no replicator reads the topic for cluster far" in capsys.readouterr().out.lower()
    with replicator(own) as first:
        assert subscribed(first, topic).type == T.SUCCESS
        first.say(command(T.FLOW, consumer_id=1, messagePermits=10))
        heard, entry = first.hear_frame()
        assert heard.type == T.MESSAGE and entry.endswith(b"after")
        with replicator(own) as second:
            assert subscribed(second, topic).type == T.SUCCESS
            assert first.hear().type == T.CLOSE_CONSUMER
    told = ask("GET", "persistent/public/default/over/stats")[1]
    assert told["subscriptions"] == {} and told["replication"]["far"]["replicationBacklog"] == 1
    assert main(["admin", "--admin-url", own.http_url, "topics", "stats", "over"]) == 0
    assert re.search(r"REPLICATED TO +CONNECTED +BACKLOG.*\nfar +no +1 ", capsys.readouterr().out)
    page = request("GET", f"{own.http_url}/console/topics/persistent/public/default/over")[1]
    row = r'id="replication">Replicated to<.*<bdi>far</bdi></th><td>no( <span[^\n]*</span>)?</td>'
    assert re.search(row, page, re.DOTALL)
    metrics = request("GET", f"{own.http_url}/metrics/")[1]
    [line] = [line for line in metrics.splitlines() if re.match(r"pulsar_replication_backlog\{.*/over", line)]
    assert 'remote_cluster="far"' in line and line.endswith(" 1")
    assert ask("GET", "persistent/public/default/over/subscriptions") == (200, [])
    assert ask("DELETE", "persistent/public/default/over/subscription/pulsar.repl.far")[0] == 404
    assert ask("POST", "persistent/public/default/over/subscription/pulsar.repl.far/skip_all")[0] == 204
    assert ask("GET", "persistent/public/default/over/stats")[1]["replication"]["far"]["replicationBacklog"] == 0
    assert ask("DELETE", "persistent/public/default/over?force=true")[0] == 204

"""How the replicator comes in at another cluster: TLS, credentials, and credentials that change."""
import ssl
from types import SimpleNamespace

import pytest
import trustme

from geminga.proto import pulsar_api_pb2 as api
from geminga.workers.replication.records import WrongRecord, addresses_of

from ..harness import eventually
from .conftest import arrive, numbered
from .far import FarCluster

T = api.BaseCommand.Type


@pytest.fixture
def secure(replication, tmp_path):
    """A cluster that speaks TLS, and what keeps a record of it."""
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "trusted"))
    far = FarCluster(tls=context)
    replication.fars.append(far)

    def keep(name, **fields):
        replication.know(name, far.url, **fields)

    return SimpleNamespace(far=far, keep=keep, trusted=str(tmp_path / "trusted"))


def test_tls_and_a_token_of_a_file_which_is_read_again(replication, secure, tmp_path):
    token = tmp_path / "token"
    token.write_text("first\n")
    secure.keep("secure", brokerClientTrustCertsFilePath=secure.trusted, authenticationParameters=f"file:{token}",
                authenticationPlugin="org.apache.pulsar.client.impl.auth.AuthenticationToken")
    topic = replication.topic("secure")
    replication.publish(topic, numbered(500))
    arrive(secure.far, topic, numbered(500))
    connect = secure.far.commands(T.CONNECT)[-1].connect
    assert (connect.auth_method_name, connect.auth_data) == ("token", b"first")
    token.write_text("second\n")
    secure.far.visitors[-1].tell(T.AUTH_CHALLENGE)
    eventually(lambda: secure.far.commands(T.AUTH_RESPONSE))
    response = secure.far.commands(T.AUTH_RESPONSE)[0].authResponse.response
    assert (response.auth_method_name, response.auth_data) == ("token", b"second")
    secure.far.hang_up()
    eventually(lambda: secure.far.commands(T.CONNECT)[-1].connect.auth_data == b"second")


def test_a_certificate_that_is_not_trusted_is_told_and_nothing_is_sent(replication, secure):
    secure.keep("strange")
    topic = replication.topic("strange")
    replication.publish(topic, numbered(5))
    eventually(lambda: "its certificate is not to be trusted" in replication.link("strange")["error"])
    assert not secure.far.commands(T.CONNECT)
    secure.keep("strange", tlsAllowInsecureConnection=True)
    arrive(secure.far, topic, numbered(5))


def test_a_file_that_a_record_names_is_awaited(replication, secure, tmp_path):
    token = tmp_path / "late"
    secure.keep("late", brokerClientTrustCertsFilePath=secure.trusted, authenticationPlugin="AuthenticationToken",
                authenticationParameters=f"file:{token}")
    topic = replication.topic("late")
    why = f"the cluster's record: authenticationParameters: {token}: No such file or directory"
    eventually(lambda: replication.link("late")["error"] == why)
    token.write_text("here")
    replication.publish(topic, numbered(5))
    arrive(secure.far, topic, numbered(5))


def test_credentials_that_are_refused_are_told(replication):
    name, far = replication.far(is_known=False)

    def refuse(visitor, command):
        if command.type == T.CONNECT:
            visitor.tell(T.ERROR, request_id=0, error=api.AuthenticationError, message="no token")
        return command.type == T.CONNECT

    far.on_command = refuse
    replication.know(name, far.url)
    replication.topic(name)
    error = eventually(lambda: "Auth" in (error := replication.link(name)["error"]) and error)
    assert error.endswith("AuthenticationError: no token")


@pytest.mark.parametrize("record, text", [
    (None, "there is no record"), ({}, "has no brokerServiceUrl"),
    ({"brokerServiceUrl": "pulsar://a:1", "brokerClientTlsEnabled": True}, "has no brokerServiceUrlTls"),
    ({"brokerServiceUrl": "pulsar://a:1", "authenticationPlugin": "Sasl"}, "authenticationPlugin Sasl is not"),
])
def test_a_record_that_cannot_be_used_is_told_by_its_field(record, text):
    with pytest.raises(WrongRecord, match=text):
        addresses_of(record)


def test_a_record_may_list_several_addresses():
    addresses = addresses_of({"brokerServiceUrl": "pulsar://a:1,b:2, c:3", "serviceUrl": "http://a:8080,b:8080"})
    assert addresses.urls == ["pulsar://a:1", "pulsar://b:2", "pulsar://c:3"]
    assert addresses.admin_url == "http://a:8080"

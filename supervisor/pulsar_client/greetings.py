"""CONNECT, as each of our clients begins a connection, and the answer to it."""
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.responses import PROTOCOL_VERSION

MESSAGE_SIZE_MAX = 5 << 20      # bytes, if the broker does not say another limit


def greeting(method: str = "", data: bytes = b"", beyond: str = "", *, name: str = "Geminga") -> api.CommandConnect:
    """Return the CONNECT of a client.

    method, data: credentials.  beyond: host:port of a broker behind the proxy that is connected to, "" without a proxy.
    name: what the broker calls the client's library.
    """
    return api.CommandConnect(
        client_version=name, protocol_version=PROTOCOL_VERSION, auth_method_name=method or None,
        auth_data=data or None, proxy_to_broker_url=beyond or None)


def message_size_max(answer: api.CommandConnected) -> int:
    """Return the size in bytes of the largest entry that the broker takes."""
    return answer.max_message_size or MESSAGE_SIZE_MAX

"""Another cluster as a script: it answers like a broker of Pulsar 4.0.7, or as a test says.

    far = FarCluster()              # listens on 127.0.0.1
    far.url                         # pulsar://127.0.0.1:PORT
    far.stored("topic")             # what it has stored of a topic: [Stored], in order

It knows source positions (is_new), or repeats sequence ids as older brokers do.  With source positions it stores
nothing twice.  A test changes its answers by replacing `on_producer`, `on_send` and `on_command`.
"""
import contextlib
import socket
import ssl
import struct
import threading
from collections import defaultdict
from typing import NamedTuple

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.frames import frame

T = api.BaseCommand.Type
POSITION = "__MSG_PROP_REPL_SOURCE_POSITION"


class Stored(NamedTuple):
    """An entry that the cluster has stored."""

    send: api.CommandSend
    metadata: api.MessageMetadata
    payload: bytes
    entry: bytes

    @property
    def position(self) -> tuple[int, int]:
        text = next(one.value for one in self.metadata.properties if one.key == POSITION)
        ledger, _, entry = text.partition(":")
        return int(ledger), int(entry)


class Visitor:
    """One connection of a replicator."""

    def __init__(self, far: "FarCluster", link: socket.socket) -> None:
        self.far, self.link = far, link
        self.producers: dict[int, str] = {}      # id -> topic
        self.connect: api.CommandConnect | None = None

    def tell(self, kind: int, **fields) -> None:
        command = api.BaseCommand(type=kind)
        part = getattr(command, _FIELD[kind])
        part.SetInParent()
        for key, value in fields.items():
            if hasattr(value, "DESCRIPTOR"):
                getattr(part, key).CopyFrom(value)
            else:
                setattr(part, key, value)
        self.raw(frame(command))

    def raw(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self.link.sendall(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.link.shutdown(socket.SHUT_RDWR)

    def serve(self) -> None:
        rest = b""
        with contextlib.suppress(OSError):
            while data := self.link.recv(1 << 18):
                rest += data
                at = 0
                while len(rest) - at >= 8:
                    total, size = struct.unpack_from(">II", rest, at)
                    if len(rest) - at < 4 + total:
                        break
                    command = api.BaseCommand.FromString(rest[at + 8:at + 8 + size])
                    self.far.hear(self, command, rest[at + 8 + size:at + 4 + total])
                    at += 4 + total
                rest = rest[at:]
        self.far.left(self)
        self.link.close()


_FIELD = {kind: field.name for kind in T.values() for field in api.BaseCommand.DESCRIPTOR.fields
          if field.name.replace("_", "").lower() == T.Name(kind).replace("_", "").lower()}
_FIELD |= {T.PARTITIONED_METADATA_RESPONSE: "partitionMetadataResponse", T.LOOKUP_RESPONSE: "lookupTopicResponse",
           T.GET_SCHEMA_RESPONSE: "getSchemaResponse", T.GET_OR_CREATE_SCHEMA_RESPONSE: "getOrCreateSchemaResponse"}


class FarCluster:
    """A cluster that a script plays."""

    def __init__(self, *, is_new: bool = True, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.is_new = is_new
        self.entries: dict[str, list[Stored]] = defaultdict(list)
        self.duplicates = 0
        self._seen: dict[str, set[tuple[int, int]]] = defaultdict(set)
        self.partitions: dict[str, int] = {}
        self.schemas: dict[str, list[api.Schema]] = defaultdict(list)
        self.heard: list[api.BaseCommand] = []      # all but SEND and PING
        self.visitors: list[Visitor] = []
        self.max_message_size = 5 << 20
        self.lock = threading.RLock()
        self.on_producer = lambda visitor, producer: None           # -> (code, text) to refuse it
        self.on_send = lambda visitor, send, stored: None           # -> True: it has answered itself
        self.on_command = lambda visitor, command: None             # -> True: likewise
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self._tls = tls
        self.url = f"{'pulsar' if tls is None else 'pulsar+ssl'}://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                link, _ = self._listener.accept()
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is not None:
                    try:
                        link = self._tls.wrap_socket(link, server_side=True)
                    except OSError:      # the peer does not trust the certificate
                        continue
                visitor = Visitor(self, link)
                with self.lock:
                    self.visitors.append(visitor)
                threading.Thread(target=visitor.serve, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()

    def hang_up(self) -> None:
        """End all connections."""
        with self.lock:
            for visitor in list(self.visitors):
                visitor.close()

    def left(self, visitor: Visitor) -> None:
        with self.lock:
            if visitor in self.visitors:
                self.visitors.remove(visitor)

    def stored(self, topic: str) -> list[Stored]:
        with self.lock:
            return list(self.entries[topic])

    def payloads(self, topic: str) -> list[bytes]:
        return [one.payload for one in self.stored(topic)]

    def commands(self, kind: int) -> list[api.BaseCommand]:
        with self.lock:
            return [command for command in self.heard if command.type == kind]

    def hear(self, visitor: Visitor, command: api.BaseCommand, entry: bytes) -> None:
        with self.lock:
            if command.type == T.SEND:
                return self._send(visitor, command.send, entry)
            if command.type not in (T.PING, T.PONG):
                self.heard.append(command)
            if not self.on_command(visitor, command):
                self._answer(visitor, command)

    def _answer(self, visitor: Visitor, command: api.BaseCommand) -> None:
        kind = command.type
        if kind == T.CONNECT:
            visitor.connect = command.connect
            flags = api.FeatureFlags(supports_repl_dedup_by_lid_and_eid=self.is_new)
            visitor.tell(T.CONNECTED, server_version="far", protocol_version=21, feature_flags=flags,
                         max_message_size=self.max_message_size)
        elif kind == T.PING:
            visitor.tell(T.PONG)
        elif kind == T.PARTITIONED_METADATA:
            asked = command.partitionMetadata
            assert not asked.metadata_auto_creation_enabled
            visitor.tell(T.PARTITIONED_METADATA_RESPONSE, request_id=asked.request_id, response=0,
                         partitions=self.partitions.get(asked.topic, 0))
        elif kind == T.LOOKUP:
            visitor.tell(T.LOOKUP_RESPONSE, request_id=command.lookupTopic.request_id, response=1,
                         authoritative=True, **{"brokerServiceUrl" if self._tls is None else "brokerServiceUrlTls":
                                                self.url})
        elif kind == T.GET_SCHEMA:
            schemas = self.schemas[command.getSchema.topic]
            if schemas:
                visitor.tell(T.GET_SCHEMA_RESPONSE, request_id=command.getSchema.request_id, schema=schemas[-1],
                             schema_version=(len(schemas) - 1).to_bytes(8))
            else:
                visitor.tell(T.GET_SCHEMA_RESPONSE, request_id=command.getSchema.request_id,
                             error_code=api.TopicNotFound, error_message="no schema")
        elif kind == T.GET_OR_CREATE_SCHEMA:
            asked = command.getOrCreateSchema
            schemas = self.schemas[asked.topic]
            if asked.schema not in schemas:
                schemas.append(asked.schema)
            visitor.tell(T.GET_OR_CREATE_SCHEMA_RESPONSE, request_id=asked.request_id,
                         schema_version=schemas.index(asked.schema).to_bytes(8))
        elif kind == T.PRODUCER:
            refusal = self.on_producer(visitor, command.producer)
            if refusal is not None:
                visitor.tell(T.ERROR, request_id=command.producer.request_id, error=refusal[0], message=refusal[1])
            else:
                visitor.producers[command.producer.producer_id] = command.producer.topic
                visitor.tell(T.PRODUCER_SUCCESS, request_id=command.producer.request_id,
                             producer_name=command.producer.producer_name)
        elif kind == T.CLOSE_PRODUCER:
            visitor.producers.pop(command.close_producer.producer_id, None)
            visitor.tell(T.SUCCESS, request_id=command.close_producer.request_id)

    def _send(self, visitor: Visitor, send: api.CommandSend, entry: bytes) -> None:
        topic = visitor.producers.get(send.producer_id)
        if topic is None:      # of a producer that was closed
            return
        from crc32c import crc32c
        assert entry[:2] == b"\x0e\x01" and struct.unpack_from(">I", entry, 2)[0] == crc32c(entry[6:]), "checksum"
        size = struct.unpack_from(">I", entry, 6)[0]
        metadata = api.MessageMetadata.FromString(entry[10:10 + size])
        stored = Stored(send, metadata, entry[10 + size:], entry)
        if self.on_send(visitor, send, stored):
            return
        self.keep(topic, stored)
        self.receipt(visitor, stored)

    def keep(self, topic: str, stored: Stored) -> None:
        """Store an entry, unless its position is stored already and the cluster knows positions."""
        if self.is_new and stored.position in self._seen[topic]:
            self.duplicates += 1
            return
        self._seen[topic].add(stored.position)
        self.entries[topic].append(stored)

    def forget(self, topic: str) -> None:
        """Delete a topic with all that it had, and close its producers."""
        with self.lock:
            self.entries.pop(topic, None)
            self._seen.pop(topic, None)
            for visitor in self.visitors:
                for producer_id in [number for number, name in visitor.producers.items() if name == topic]:
                    del visitor.producers[producer_id]
                    visitor.tell(T.CLOSE_PRODUCER, producer_id=producer_id, request_id=0)

    def receipt(self, visitor: Visitor, stored: Stored) -> None:
        ledger, entry = stored.position if self.is_new else (stored.send.sequence_id, (1 << 64) - 1)
        if self.is_new and stored.send.marker:
            ledger, entry = stored.send.sequence_id, 1 << 63
        visitor.tell(T.SEND_RECEIPT, producer_id=stored.send.producer_id, sequence_id=ledger,
                     highest_sequence_id=entry, message_id=api.MessageIdData(ledgerId=1, entryId=1))

    def refuse(self, visitor: Visitor, send: api.CommandSend, code: int, text: str = "no") -> None:
        visitor.tell(T.SEND_ERROR, producer_id=send.producer_id, sequence_id=send.sequence_id, error=code, message=text)

#!/bin/sh
# An update of Apache Pulsar's Python client from 3.5.0 to 3.6.1 publishes most keys to other partitions.
#
# The client's default hash is the one of the Boost library that it is built with, which Boost 1.81 changed. Messages of a
# key that were published before the update and after it lie in two partitions, so they have no common order, and
# programs with both versions disagree for good. Murmur3_32Hash in a message_router is the same in both.
#
# A server of a few lines plays the broker here. Expected: the same partitions. Seen: others.
# Exit status 0: the two still differ.
set -eu
folder=$(mktemp -d)
trap 'kill "$server" 2> /dev/null || true; rm -rf "$folder"' EXIT
server=
cat > "$folder/broker.py" <<'PROGRAM'
"""A broker that takes messages for one topic of 12 partitions, and prints the partition of each."""
import socket
import struct
import sys
import threading

CONNECT, PRODUCER, SEND, CLOSE, PING, METADATA, LOOKUP = 2, 5, 6, 15, 18, 21, 23
server = socket.create_server(("127.0.0.1", 0))
url = f"pulsar://127.0.0.1:{server.getsockname()[1]}"


def varint(number):
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def field(number, value):
    """A field of protobuf: a whole number, or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(data):
    """{number: value} of a message of whole numbers, bytes and messages."""
    at, found = 0, {}

    def number():
        nonlocal at
        total = shift = 0
        while True:
            byte, at = data[at], at + 1
            total |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return total
    while at < len(data):
        tag, value = number(), number()
        if tag & 7 == 2:
            at, value = at + value, data[at:at + value]
        found[tag >> 3] = value
    return found


def serve(connection):
    topics = {}

    def answer(kind, *parts):
        command = field(1, kind) + field(kind, b"".join(field(*part) for part in parts))
        connection.sendall(struct.pack(">II", len(command) + 4, len(command)) + command)
    with connection.makefile("rb") as stream:
        while size := stream.read(4):
            frame = stream.read(*struct.unpack(">I", size))
            command = fields(frame[4:4 + struct.unpack(">I", frame[:4])[0]])
            kind = command[1]
            body = fields(command.get(kind, b""))
            if kind == CONNECT:
                answer(3, (1, b"Pulsar Server"), (2, 21), (3, 5 << 20))
            elif kind == METADATA:
                answer(22, (1, 0 if b"-partition-" in body[1] else 12), (2, body[2]), (3, 0))
            elif kind == LOOKUP:
                answer(24, (1, url.encode()), (3, 1), (4, body[2]), (5, 1))
            elif kind == PRODUCER:
                topics[body[2]] = body[1]
                answer(17, (1, body[3]), (2, b"p"), (4, b""))
            elif kind == SEND:
                print(topics[body[1]].rpartition(b"-")[2].decode(), flush=True)
                answer(7, (1, body[1]), (2, body[2]), (3, field(1, 1) + field(2, 1)))
            elif kind == CLOSE:
                answer(13, (1, body[2]))
            elif kind == PING:
                answer(19)


with open(sys.argv[1], "w") as file:
    file.write(url)
while True:
    threading.Thread(target=serve, args=server.accept()[:1], daemon=True).start()
PROGRAM
cat > "$folder/publish.py" <<'PROGRAM'
import sys

import pulsar

client = pulsar.Client(sys.argv[1], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
producer = client.create_producer("persistent://public/default/orders", batching_enabled=False)
for number in range(8):
    producer.send(b"", partition_key=f"customer-{number}")
client.close()
PROGRAM
for version in 3.5.0 3.6.1; do
    python3 -m venv "$folder/$version"
    "$folder/$version/bin/pip" install --quiet --disable-pip-version-check "pulsar-client==$version"
    python3 "$folder/broker.py" "$folder/url" > "$folder/of-$version" &
    server=$!
    while [ ! -s "$folder/url" ]; do sleep 0.1; done
    timeout 60 "$folder/$version/bin/python" "$folder/publish.py" "$(cat "$folder/url")"
    kill "$server"
    wait "$server" 2> /dev/null || true
    rm "$folder/url"
    echo "pulsar-client $version: customer-0 to customer-7 go to partitions $(xargs < "$folder/of-$version")"
done
[ "$(wc -l < "$folder/of-3.5.0")" = 8 ] && [ "$(wc -l < "$folder/of-3.6.1")" = 8 ] && ! cmp -s "$folder/of-3.5.0" "$folder/of-3.6.1"

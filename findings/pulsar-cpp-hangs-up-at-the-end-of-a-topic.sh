#!/bin/sh
# Apache Pulsar's C++ library, within Python's client 3.13.0, hangs up when a broker says that a topic has ended.
#
# A broker sends REACHED_END_OF_TOPIC, which the protocol has since version 9, to consumers of a terminated topic that have
# read everything. The library does not know the command, closes the connection, and subscribes again; a broker that
# says it again gets the same answer. All producers and consumers of the client are on that connection.
#
# A server of a few lines plays the broker here. Expected: one connection that stays, as it does without that command.
# Seen: the client closes it and comes again. Exit status 0: it still does.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pulsar-client==3.13.0
timeout 60 "$folder/venv/bin/python" - <<'PROGRAM'
import importlib.metadata
import os
import queue
import socket
import struct
import sys
import threading

import pulsar

CONNECT, SUBSCRIBE, PING, METADATA, LOOKUP = 2, 4, 18, 21, 23
CONNECTED, SUCCESS, PONG, METADATA_RESPONSE, LOOKUP_RESPONSE, END_OF_TOPIC = 3, 13, 19, 22, 24, 27
said = queue.Queue()
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
    """{number: value} of a message."""
    at, found = 0, {}

    def number():
        nonlocal at
        shift = total = 0
        while True:
            byte = data[at]
            at += 1
            total |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return total
    while at < len(data):
        tag = number()
        value = number()
        if tag & 7 == 2:
            at += value
            value = data[at - value:at]
        found[tag >> 3] = value
    return found


def frame(kind, body):
    """A frame with a command, whose body has the number of its type."""
    command = field(1, kind) + field(kind, body)
    return struct.pack(">II", len(command) + 4, len(command)) + command


def serve(connection, number):
    with connection, connection.makefile("rb") as stream:
        while size := stream.read(4):
            command = fields(stream.read(*struct.unpack(">I", size))[4:])
            kind = command[1]
            body = fields(command.get(kind, b""))
            if kind == CONNECT:
                connection.sendall(frame(CONNECTED, field(1, b"Pulsar Server") + field(2, 21) + field(3, 5 << 20)))
            elif kind == METADATA:
                connection.sendall(frame(METADATA_RESPONSE, field(1, 0) + field(2, body[2]) + field(3, 0)))
            elif kind == LOOKUP:
                connection.sendall(frame(LOOKUP_RESPONSE, field(1, url.encode()) + field(3, 1) + field(4, body[2])
                                         + field(5, 1)))
            elif kind == SUBSCRIBE:
                connection.sendall(frame(SUCCESS, field(1, body[5])))
                connection.sendall(frame(END_OF_TOPIC, field(1, body[4])))
                said.put(f"subscribed on connection {number}")
            elif kind == PING:
                connection.sendall(frame(PONG, b""))
        said.put(f"connection {number} is closed by the client")


def accept():
    number = 0
    while True:
        connection, _ = server.accept()
        number += 1
        threading.Thread(target=serve, args=(connection, number), daemon=True).start()


threading.Thread(target=accept, daemon=True).start()
client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
consumer = client.subscribe("persistent://public/default/orders", "billing")
seen = []
try:
    while len(seen) < 3:
        seen.append(said.get(timeout=20))
except queue.Empty:
    pass
print(f"pulsar-client {importlib.metadata.version('pulsar-client')}, Python {sys.version.split()[0]}")
print(f"expected: subscribed on one connection, which stays; seen: {', '.join(seen)}")
sys.stdout.flush()
os._exit(not (any("closed" in each for each in seen) and sum("subscribed" in each for each in seen) == 2))
PROGRAM

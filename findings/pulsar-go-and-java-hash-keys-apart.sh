#!/bin/sh
# Apache Pulsar's clients for Go 0.19.0 and Java 4.0.8 publish one key to two partitions by the hash JavaStringHash.
#
# It is the default hash of both. Java hashes UTF-16 and drops the highest bit; Go hashes UTF-8 and keeps the bit. So the
# two agree for ASCII keys where the number of partitions is a power of two, for half of these keys where it is another
# number, and hardly ever for keys of other letters. Messages of a key from both languages have no common order.
#
# A server of a few lines plays the broker of 12 partitions. Expected: the same partitions. Seen: others.
# Exit status 0: the two still differ.
set -eu
folder=$(mktemp -d)
trap 'kill "$server" 2> /dev/null || true; chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
server=
keys='customer-1 customer-2 customer-3 customer-4 Müller Łódź Αθήνα'
cat > "$folder/pom.xml" <<'POM'
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>finding</groupId><artifactId>finding</artifactId><version>1</version>
<dependencies><dependency><groupId>org.apache.pulsar</groupId><artifactId>pulsar-client</artifactId>
<version>4.0.8</version></dependency></dependencies></project>
POM
mvn -q -B -f "$folder/pom.xml" dependency:copy-dependencies -DoutputDirectory="$folder/lib" -DincludeScope=runtime
mkdir "$folder/go"
cat > "$folder/go/go.mod" <<'MODULE'
module finding

go 1.24

require github.com/apache/pulsar-client-go v0.19.0
MODULE
cat > "$folder/go/main.go" <<'PROGRAM'
package main

import (
	"context"
	"os"

	"github.com/apache/pulsar-client-go/pulsar"
)

func main() {
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: os.Args[1]})
	if err != nil {
		panic(err)
	}
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: "persistent://public/default/orders", DisableBatching: true})
	if err != nil {
		panic(err)
	}
	for _, key := range os.Args[2:] {
		if _, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Key: key, Payload: []byte("x")}); err != nil {
			panic(err)
		}
	}
}
PROGRAM
cat > "$folder/Publish.java" <<'PROGRAM'
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;

public class Publish {
    public static void main(String[] arguments) throws Exception {
        PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build();
        Producer<byte[]> producer = client.newProducer().topic("persistent://public/default/orders")
                .enableBatching(false).create();
        for (int number = 1; number < arguments.length; number++) {
            producer.newMessage().key(arguments[number]).value(new byte[] {'x'}).send();
        }
        System.exit(0);
    }
}
PROGRAM
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
(cd "$folder/go" && GOFLAGS=-mod=mod go build -o ../publish . 2> "$folder/said") || { cat "$folder/said"; exit 1; }
go() { "$folder/publish" "$@"; }
java_client() { java -Dfile.encoding=UTF-8 -cp "$folder/lib/*" "$folder/Publish.java" "$@"; }
export LC_ALL=C.UTF-8
for language in go java_client; do
    python3 "$folder/broker.py" "$folder/url" > "$folder/of-$language" &
    server=$!
    while [ ! -s "$folder/url" ]; do sleep 0.1; done
    $language "$(cat "$folder/url")" $keys > "$folder/said" 2>&1
    kill "$server"
    wait "$server" 2> /dev/null || true
    rm "$folder/url"
    echo "${language%_client}: $keys go to partitions $(xargs < "$folder/of-$language")"
done
[ "$(wc -l < "$folder/of-go")" = 7 ] && [ "$(wc -l < "$folder/of-java_client")" = 7 ] && ! cmp -s "$folder/of-go" "$folder/of-java_client"

#!/bin/sh
# Apache Pulsar's Go client 0.19.0 writes whole numbers in the order of bytes that is the reverse of Java's.
#
# Schemas of numbers have no definition, so the order of bytes is up to the clients: INT16, INT32 and INT64 are little-endian
# in Go, and big-endian in the Java client 4.0.8. INT8, FLOAT and DOUBLE are the same in both. A topic of INT32 passes
# every check, and each consumer of the other language gets another number.
#
# Expected: 5. Seen: 1280, 83886080 and 360287970189639680. Exit status 0: it still is so.
set -eu
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
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
	"fmt"

	"github.com/apache/pulsar-client-go/pulsar"
)

func main() {
	write := func(schema pulsar.Schema, value any) {
		payload, err := schema.Encode(value)
		if err != nil {
			panic(err)
		}
		fmt.Printf("%s %x\n", schema.GetSchemaInfo().Name, payload)
	}
	write(pulsar.NewInt8Schema(nil), int8(5))
	write(pulsar.NewInt16Schema(nil), int16(5))
	write(pulsar.NewInt32Schema(nil), int32(5))
	write(pulsar.NewInt64Schema(nil), int64(5))
	write(pulsar.NewDoubleSchema(nil), float64(5))
}
PROGRAM
(cd "$folder/go" && GOFLAGS=-mod=mod go run . > "$folder/payloads" 2> "$folder/said") || { cat "$folder/said"; exit 1; }
cat > "$folder/Read.java" <<'PROGRAM'
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.Map;
import org.apache.pulsar.client.api.Schema;

public class Read {
    public static void main(String[] arguments) throws Exception {
        Map<String, Schema<?>> schemas = Map.of("INT8", Schema.INT8, "INT16", Schema.INT16, "INT32", Schema.INT32,
                "INT64", Schema.INT64, "DOUBLE", Schema.DOUBLE);
        StringBuilder seen = new StringBuilder();
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            String[] parts = line.split(" ");
            Object read = schemas.get(parts[0]).decode(HexFormat.of().parseHex(parts[1]));
            System.out.println(parts[0] + " written as " + parts[1] + ": expected 5; seen " + read);
            seen.append(read).append(' ');
        }
        System.exit(seen.toString().equals("5 1280 83886080 360287970189639680 5.0 ") ? 0 : 1);
    }
}
PROGRAM
java -cp "$folder/lib/*" "$folder/Read.java" "$folder/payloads" 2>/dev/null

#!/bin/sh
# Java reads another member of an enumeration than the one that Apache Pulsar's Python client 3.13.0 wrote as JSON.
#
# The definition that Python registers for a CustomEnum lists the names of the members. The payload has a member's value
# instead, for which Python programs number members from 1. Jackson, within the Java client 4.0.8, takes a number for a
# place in the list, from 0. So the first member arrives as the second one without an error, and the last one fails.
#
# Expected: the member that was written. Seen: the next one. Exit status 0: it still is so.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pulsar-client==3.13.0
cat > "$folder/pom.xml" <<'POM'
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>finding</groupId><artifactId>finding</artifactId><version>1</version>
<dependencies><dependency><groupId>org.apache.pulsar</groupId><artifactId>pulsar-client</artifactId>
<version>4.0.8</version></dependency></dependencies></project>
POM
mvn -q -B -f "$folder/pom.xml" dependency:copy-dependencies -DoutputDirectory="$folder/lib" -DincludeScope=runtime
"$folder/venv/bin/python" - > "$folder/payloads" <<'PROGRAM'
import enum
import sys

from pulsar.schema import CustomEnum, JsonSchema, Record


class Priority(enum.Enum):
    low = enum.auto()
    normal = enum.auto()
    high = enum.auto()


class Order(Record):
    priority = CustomEnum(Priority)


schema = JsonSchema(Order)
print("definition of Python:", Order.schema()["fields"], file=sys.stderr)
for member in Priority:
    print(member.name, "".join(schema.encode(Order(priority=member)).decode().split()))
PROGRAM
cat > "$folder/Read.java" <<'PROGRAM'
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SchemaSerializationException;

public class Read {
    public enum Priority { low, normal, high }
    public static class Order { public Priority priority; }

    public static void main(String[] arguments) throws Exception {
        Schema<Order> schema = Schema.JSON(Order.class);
        StringBuilder seen = new StringBuilder();
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            String[] parts = line.split(" ", 2);
            String read;
            try {
                read = schema.decode(parts[1].getBytes()).priority.name();
            } catch (SchemaSerializationException error) {
                read = "an error";
            }
            System.out.println("written " + parts[1] + ": expected " + parts[0] + "; seen " + read);
            seen.append(parts[0]).append('>').append(read).append(' ');
        }
        System.exit(seen.toString().equals("low>normal normal>high high>an error ") ? 0 : 1);
    }
}
PROGRAM
java -cp "$folder/lib/*" "$folder/Read.java" "$folder/payloads" 2>/dev/null

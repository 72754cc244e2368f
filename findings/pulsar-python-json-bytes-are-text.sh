#!/bin/sh
# Apache Pulsar's Python client 3.13.0 writes a field of bytes into JSON as text, and Java reads it as base64.
#
# A Record with a field Bytes and JsonSchema: bytes that are UTF-8 are written as that text, so that the Java client 4.0.8,
# whose JSON has bytes as base64, decodes other ones from it without an error. Bytes that are no UTF-8 cannot be sent.
#
# Expected: the same bytes, whatever they are. Seen: b"abcd" arrives as 69 b7 1d, and b"\xff" raises UnicodeDecodeError.
# Exit status 0: it still is so.
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
"$folder/venv/bin/python" - > "$folder/payload" <<'PROGRAM'
import sys

from pulsar.schema import Bytes, JsonSchema, Record


class Picture(Record):
    pixels = Bytes()


schema = JsonSchema(Picture)
print("definition of Python:", Picture.schema()["fields"], file=sys.stderr)
try:
    schema.encode(Picture(pixels=b"\xff"))
except UnicodeDecodeError as error:
    print("b'\\xff': expected a payload; seen", type(error).__name__, file=sys.stderr)
else:
    sys.exit("b'\\xff' can be written now")
sys.stdout.write(schema.encode(Picture(pixels=b"abcd")).decode())
PROGRAM
cat > "$folder/Read.java" <<'PROGRAM'
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import org.apache.pulsar.client.api.Schema;

public class Read {
    public static class Picture { public byte[] pixels; }

    public static void main(String[] arguments) throws Exception {
        byte[] payload = Files.readAllBytes(Path.of(arguments[0]));
        String seen = HexFormat.of().formatHex(Schema.JSON(Picture.class).decode(payload).pixels);
        System.out.println("written " + new String(payload).replaceAll("\\s+", "") + ": expected 61626364; seen " + seen);
        System.exit(seen.equals("69b71d") ? 0 : 1);
    }
}
PROGRAM
java -cp "$folder/lib/*" "$folder/Read.java" "$folder/payload" 2>/dev/null

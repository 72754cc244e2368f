#!/bin/sh
# Apache Pulsar's Java client 4.0.8 registers a definition for JSON that its own payloads contradict.
#
# Schema.JSON makes an Avro definition of a class by reflection, and the payload with Jackson, which knows nothing of the
# definition.  Whoever reads messages by the registered definition finds an array where it says int, an object where it
# says array, a fraction of seconds where it says microseconds, and text where it says int.
#
# Exit status 0: it still does.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/pom.xml" <<'POM'
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>finding</groupId><artifactId>finding</artifactId><version>1</version>
<dependencies><dependency><groupId>org.apache.pulsar</groupId><artifactId>pulsar-client</artifactId>
<version>4.0.8</version></dependency></dependencies></project>
POM
mvn -q -B -f "$folder/pom.xml" dependency:copy-dependencies -DoutputDirectory="$folder/lib" -DincludeScope=runtime
cat > "$folder/Look.java" <<'PROGRAM'
import java.time.Instant;
import java.time.LocalDate;
import java.util.Map;
import org.apache.pulsar.client.api.Schema;

public class Look {
    public static class Day { public LocalDate v = LocalDate.of(2024, 1, 31); }
    public static class Moment { public Instant v = Instant.ofEpochSecond(1700000000L, 123456000); }
    public static class Letter { public char v = 'c'; }
    public static class Numbered { public Map<Integer, String> v = Map.of(1, "one"); }

    static boolean changed;

    static <T> void look(Class<T> type, T value, String said, String seen) {
        Schema<T> schema = Schema.JSON(type);
        String definition = new String(schema.getSchemaInfo().getSchema()).replaceAll("\\s+", "");
        String payload = new String(schema.encode(value));
        System.out.println(type.getSimpleName() + ": expected a value of " + definition + "; seen " + payload);
        changed |= !definition.contains(said) || !payload.equals(seen);
    }

    public static void main(String[] arguments) {
        System.out.println("pulsar-client 4.0.8");
        look(Day.class, new Day(), "{\"type\":\"int\",\"logicalType\":\"date\"}", "{\"v\":[2024,1,31]}");
        look(Moment.class, new Moment(), "{\"type\":\"long\",\"logicalType\":\"timestamp-micros\"}",
                "{\"v\":1700000000.123456000}");
        look(Letter.class, new Letter(), "\"type\":\"int\"", "{\"v\":\"c\"}");
        look(Numbered.class, new Numbered(), "\"type\":\"array\"", "{\"v\":{\"1\":\"one\"}}");
        System.exit(changed ? 1 : 0);
    }
}
PROGRAM
java -cp "$folder/lib/*" "$folder/Look.java" 2>/dev/null

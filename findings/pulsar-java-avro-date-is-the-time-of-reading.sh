#!/bin/sh
# A java.util.Date that Apache Pulsar's Java client 4.0.8 sends by Schema.AVRO arrives as the time at which it is read.
#
# The definition by reflection makes a record without fields of the class, so nothing of the value is in the payload. The
# consumer makes a new Date, which is the present. An AtomicLong arrives as 0 in the same way. A Duration, an Optional
# and a java.sql.Timestamp are sent as nothing as well, and only the consumer fails. Schema.JSON sends all of them.
#
# Expected: 2023-11-14T22:13:20.123Z, 5, and an error at the sender. Seen: now, 0, and the error at the consumer.
# Exit status 0: it still is so.
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
import java.time.Duration;
import java.time.Instant;
import java.util.Date;
import java.util.HexFormat;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.pulsar.client.api.Schema;

public class Look {
    public static class Dated { public Date value = new Date(1700000000123L); }
    public static class Counted { public AtomicLong value = new AtomicLong(5); }
    public static class Timed { public Duration value = Duration.ofMinutes(90); }

    static byte[] sent(String name, byte[] payload) {
        System.out.println(name + ": the payload is " + HexFormat.of().formatHex(payload));
        return payload;
    }

    public static void main(String[] arguments) {
        Instant began = Instant.now();
        Schema<Dated> dated = Schema.AVRO(Dated.class);
        Instant date = dated.decode(sent("Date", dated.encode(new Dated()))).value.toInstant();
        System.out.println("  expected 2023-11-14T22:13:20.123Z; seen " + date);
        Schema<Counted> counted = Schema.AVRO(Counted.class);
        long count = counted.decode(sent("AtomicLong", counted.encode(new Counted()))).value.get();
        System.out.println("  expected 5; seen " + count);
        Schema<Timed> timed = Schema.AVRO(Timed.class);
        byte[] payload = sent("Duration", timed.encode(new Timed()));
        boolean failed = false;
        try {
            timed.decode(payload);
        } catch (RuntimeException error) {
            failed = true;
            System.out.println("  expected PT1H30M; seen " + error.getMessage());
        }
        System.exit(!date.isBefore(began.minusSeconds(1)) && count == 0 && payload.length == 1 && failed ? 0 : 1);
    }
}
PROGRAM
java -cp "$folder/lib/*" "$folder/Look.java" 2>/dev/null

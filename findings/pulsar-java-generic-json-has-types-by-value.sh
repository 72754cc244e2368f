#!/bin/sh
# Apache Pulsar's Java client 4.0.8 gives a field of JSON another Java type for each value, whatever the schema says.
#
# A GenericRecord of a JSON topic, as AUTO_CONSUME returns it, has its types from the payload: a field that the schema
# calls long is an Integer up to 2147483647, and a Long above that. A cast to Long works with large ids and throws with
# small ones. A BigDecimal, for which the schema says string, arrives as a Double, without the digits that do not fit.
#
# Expected: Long and Long; 12345678901234567.89. Seen: Integer and Long; 1.2345678901234568E16.
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
import java.math.BigDecimal;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.client.api.schema.GenericSchema;

public class Look {
    public static class Payment {
        public long id;
        public BigDecimal amount;
    }

    static String typed(Object value) {
        return value.getClass().getSimpleName() + " " + value;
    }

    public static void main(String[] arguments) {
        Schema<Payment> schema = Schema.JSON(Payment.class);
        GenericSchema<GenericRecord> generic = Schema.generic(schema.getSchemaInfo());
        System.out.println("definition " + new String(schema.getSchemaInfo().getSchema()).replaceAll("\\s+", ""));
        StringBuilder seen = new StringBuilder();
        for (long id : new long[] {2147483647L, 2147483648L}) {
            Payment payment = new Payment();
            payment.id = id;
            payment.amount = new BigDecimal("12345678901234567.89");
            byte[] payload = schema.encode(payment);
            GenericRecord read = generic.decode(payload);
            String types = typed(read.getField("id")) + ", " + typed(read.getField("amount"));
            System.out.println("payload " + new String(payload) + ": expected a Long and all digits; seen " + types);
            seen.append(types).append("; ");
        }
        System.exit(seen.toString().equals("Integer 2147483647, Double 1.2345678901234568E16; "
                + "Long 2147483648, Double 1.2345678901234568E16; ") ? 0 : 1);
    }
}
PROGRAM
java -cp "$folder/lib/*" "$folder/Look.java" 2>/dev/null

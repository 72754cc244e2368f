#!/bin/sh
# StreamNative's connector 3.1.1.4 of Pulsar and Spark cannot write with its option `topic`, on Spark 3.2.4.
#
# The option names the topic of all rows.  The sink makes a literal of it as a Java string, which Spark refuses (3.1.3
# does as well), before the sink connects to a broker.  Rows with a column `__topic` are written.
#
# Expected: an error of the connection, as no broker is there.  Seen: "Literal must have a corresponding value to string".
# Exit status 0: it still fails.  Needs Maven and Java 17.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/pom.xml" <<'POM'
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>finding</groupId><artifactId>finding</artifactId><version>1</version>
<dependencies><dependency><groupId>io.streamnative.connectors</groupId>
<artifactId>pulsar-spark-connector_2.12</artifactId><version>3.1.1.4</version></dependency>
<dependency><groupId>org.apache.spark</groupId><artifactId>spark-sql_2.12</artifactId><version>3.2.4</version>
</dependency></dependencies></project>
POM
mvn -q -B -f "$folder/pom.xml" dependency:copy-dependencies -DoutputDirectory="$folder/lib" -DincludeScope=runtime
cat > "$folder/Look.java" <<'PROGRAM'
import org.apache.spark.sql.SparkSession;

public class Look {
    public static void main(String[] said) {
        SparkSession spark = SparkSession.builder().master("local[1]").config("spark.ui.enabled", "false").getOrCreate();
        String seen = "no error";
        try {
            spark.range(1).selectExpr("CAST(id AS STRING) AS value").write().format("pulsar").mode("append")
                    .option("service.url", "pulsar://127.0.0.1:1").option("admin.url", "http://127.0.0.1:1")
                    .option("topic", "persistent://public/default/t").save();
        } catch (Exception error) {
            seen = error.toString();
        }
        System.out.println("pulsar-spark-connector 3.1.1.4, Spark " + spark.version());
        System.out.println("expected: an error of the connection; seen: " + seen);
        System.exit(seen.contains("Literal must have a corresponding value to string") ? 0 : 1);
    }
}
PROGRAM
opened=""
for package in java.lang java.lang.invoke java.net java.nio java.util java.util.concurrent sun.nio.ch sun.util.calendar
do
    opened="$opened --add-opens=java.base/$package=ALL-UNNAMED"
done
java $opened -cp "$folder/lib/*" "$folder/Look.java" 2>/dev/null

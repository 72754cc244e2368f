import org.apache.spark.sql.SparkSession;

/**
 * CopySpark SERVICE HTTP INPUT OUTPUT FOLDER: a stream of Spark copies one topic to another until it is stopped.
 *
 * It goes on from the checkpoint in the folder.
 */
public class CopySpark {
    public static void main(String[] said) throws Exception {
        SparkSession spark = SparkSession.builder().master("local[1]").config("spark.ui.enabled", "false")
                .config("spark.sql.shuffle.partitions", "1").getOrCreate();
        spark.readStream().format("pulsar").option("service.url", said[0]).option("admin.url", said[1]).option("topic", said[2])
                .option("startingOffsets", "earliest").load()
                .selectExpr("CAST(value AS STRING) AS value", "'" + said[3] + "' AS __topic")     // the sink fails without the column
                .writeStream().format("pulsar").option("service.url", said[0]).option("admin.url", said[1]).option("topic", said[3])
                .option("checkpointLocation", said[4]).start().awaitTermination();
    }
}

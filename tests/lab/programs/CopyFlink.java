import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.Optional;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.pulsar.sink.PulsarSink;
import org.apache.flink.connector.pulsar.source.PulsarSource;
import org.apache.flink.connector.pulsar.source.enumerator.cursor.StartCursor;
import org.apache.flink.streaming.api.environment.CheckpointConfig;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * CopyFlink SERVICE HTTP INPUT OUTPUT FOLDER: a job of Flink copies one topic to another, exactly once, until it is stopped.
 *
 * It goes on from the newest checkpoint in the folder.
 */
public class CopyFlink {
    public static void main(String[] said) throws Exception {
        Configuration configuration = new Configuration();
        newest(Path.of(said[4])).ifPresent(found -> configuration.setString("execution.savepoint.path", found.toUri().toString()));
        configuration.setString("state.checkpoints.dir", Path.of(said[4]).toUri().toString());
        configuration.setString("taskmanager.memory.network.min", "16m");
        configuration.setString("taskmanager.memory.network.max", "16m");
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(1, configuration);
        environment.enableCheckpointing(300);
        environment.getCheckpointConfig().setExternalizedCheckpointCleanup(
                CheckpointConfig.ExternalizedCheckpointCleanup.RETAIN_ON_CANCELLATION);
        PulsarSource<String> source = PulsarSource.builder().setServiceUrl(said[0]).setAdminUrl(said[1]).setTopics(said[2])
                .setSubscriptionName("bridge").setStartCursor(StartCursor.earliest())
                .setDeserializationSchema(new SimpleStringSchema()).build();
        PulsarSink<String> sink = PulsarSink.builder().setServiceUrl(said[0]).setAdminUrl(said[1]).setTopics(said[3])
                .setSerializationSchema(new SimpleStringSchema()).setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE).build();
        environment.fromSource(source, WatermarkStrategy.noWatermarks(), "source").uid("source").sinkTo(sink).uid("sink");
        environment.execute("copy");
    }

    private static Optional<Path> newest(Path folder) throws Exception {
        try (var files = Files.walk(folder)) {
            return files.filter(file -> file.endsWith("_metadata")).map(Path::getParent)
                    .max(Comparator.comparingLong(found -> found.toFile().lastModified()));
        }
    }
}

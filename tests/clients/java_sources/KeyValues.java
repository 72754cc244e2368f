import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/**
 * KeyValues URL TOPIC put COMPRESSION: publishes lines "key TAB value" of its input, in batches; a line without TAB is a tombstone.
 * KeyValues URL TOPIC get: prints those of a compacted topic, from its beginning until there is none.
 */
public class KeyValues {
    public static void main(String[] said) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(said[0]).build()) {
            if (said[2].equals("put")) {
                put(client, said[1], CompressionType.valueOf(said[3]));
            } else {
                get(client, said[1]);
            }
        }
    }

    private static void put(PulsarClient client, String topic, CompressionType compression) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        List<CompletableFuture<MessageId>> receipts = new ArrayList<>();
        try (Producer<byte[]> producer = client.newProducer().topic(topic).compressionType(compression).batchingMaxMessages(10)
                .batchingMaxPublishDelay(5, TimeUnit.MILLISECONDS).maxPendingMessages(10_000).blockIfQueueFull(true).create()) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                int tab = line.indexOf('\t');
                TypedMessageBuilder<byte[]> message = producer.newMessage().key(tab < 0 ? line : line.substring(0, tab));
                message.value(tab < 0 ? null : line.substring(tab + 1).getBytes(StandardCharsets.UTF_8));
                receipts.add(message.sendAsync());
            }
            for (CompletableFuture<MessageId> receipt : receipts) {
                receipt.get();
            }
        }
    }

    private static void get(PulsarClient client, String topic) throws Exception {
        try (Reader<byte[]> reader = client.newReader(Schema.BYTES).topic(topic).startMessageId(MessageId.earliest)
                .readCompacted(true).create()) {
            while (reader.hasMessageAvailable()) {
                Message<byte[]> message = reader.readNext(30, TimeUnit.SECONDS);
                byte[] value = message.getValue();
                String text = value == null ? "" : "\t" + new String(value, StandardCharsets.UTF_8);
                System.out.println((message.hasKey() ? message.getKey() : "") + text);
            }
        }
    }
}

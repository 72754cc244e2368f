import java.time.Duration;
import java.util.Map;
import java.util.TreeMap;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

/**
 * Compacted URL TOPIC: publishes a value for each of ten keys, waits for a line, deletes some keys and gives others a new
 * value, waits for another line, and reads the topic as a compacted one.  It says "published" before it waits, and at the
 * end what it got: "{k0=..., ...}", and how many messages that were.
 */
public class Compacted {
    public static void main(String[] said) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(said[0]).build();
                Producer<String> producer = client.newProducer(Schema.string()).topic(said[1]).create()) {
            publish(producer, 0, 10, "old");
            wait("published");
            publish(producer, 0, 3, "");
            publish(producer, 3, 7, "new");
            wait("published");
            try (StreamConsumer<String> consumer = client.newStreamConsumer(Schema.string()).topic(said[1])
                    .subscriptionName("compacted").readCompacted(true)
                    .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe()) {
                Map<String, String> found = new TreeMap<>();
                int count = 0;
                Message<String> message;
                while ((message = consumer.receive(Duration.ofSeconds(count < 7 ? 20 : 2))) != null) {
                    found.put(message.key().get(), message.value());
                    count++;
                    consumer.acknowledgeCumulative(message.id());
                }
                System.out.println(found + " " + count);
            }
        }
        System.exit(0);
    }

    private static void publish(Producer<String> producer, int first, int end, String value) throws Exception {
        for (int number = first; number < end; number++) {
            producer.newMessage().key("k" + number).value(value).send();
        }
    }

    private static void wait(String text) throws Exception {
        System.out.println(text);
        System.in.read();
    }
}

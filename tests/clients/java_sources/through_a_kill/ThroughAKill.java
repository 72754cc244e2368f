import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

/**
 * ThroughAKill URL TOPIC: publishes 200 numbers under 20 keys, receives them, and says "half".  After a line on standard
 * input it publishes 200 more, and says "all 400" when every number has come.  Repeated ones count once.
 */
public class ThroughAKill {
    private static final Duration LONG = Duration.ofSeconds(120);
    private static final Map<String, Integer> NEWEST = new HashMap<>();
    private static final Set<Integer> RECEIVED = new TreeSet<>();

    public static void main(String[] said) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(said[0]).build();
                Producer<String> producer = client.newProducer(Schema.string()).topic(said[1]).producerName("p").create();
                StreamConsumer<String> first = subscribed(client, said[1], "a");
                StreamConsumer<String> second = subscribed(client, said[1], "b")) {
            publish(producer, 0, 200);
            receive(first, second, 200);
            System.out.println("half");
            System.in.read();
            publish(producer, 200, 400);
            receive(first, second, 400);
            System.out.println("all " + RECEIVED.size());
        }
        System.exit(0);
    }

    private static StreamConsumer<String> subscribed(PulsarClient client, String topic, String name) throws Exception {
        return client.newStreamConsumer(Schema.string()).topic(topic).subscriptionName("sub").consumerName(name)
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe();
    }

    private static void publish(Producer<String> producer, int start, int stop) throws Exception {
        for (int number = start; number < stop; number++) {
            producer.newMessage().key("k" + number % 20).value("" + number).send();
        }
    }

    private static void receive(StreamConsumer<String> first, StreamConsumer<String> second, int until) throws Exception {
        long began = System.nanoTime();
        while (RECEIVED.size() < until) {
            for (StreamConsumer<String> consumer : java.util.List.of(first, second)) {
                Message<String> message = consumer.receive(Duration.ofMillis(50));
                if (message != null && RECEIVED.add(Integer.parseInt(message.value()))) {
                    Integer before = NEWEST.put(message.key().get(), Integer.parseInt(message.value()));
                    if (before != null && before > Integer.parseInt(message.value())) {
                        throw new AssertionError(message.value() + " came after " + before);
                    }
                }
                if (message != null) {
                    consumer.acknowledgeCumulative(message.id());
                }
            }
            if (System.nanoTime() - began > LONG.toNanos()) {
                throw new AssertionError("only " + RECEIVED.size() + " have come");
            }
        }
    }
}

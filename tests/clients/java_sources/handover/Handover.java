import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

/**
 * Handover URL TOPIC: the two segments of a topic go whole from one stream consumer to others, whose applications have not
 * acknowledged what they have.  Each line that it prints says what has happened.
 */
public class Handover {
    private static final int KEYS = 40;
    private static final Duration SHORT = Duration.ofMillis(500);
    private static final long LONG = Duration.ofSeconds(30).toNanos();
    private static final Map<String, Integer> NEWEST = new HashMap<>();
    private static int published = 0;

    public static void main(String[] said) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(said[0]).build();
                Producer<String> producer = client.newProducer(Schema.string()).topic(said[1]).create()) {
            StreamConsumer<String> first = subscribed(client, said[1], "a");
            publish(producer);
            receive(first, KEYS);
            StreamConsumer<String> second = subscribed(client, said[1], "b");
            publish(producer);
            List<Message<String>> ofFirst = drain(first);
            say(keys(ofFirst).size() > 0 && keys(ofFirst).size() < KEYS, "the first one has a segment left");
            say(drain(second).isEmpty(), "the second one gets nothing while the first one holds messages");
            first.acknowledgeCumulative(ofFirst.get(ofFirst.size() - 1).id());
            List<Message<String>> ofSecond = receive(second, KEYS - ofFirst.size());
            say(keys(ofSecond).size() + keys(ofFirst).size() == KEYS, "the second one gets its segment when all is acknowledged");
            second.close();
            List<Message<String>> again = receive(first, ofSecond.size());
            say(keys(again).equals(keys(ofSecond)), "the first one gets what the second one left");
            publish(producer);
            List<Message<String>> all = receive(first, KEYS);
            StreamConsumer<String> third = subscribed(client, said[1], "c");
            StreamConsumer<String> fourth = subscribed(client, said[1], "d");
            publish(producer);
            first.acknowledgeCumulative(all.get(KEYS - 1).id());
            Set<String> keys = new HashSet<>();
            for (long began = System.nanoTime(); keys.size() < KEYS && System.nanoTime() - began < LONG;) {
                for (StreamConsumer<String> consumer : List.of(first, third, fourth)) {
                    List<Message<String>> some = drain(consumer);
                    keys.addAll(keys(some));
                    if (!some.isEmpty()) {
                        consumer.acknowledgeCumulative(some.get(some.size() - 1).id());
                    }
                }
            }
            say(keys.size() == KEYS, "three of them get all");
            for (StreamConsumer<String> consumer : List.of(first, third, fourth)) {
                consumer.close();
            }
        }
        System.exit(0);
    }

    private static StreamConsumer<String> subscribed(PulsarClient client, String topic, String name) throws Exception {
        long began = System.nanoTime();
        StreamConsumer<String> consumer = client.newStreamConsumer(Schema.string()).topic(topic).subscriptionName("sub")
                .consumerName(name).subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe();
        say(System.nanoTime() - began < 5_000_000_000L, name + " subscribed");
        return consumer;
    }

    private static void publish(Producer<String> producer) throws Exception {
        for (int count = 0; count < KEYS; count++, published++) {
            producer.newMessage().key("k" + published % KEYS).value("" + published).send();
        }
    }

    /** Receive so many messages. */
    private static List<Message<String>> receive(StreamConsumer<String> consumer, int count) throws Exception {
        List<Message<String>> received = new ArrayList<>();
        long began = System.nanoTime();
        while (received.size() < count && System.nanoTime() - began < LONG) {
            add(received, consumer.receive(SHORT));
        }
        say(received.size() == count, consumer.consumerName() + " gets " + (count == KEYS ? "all" : "its share"));
        return received;
    }

    /** Receive until nothing comes any more. */
    private static List<Message<String>> drain(StreamConsumer<String> consumer) throws Exception {
        List<Message<String>> received = new ArrayList<>();
        while (add(received, consumer.receive(SHORT))) { }
        return received;
    }

    private static boolean add(List<Message<String>> received, Message<String> message) {
        if (message == null) {
            return false;
        }
        received.add(message);
        int number = Integer.parseInt(message.value());
        Integer before = NEWEST.put(message.key().get(), number);
        if (before != null && before > number) {
            throw new AssertionError(number + " came after " + before);
        }
        return true;
    }

    private static Set<String> keys(List<Message<String>> messages) {
        Set<String> keys = new HashSet<>();
        messages.forEach(message -> keys.add(message.key().get()));
        return keys;
    }

    private static void say(boolean isTrue, String what) {
        System.out.println((isTrue ? "" : "not: ") + what);
    }
}

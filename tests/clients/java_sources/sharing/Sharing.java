import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
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
 * Sharing URL TOPIC: stream consumers share the one segment of a topic, on which numbers are published under 40 keys.  Each
 * line that it prints says what has happened.
 */
public class Sharing {
    private static final int KEYS = 40;
    private static final long LONG = Duration.ofSeconds(60).toNanos();
    private static final Map<String, Integer> NEWEST = new HashMap<>();
    private static final Set<Integer> RECEIVED = new TreeSet<>();
    private static final List<StreamConsumer<String>> CONSUMERS = new ArrayList<>();
    private static int published = 0;

    public static void main(String[] said) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(said[0]).build();
                Producer<String> producer = client.newProducer(Schema.string()).topic(said[1]).create()) {
            join(client, said[1], "a");
            publish(producer);
            Message<String> held = CONSUMERS.get(0).receive();
            long began = System.nanoTime();
            join(client, said[1], "b");
            say((System.nanoTime() - began) / 1_000_000 < 5_000, "the second one subscribed while the first one held a message");
            add(held);
            CONSUMERS.get(0).acknowledgeCumulative(held.id());
            receiveAll();
            settle(producer, 2);
            join(client, said[1], "c");
            join(client, said[1], "d");
            settle(producer, 4);
            join(client, said[1], "e");
            settle(producer, 4);
            CONSUMERS.remove(0).close();
            settle(producer, 4);
            StreamConsumer<String> lazy = CONSUMERS.remove(0);
            publish(producer);
            Set<String> keys = new TreeSet<>();
            for (Message<String> message; (message = lazy.receive(Duration.ofSeconds(1))) != null;) {
                keys.add(message.key().get());
                add(message);
            }
            receiveAll();
            say(!keys.isEmpty() && keys.size() < KEYS, "one that acknowledges nothing keeps nobody else waiting");
            for (StreamConsumer<String> consumer : CONSUMERS) {
                consumer.close();
            }
        }
        System.exit(0);
    }

    private static void join(PulsarClient client, String topic, String name) throws Exception {
        CONSUMERS.add(client.newStreamConsumer(Schema.string()).topic(topic).subscriptionName("sub").consumerName(name)
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe());
    }

    private static void publish(Producer<String> producer) throws Exception {
        for (int count = 0; count < KEYS; count++, published++) {
            producer.newMessage().key("k" + published % KEYS).value("" + published).send();
        }
    }

    /** Publish until as many consumers as given have got messages of one round, each key with one of them. */
    private static void settle(Producer<String> producer, int count) throws Exception {
        long began = System.nanoTime();
        Map<String, String> owners;
        do {
            publish(producer);
            owners = receiveAll();
            if (System.nanoTime() - began > LONG) {
                throw new AssertionError("keys are with " + owners);
            }
        } while (Set.copyOf(owners.values()).size() != count);
        say(owners.size() == KEYS, count + " of " + CONSUMERS.size() + " share the keys");
    }

    /** Receive and acknowledge all that was published; return which consumer had each key. */
    private static Map<String, String> receiveAll() throws Exception {
        Map<String, String> owners = new HashMap<>();
        long began = System.nanoTime();
        while (RECEIVED.size() < published) {
            for (StreamConsumer<String> consumer : CONSUMERS) {
                Message<String> message = consumer.receive(Duration.ofMillis(10));
                if (message != null) {
                    add(message);
                    owners.put(message.key().get(), consumer.consumerName());
                    consumer.acknowledgeCumulative(message.id());
                }
            }
            if (System.nanoTime() - began > LONG) {
                throw new AssertionError("only " + RECEIVED.size() + " of " + published + " have come");
            }
        }
        return owners;
    }

    private static void add(Message<String> message) {
        int number = Integer.parseInt(message.value());
        Integer before = NEWEST.put(message.key().get(), number);
        if (!RECEIVED.add(number) || before != null && before > number) {
            throw new AssertionError(number + " came twice, or after " + before);
        }
    }

    private static void say(boolean isTrue, String what) {
        System.out.println((isTrue ? "" : "not: ") + what);
    }
}

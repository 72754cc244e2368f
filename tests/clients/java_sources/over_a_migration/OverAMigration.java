import java.time.Duration;
import java.time.Instant;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.Transaction;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.config.TransactionPolicy;
import org.apache.pulsar.client.api.v5.schema.Schema;

/**
 * OverAMigration URL TOPIC: publishes to a regular topic in two open transactions, acknowledges in one, delays a message,
 * and says "ready".  After a line on standard input, when the topic is scalable, it goes on with the same transactions, ends
 * them, and publishes by a newer schema.  It says what each subscription got: the messages' names and counts, sorted.
 */
public class OverAMigration {
    private static final Duration DELAY = Duration.ofSeconds(5);

    public static class Older {
        public String name;
    }

    public static class Newer {
        public String name;
        public Integer count;
    }

    public static void main(String[] said) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(said[0])
                    .transactionPolicy(TransactionPolicy.builder().timeout(Duration.ofSeconds(60)).build()).build();
                Producer<Older> producer = client.newProducer(Schema.json(Older.class)).topic(said[1]).create();
                QueueConsumer<Older> queue = queue(client, said[1], "queue", Older.class);
                QueueConsumer<Older> acknowledging = queue(client, said[1], "acknowledging", Older.class);
                StreamConsumer<Older> stream = client.newStreamConsumer(Schema.json(Older.class)).topic(said[1])
                        .subscriptionName("stream").subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                        .subscribe()) {
            send(producer, "plain", null);
            Transaction committed = client.newTransaction();
            Transaction aborted = client.newTransaction();
            acknowledging.acknowledge(acknowledging.receive(Duration.ofSeconds(20)).id(), committed);
            for (int number = 0; number < 4; number++) {
                send(producer, "committed" + number, committed);
                send(producer, "aborted" + number, aborted);
            }
            Instant due = Instant.now().plus(DELAY);
            Older delayed = new Older();
            delayed.name = "delayed";
            producer.newMessage().key("delayed").value(delayed).deliverAt(due).send();
            System.out.println("ready");
            System.in.read();
            // The client sends to a sealed segment until it knows, and then anew, but counts this against a transaction.
            send(producer, "moved", null);
            for (int number = 4; number < 8; number++) {
                send(producer, "committed" + number, committed);
                send(producer, "aborted" + number, aborted);
            }
            committed.commit();
            aborted.abort();
            try (Producer<Newer> newer = client.newProducer(Schema.json(Newer.class)).topic(said[1]).create();
                    QueueConsumer<Newer> late = queue(client, said[1], "late", Newer.class)) {
                Newer counted = new Newer();
                counted.name = "counted";
                counted.count = 7;
                newer.newMessage().key("counted").value(counted).send();
                System.out.println("queue " + all(12, due, () -> {
                    Message<Older> message = queue.receive(Duration.ofSeconds(20));
                    queue.acknowledge(message.id());
                    return message.value().name;
                }));
                System.out.println("acknowledging " + all(11, due, () -> {
                    Message<Older> message = acknowledging.receive(Duration.ofSeconds(20));
                    acknowledging.acknowledge(message.id());
                    return message.value().name;
                }));
                System.out.println("stream " + all(12, due, () -> {
                    Message<Older> message = stream.receive(Duration.ofSeconds(20));
                    stream.acknowledgeCumulative(message.id());
                    return message.value().name;
                }));
                System.out.println("late " + all(12, due, () -> {
                    Message<Newer> message = late.receive(Duration.ofSeconds(20));
                    late.acknowledge(message.id());
                    return message.value().name + (message.value().count == null ? "" : message.value().count);
                }));
                if (queue.receive(Duration.ofSeconds(1)) != null || late.receive(Duration.ofSeconds(1)) != null) {
                    System.out.println("too many");
                }
            }
        }
        System.out.println("done");
        System.exit(0);
    }

    private static <T> QueueConsumer<T> queue(PulsarClient client, String topic, String name, Class<T> kind)
            throws Exception {
        return client.newQueueConsumer(Schema.json(kind)).topic(topic).subscriptionName(name)
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe();
    }

    private static void send(Producer<Older> producer, String name, Transaction transaction) throws Exception {
        Older value = new Older();
        value.name = name;
        var message = producer.newMessage().key(name).value(value);
        (transaction == null ? message : message.transaction(transaction)).send();
    }

    /** Takes so many messages; returns how often each came. */
    private static Map<String, Integer> all(int count, Instant due, Callable<String> next) throws Exception {
        Map<String, Integer> found = new TreeMap<>();
        for (int number = 0; number < count; number++) {
            String name = next.call();
            found.merge(name, 1, Integer::sum);
            if (name.equals("delayed") && Instant.now().isBefore(due)) {
                System.out.println("too early");
            }
        }
        return found;
    }
}

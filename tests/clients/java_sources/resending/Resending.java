import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

/**
 * Resending URL TOPIC [again]: publishes messages with sequence ids of its own, waits for a line, and publishes all of them
 * again with as many new ones, as a program does that does not know how far it came.  It says "published" in between, and
 * at the end what a queue consumer got, sorted: "[0, 1, 2, ...]".  again: it has been started anew, and waits for no line.
 */
public class Resending {
    private static final int COUNT = 20;

    public static void main(String[] said) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(said[0]).build();
                Producer<String> producer = client.newProducer(Schema.string()).topic(said[1]).producerName("p").create();
                QueueConsumer<String> consumer = client.newQueueConsumer(Schema.string()).topic(said[1])
                        .subscriptionName("q").subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                        .subscribe()) {
            if (said.length < 3) {
                publish(producer, COUNT);
                System.out.println("published " + producer.lastSequenceId());
                System.in.read();
            }
            publish(producer, 2 * COUNT);
            Map<String, Integer> found = new HashMap<>();      // by id: a message may be delivered again
            Message<String> message;
            while ((message = consumer.receive(Duration.ofMillis(found.size() < 2 * COUNT ? 20_000 : 500))) != null) {
                consumer.acknowledge(message.id());
                found.put(message.id().toString(), Integer.parseInt(message.value()));
            }
            System.out.println(found.values().stream().sorted().toList());
        }
        System.exit(0);
    }

    private static void publish(Producer<String> producer, int count) throws Exception {
        for (int number = 0; number < count; number++) {
            producer.newMessage().key("k" + number % 7).sequenceId(number).value(Integer.toString(number)).send();
        }
    }
}

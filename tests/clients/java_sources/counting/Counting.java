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
 * Counting URL TOPIC FIRST: publishes messages FIRST, FIRST + 1, ..., which the client counts from initialSequenceId on,
 * which is FIRST, as many again for each line, and says "published".  At the end of its input it says what a queue
 * consumer got, sorted: "[0, 1, 2, ...]".
 */
public class Counting {
    private static final int COUNT = 10;

    public static void main(String[] said) throws Exception {
        int first = Integer.parseInt(said[2]);
        int number = first;
        try (PulsarClient client = PulsarClient.builder().serviceUrl(said[0]).build();
                Producer<String> producer = client.newProducer(Schema.string()).topic(said[1]).producerName("p")
                        .initialSequenceId(first).create();
                QueueConsumer<String> consumer = client.newQueueConsumer(Schema.string()).topic(said[1])
                        .subscriptionName("q").subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                        .subscribe()) {
            do {
                for (int end = number + COUNT; number < end; number++) {
                    producer.newMessage().key("k" + number % 7).value(Integer.toString(number)).send();
                }
                System.out.println("published");
            } while (System.in.read() >= 0);
            Map<String, Integer> found = new HashMap<>();      // by id: a message may be delivered again
            Message<String> message;
            while ((message = consumer.receive(Duration.ofMillis(found.size() < number - first ? 20_000 : 500))) != null) {
                consumer.acknowledge(message.id());
                found.put(message.id().toString(), Integer.parseInt(message.value()));
            }
            System.out.println(found.values().stream().sorted().toList());
        }
        System.exit(0);
    }
}

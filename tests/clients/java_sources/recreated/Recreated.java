import java.time.Duration;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

/**
 * Recreated URL TOPIC: opens a producer, a queue and a stream consumer, and says "ready".  After a line on standard input, when the
 * topic was deleted and created again, it publishes as many messages as there are digits, and says what each consumer got.
 */
public class Recreated {
    private static final int MESSAGES = 10;
    private static final Duration LONG = Duration.ofSeconds(60);

    public static void main(String[] said) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(said[0]).build();
                Producer<String> producer = client.newProducer(Schema.string()).topic(said[1]).create();
                QueueConsumer<String> queue = client.newQueueConsumer(Schema.string()).topic(said[1]).subscriptionName("queue")
                        .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe();
                StreamConsumer<String> stream = client.newStreamConsumer(Schema.string()).topic(said[1]).subscriptionName("stream")
                        .consumerName("a").subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe()) {
            System.out.println("ready");
            System.in.read();
            for (int number = 0; number < MESSAGES; number++) {
                publish(producer, number);
            }
            int sum = 0;
            for (int number = 0; number < MESSAGES; number++) {
                Message<String> message = queue.receive(LONG);
                sum += Integer.parseInt(message.value());
                queue.acknowledge(message.id());
            }
            System.out.println("queue " + sum);
            sum = 0;
            for (int number = 0; number < MESSAGES; number++) {
                Message<String> message = stream.receive(LONG);
                sum += Integer.parseInt(message.value());
                stream.acknowledgeCumulative(message.id());
            }
            System.out.println("stream " + sum);
        }
        System.exit(0);
    }

    /** Publishes, and again as long as the client has not heard of the new segments. */
    private static void publish(Producer<String> producer, int number) throws Exception {
        long began = System.nanoTime();
        while (true) {
            try {
                producer.newMessage().key("key-" + number).value("" + number).send();
                return;
            } catch (Exception failure) {
                if (System.nanoTime() - began > LONG.toNanos()) {
                    throw failure;
                }
                Thread.sleep(10);
            }
        }
    }
}

import java.time.Duration;
import java.util.Map;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.config.BackoffPolicy;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

/**
 * Jobs URL TOPIC FILTER COUNT: a queue consumer with a receive queue of one, whose subscription has a filter. It prints
 * so many messages as they come, gives those back that begin with "poison", and acknowledges all others. No more are to
 * come within three seconds, in which the client sends what it gives back.
 */
public class Jobs {
    public static void main(String[] said) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(said[0]).build();
                QueueConsumer<String> consumer = client.newQueueConsumer(Schema.string()).topic(said[1])
                        .subscriptionName("workers").subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                        .subscriptionProperties(Map.of("geminga.filter", said[2])).receiverQueueSize(1)
                        .negativeAckRedeliveryBackoff(BackoffPolicy.exponential(Duration.ofMillis(50), Duration.ofMillis(100))).subscribe()) {
            for (int left = Integer.parseInt(said[3]); left > 0; left--) {
                Message<String> message = consumer.receive();
                System.out.println(message.value());
                if (message.value().startsWith("poison")) {
                    consumer.negativeAcknowledge(message.id());
                } else {
                    consumer.acknowledge(message.id());
                }
            }
            Message<String> more = said[3].equals("0") ? null : consumer.receive(Duration.ofSeconds(3));
            if (more != null) {
                System.out.println("more: " + more.value());
            }
        }
        System.exit(0);
    }
}

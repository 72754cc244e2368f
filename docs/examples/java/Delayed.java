import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.*;

/** Publishes messages that consumers get later: after a delay, or at a time. */
public class Delayed {
    public static void main(String[] arguments) throws Exception {
        String url = System.getenv().getOrDefault("PULSAR_URL", "pulsar://localhost:6650");
        // Delays hold on Shared and Key_Shared subscriptions; the other types get each message at once.
        try (PulsarClient client = PulsarClient.builder().serviceUrl(url).build();
             Consumer<String> consumer = client.newConsumer(Schema.STRING).topic("example-java-reminders")
                 .subscriptionName("mailer").subscriptionType(SubscriptionType.Shared).subscribe();
             Producer<String> producer = client.newProducer(Schema.STRING).topic("example-java-reminders").create()) {
            long begin = System.currentTimeMillis();
            producer.newMessage().value("after two seconds").deliverAfter(2, TimeUnit.SECONDS).send();
            producer.newMessage().value("after one second").deliverAt(begin + 1_000).send();
            producer.send("at once");
            for (int number = 0; number < 3; number++) {
                Message<String> message = consumer.receive();
                System.out.println((System.currentTimeMillis() - begin) / 1_000 + " s: " + message.getValue());
                consumer.acknowledge(message);
            }
        }
    }
}

import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.*;

/** Tries failed messages again, and gives up on a message after two more deliveries. */
public class SharedWithDeadLetters {
    public static void main(String[] arguments) throws Exception {
        String url = System.getenv().getOrDefault("PULSAR_URL", "pulsar://localhost:6650");
        try (PulsarClient client = PulsarClient.builder().serviceUrl(url).build();
             Consumer<String> consumer = client.newConsumer(Schema.STRING).topic("example-java-payments")
                 .subscriptionName("bank").subscriptionType(SubscriptionType.Shared)
                 .negativeAckRedeliveryDelay(200, TimeUnit.MILLISECONDS)
                 .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2)
                     .deadLetterTopic("example-java-payments-failed").initialSubscriptionName("inspection").build())
                 .subscribe();
             Consumer<String> failed = client.newConsumer(Schema.STRING).topic("example-java-payments-failed")
                 .subscriptionName("inspection").subscriptionType(SubscriptionType.Shared).subscribe();
             Producer<String> producer = client.newProducer(Schema.STRING).topic("example-java-payments").create()) {
            for (String amount : new String[] {"10", "20", "not a number", "30"}) {
                producer.send(amount);
            }
            int paid = 0;
            for (Message<String> one; (one = consumer.receive(3, TimeUnit.SECONDS)) != null; ) {
                try {
                    paid += Integer.parseInt(one.getValue());
                    consumer.acknowledge(one);
                } catch (NumberFormatException wrong) {
                    System.out.println("failed: " + one.getValue() + " after " + one.getRedeliveryCount() + " redeliveries");
                    consumer.negativeAcknowledge(one);      // delivered again after 200 ms
                }
            }
            System.out.println("paid: " + paid);
            Message<String> letter = failed.receive(10, TimeUnit.SECONDS);
            System.out.println("dead letter: " + letter.getValue());
            failed.acknowledge(letter);
        }
    }
}

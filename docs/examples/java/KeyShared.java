import java.util.*;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.*;

/** Shares a subscription between two consumers, and keeps the order of each key. */
public class KeyShared {
    public static void main(String[] arguments) throws Exception {
        String url = System.getenv().getOrDefault("PULSAR_URL", "pulsar://localhost:6650");
        try (PulsarClient client = PulsarClient.builder().serviceUrl(url).build();
             Consumer<Integer> one = subscribe(client, "one");
             Consumer<Integer> two = subscribe(client, "two");
             Producer<Integer> producer = client.newProducer(Schema.INT32).topic("example-java-readings")
                 .batcherBuilder(BatcherBuilder.KEY_BASED).create()) {      // all messages of a batch have one key
            for (int number = 0; number < 20; number++) {
                producer.newMessage().key("sensor-" + number % 4).value(number).sendAsync();
            }
            producer.flush();
            Map<String, List<Integer>> seen = new TreeMap<>();
            for (int left = 20; left > 0; ) {
                for (Consumer<Integer> consumer : List.of(one, two)) {
                    Message<Integer> message = consumer.receive(100, TimeUnit.MILLISECONDS);
                    if (message != null) {
                        String who = message.getKey() + " by " + consumer.getConsumerName();
                        seen.computeIfAbsent(who, any -> new ArrayList<>()).add(message.getValue());
                        consumer.acknowledge(message);
                        left--;
                    }
                }
            }
            seen.forEach((who, numbers) -> System.out.println(who + " " + numbers));
        }
    }

    private static Consumer<Integer> subscribe(PulsarClient client, String name) throws PulsarClientException {
        return client.newConsumer(Schema.INT32).topic("example-java-readings").subscriptionName("averages")
            .consumerName(name).subscriptionType(SubscriptionType.Key_Shared).subscribe();
    }
}

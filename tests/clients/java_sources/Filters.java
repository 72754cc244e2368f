import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Filters URL TOPIC TYPE HOW FILTER: publishes 0 to 19 in batches, with properties, and consumes through a filter.  Prints what a
 * consumer received, then what another one received after the first had acknowledged all but the last message, then what a third
 * one received after the second had acknowledged everything.  HOW: "parts" acknowledges messages of batches one by one.
 */
public class Filters {
    public static void main(String[] said) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(said[0]).build()) {
            try {
                receive(client, said, 0).close();
            } catch (PulsarClientException refused) {
                System.out.println(refused.getMessage().replace('\n', ' '));
                return;
            }
            publish(client, said[1]);
            for (int left : new int[] {1, 0, 0}) {
                receive(client, said, left).close();
            }
        }
    }

    private static void publish(PulsarClient client, String topic) throws Exception {
        List<CompletableFuture<MessageId>> receipts = new ArrayList<>();
        try (Producer<byte[]> producer = client.newProducer().topic(topic).batchingMaxMessages(7)
                .batchingMaxPublishDelay(1, TimeUnit.SECONDS).create()) {
            for (int number = 0; number < 20; number++) {
                receipts.add(producer.newMessage().value(Integer.toString(number).getBytes())
                        .properties(Map.of("parity", number % 2 == 0 ? "even" : "odd", "n", Integer.toString(number)))
                        .sendAsync());
            }
            producer.flush();
            for (CompletableFuture<MessageId> receipt : receipts) {
                receipt.get();
            }
        }
    }

    private static Consumer<byte[]> receive(PulsarClient client, String[] said, int left) throws Exception {
        Consumer<byte[]> consumer = client.newConsumer().topic(said[1]).subscriptionName("filtered")
                .subscriptionType(SubscriptionType.valueOf(said[2])).enableBatchIndexAcknowledgment(said[3].equals("parts"))
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS)
                .subscriptionProperties(Map.of("geminga.filter", said[4])).subscribe();
        List<Message<byte[]>> received = new ArrayList<>();
        for (Message<byte[]> message; (message = consumer.receive(2, TimeUnit.SECONDS)) != null; ) {
            received.add(message);
        }
        StringBuilder line = new StringBuilder();
        for (Message<byte[]> message : received) {
            line.append(new String(message.getValue())).append(' ');
        }
        System.out.println("got " + line.toString().trim());
        for (Message<byte[]> message : received.subList(0, Math.max(0, received.size() - left))) {
            consumer.acknowledgeAsync(message).get(10, TimeUnit.SECONDS);
        }
        return consumer;
    }
}

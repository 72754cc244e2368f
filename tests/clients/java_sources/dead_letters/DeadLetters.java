import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/**
 * DeadLetters URL publish TOPIC GROUP...: publishes with the default batching, one group after the other, and prints
 * "entry TAB name" of each message. A group is NAME=TTL,NAME=TTL...; without a time a message has no property.
 * DeadLetters URL refuse TOPIC TIMES: gives back all that comes, with a dead letter policy of so many redeliveries,
 * until a line comes.
 */
public class DeadLetters {
    public static void main(String[] said) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(said[0]).build()) {
            if (said[1].equals("publish")) {
                publish(client, said[2], List.of(said).subList(3, said.length));
            } else {
                refuse(client, said[2], Integer.parseInt(said[3]));
            }
        }
    }

    private static void publish(PulsarClient client, String topic, List<String> groups) throws Exception {
        try (Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            for (String group : groups) {
                Map<String, CompletableFuture<MessageId>> receipts = new LinkedHashMap<>();
                for (String one : group.split(",")) {
                    String[] parts = one.split("=", 2);
                    TypedMessageBuilder<byte[]> message = producer.newMessage().value(parts[0].getBytes());
                    if (!parts[1].isEmpty()) {
                        message.property("geminga.ttl", parts[1]);
                    }
                    receipts.put(parts[0], message.sendAsync());
                }
                producer.flush();
                for (Map.Entry<String, CompletableFuture<MessageId>> receipt : receipts.entrySet()) {
                    MessageIdAdv id = (MessageIdAdv) receipt.getValue().get();
                    System.out.println(id.getEntryId() + "\t" + receipt.getKey());
                }
            }
        }
    }

    private static void refuse(PulsarClient client, String topic, int times) throws Exception {
        DeadLetterPolicy policy = DeadLetterPolicy.builder().maxRedeliverCount(times).initialSubscriptionName("keeper").build();
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                .subscriptionType(SubscriptionType.Shared).deadLetterPolicy(policy)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .negativeAckRedeliveryDelay(50, TimeUnit.MILLISECONDS).subscribe()) {
            while (System.in.available() == 0) {
                Message<byte[]> message = consumer.receive(50, TimeUnit.MILLISECONDS);
                if (message != null) {
                    consumer.negativeAcknowledge(message);
                }
            }
        }
    }
}

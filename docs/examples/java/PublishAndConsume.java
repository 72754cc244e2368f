import org.apache.pulsar.client.api.*;

/** Publishes three messages, and consumes them on a subscription. */
public class PublishAndConsume {
    public static void main(String[] arguments) throws Exception {
        String url = System.getenv().getOrDefault("PULSAR_URL", "pulsar://localhost:6650");
        try (PulsarClient client = PulsarClient.builder().serviceUrl(url).build();
             Consumer<String> consumer = client.newConsumer(Schema.STRING)
                 .topic("example-java-orders").subscriptionName("billing").subscribe();
             Producer<String> producer = client.newProducer(Schema.STRING).topic("example-java-orders").create()) {
            for (int number = 0; number < 3; number++) {
                MessageId id = producer.newMessage().key("customer-7").property("shop", "north")
                    .value("order " + number).send();
                System.out.println("on disk: " + id);
            }
            for (int number = 0; number < 3; number++) {
                Message<String> message = consumer.receive();
                System.out.println("received: " + message.getValue() + " " + message.getKey() + " "
                    + message.getProperty("shop"));
                consumer.acknowledge(message);
            }
        }
    }
}

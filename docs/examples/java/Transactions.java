import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.api.transaction.Transaction;

/** Takes orders, writes an invoice for each, and acknowledges the order: both happen, or neither does. */
public class Transactions {
    public static void main(String[] arguments) throws Exception {
        String url = System.getenv().getOrDefault("PULSAR_URL", "pulsar://localhost:6650");
        try (PulsarClient client = PulsarClient.builder().serviceUrl(url).enableTransaction(true).build();
             Consumer<String> orders = client.newConsumer(Schema.STRING).topic("example-java-orders")
                 .subscriptionName("billing").subscriptionType(SubscriptionType.Shared).subscribe();
             Consumer<String> invoices = client.newConsumer(Schema.STRING).topic("example-java-invoices")
                 .subscriptionName("printer").subscribe();
             Producer<String> shop = client.newProducer(Schema.STRING).topic("example-java-orders").create();
             Producer<String> billing = client.newProducer(Schema.STRING).topic("example-java-invoices").create()) {
            shop.send("order 1");
            for (boolean commits : new boolean[] {false, true}) {
                Message<String> order = orders.receive();
                Transaction transaction =
                    client.newTransaction().withTransactionTimeout(1, TimeUnit.MINUTES).build().get();
                billing.newMessage(transaction).value("invoice of " + order.getValue()).sendAsync();
                orders.acknowledgeAsync(order.getMessageId(), transaction);
                if (commits) {
                    transaction.commit().get();      // waits for what was sent and acknowledged
                } else {
                    transaction.abort().get();       // the order comes again, and nobody sees the invoice
                }
                System.out.println(order.getValue() + (commits ? " committed" : " aborted"));
            }
            System.out.println("received: " + invoices.receive().getValue());
        }
    }
}

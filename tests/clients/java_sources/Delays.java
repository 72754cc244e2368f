import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/**
 * Delays URL delays KIND=TOPIC...: publishes the messages of its input, lines "name TAB now|after|at TAB milliseconds TAB large or not",
 * to each topic, and prints what comes: "topic TAB name TAB due TAB came TAB TAB size".
 * Delays URL retries KIND=TOPIC...: asks for each of them again later, twice, then for the dead letters; the fifth column has how often.
 */
public class Delays {
    private static final int LARGE_BYTES = 6 << 20; // more than a message may have: it is cut into chunks
    private static final int TIMES = 2;
    private static final long WAIT_MS = 1_000;

    record Delayed(String name, String how, long ms, boolean isLarge) {
    }

    public static void main(String[] said) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        List<Delayed> messages = in.lines().map(line -> line.split("\t"))
                .map(part -> new Delayed(part[0], part[1], Long.parseLong(part[2]), part[3].startsWith("large"))).toList();
        ExecutorService threads = Executors.newCachedThreadPool();
        try (PulsarClient client = PulsarClient.builder().serviceUrl(said[0]).build()) {
            List<Future<?>> ends = new ArrayList<>();
            for (int at = 2; at < said.length; at++) {
                String kind = said[at].split("=")[0];
                String topic = said[at].split("=")[1];
                ends.add(threads.submit(() -> {
                    if (said[1].equals("delays")) {
                        delays(client, kind, topic, messages);
                    } else {
                        retries(client, topic, messages);
                    }
                    return null;
                }));
            }
            for (Future<?> end : ends) {
                end.get(50, TimeUnit.SECONDS);
            }
        } finally {
            threads.shutdownNow();
        }
    }

    private static void delays(PulsarClient client, String kind, String topic, List<Delayed> messages) throws Exception {
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("java")
                .subscriptionType(SubscriptionType.valueOf(kind)).subscribe()) {
            CompletableFuture<Void> published = CompletableFuture.runAsync(() -> publish(client, topic, messages));
            for (int count = 0; count < messages.size(); count++) {
                Message<byte[]> message = consumer.receive();
                print(topic, message, Long.parseLong(message.getProperty("due")), System.currentTimeMillis(), "");
                consumer.acknowledge(message);
            }
            published.get();
        }
    }

    private static void publish(PulsarClient client, String topic, List<Delayed> messages) {
        try (Producer<byte[]> batching = client.newProducer().topic(topic).batchingMaxPublishDelay(5, TimeUnit.MILLISECONDS).create();
             Producer<byte[]> chunking = client.newProducer().topic(topic).enableBatching(false).enableChunking(true).create()) {
            for (Delayed one : messages) {
                TypedMessageBuilder<byte[]> message = (one.isLarge ? chunking : batching).newMessage().key(one.name)
                        .value(one.isLarge ? new byte[LARGE_BYTES] : one.name.getBytes(StandardCharsets.UTF_8));
                long due = System.currentTimeMillis() + one.ms;
                switch (one.how) {
                    case "after" -> message.deliverAfter(one.ms, TimeUnit.MILLISECONDS);
                    case "at" -> message.deliverAt(due);
                    default -> due = 0;
                }
                message.property("name", one.name).property("due", Long.toString(due)).send();
            }
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    private static void retries(PulsarClient client, String topic, List<Delayed> messages) throws Exception {
        DeadLetterPolicy policy = DeadLetterPolicy.builder().maxRedeliverCount(TIMES).retryLetterTopic(topic + "-java-RETRY")
                .deadLetterTopic(topic + "-java-DLQ").build();
        try (Consumer<byte[]> dead = client.newConsumer().topic(topic + "-java-DLQ").subscriptionName("dead").subscribe();
             Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("java").enableRetry(true)
                     .subscriptionType(SubscriptionType.Shared).deadLetterPolicy(policy)
                     .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            publish(client, topic, messages);
            Map<String, Long> due = new HashMap<>();
            for (int count = 0; count < (TIMES + 1) * messages.size(); count++) {
                Message<byte[]> message = consumer.receive();
                String name = message.getProperty("name");
                String again = message.getProperties().getOrDefault("RECONSUMETIMES", "");
                print(topic, message, due.getOrDefault(name, 0L), System.currentTimeMillis(), again);
                due.put(name, System.currentTimeMillis() + WAIT_MS);
                consumer.reconsumeLater(message, WAIT_MS, TimeUnit.MILLISECONDS);
            }
            for (int count = 0; count < messages.size(); count++) {
                print(topic, dead.receive(), 0, 0, "dead");
            }
        }
    }

    private static synchronized void print(String topic, Message<byte[]> message, long due, long came, String again) {
        System.out.println(String.join("\t", topic, message.getProperty("name"), Long.toString(due), Long.toString(came), again,
                Integer.toString(message.getData().length)));
    }
}

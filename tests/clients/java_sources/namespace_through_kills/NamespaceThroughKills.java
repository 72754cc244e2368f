import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.PulsarClientException;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

/**
 * NamespaceThroughKills URL NAMESPACE: consumes all scalable topics of a namespace by a queue and a stream consumer.  It
 * publishes numbers to the topic of each name that it reads from standard input, creating it, and says the name when the
 * first is sent.  After "stop" it says what it published and each consumer got: "published N", "queue N", "stream N", "done".
 */
public class NamespaceThroughKills {
    private static final long LONG = Duration.ofSeconds(60).toNanos();
    private static final AtomicInteger PUBLISHED = new AtomicInteger(-1);
    private static volatile boolean stops = false;
    private static volatile long since = Long.MAX_VALUE;

    private interface Receives {
        Message<String> next() throws Exception;
    }

    public static void main(String[] said) throws Exception {
        ExecutorService threads = Executors.newCachedThreadPool(task -> {
            Thread thread = new Thread(task);
            thread.setDaemon(true);      // else a failure would not end the program
            return thread;
        });
        Scanner lines = new Scanner(System.in);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(said[0]).build();
                QueueConsumer<String> queue = client.newQueueConsumer(Schema.string()).namespace(said[1])
                        .subscriptionName("queue").subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                        .subscribe();
                StreamConsumer<String> stream = client.newStreamConsumer(Schema.string()).namespace(said[1])
                        .subscriptionName("stream").consumerName("one")
                        .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe()) {
            Future<Integer> ofQueue = threads.submit(() -> all(false, () -> {
                Message<String> message = queue.receive(Duration.ofMillis(100));
                if (message != null) {
                    queue.acknowledge(message.id());
                }
                return message;
            }));
            Future<Integer> ofStream = threads.submit(() -> all(true, () -> {
                Message<String> message = stream.receive(Duration.ofMillis(100));
                if (message != null) {
                    stream.acknowledgeCumulative(message.id());
                }
                return message;
            }));
            List<Future<Integer>> published = new ArrayList<>();
            for (String line = lines.nextLine(); !line.equals("stop"); line = lines.nextLine()) {
                String topic = line;
                Producer<String> producer = producer(client, topic);
                producer.newMessage().key(topic + 0).value(topic + " 0").send();
                published.add(threads.submit(() -> publish(producer, topic)));
                System.out.println(topic);
            }
            stops = true;
            int sum = 0;
            for (Future<Integer> one : published) {
                sum += one.get();
            }
            System.out.println("published " + sum);
            since = System.nanoTime();
            PUBLISHED.set(sum);
            System.out.println("queue " + ofQueue.get());
            System.out.println("stream " + ofStream.get());
        }
        System.out.println("done");
        System.exit(0);
    }

    /** The client does not try again by itself when the connection ends over which it looks a topic up. */
    private static Producer<String> producer(PulsarClient client, String topic) throws Exception {
        for (int attempt = 0;; attempt++) {
            try {
                return client.newProducer(Schema.string()).topic(topic).create();
            } catch (PulsarClientException failure) {
                if (attempt == 20) {
                    throw failure;
                }
                Thread.sleep(250);
            }
        }
    }

    private static int publish(Producer<String> producer, String topic) throws Exception {
        List<CompletableFuture<?>> sends = new ArrayList<>();
        int number = 1;
        for (; !stops; number++) {
            sends.add(producer.async().newMessage().key(topic + number % 5).value(topic + " " + number).send());
            Thread.sleep(5);
        }
        for (CompletableFuture<?> send : sends) {
            send.get();
        }
        return number;
    }

    /** Receives until all that was published is there, or 60 s have passed; says which came out of order. */
    private static int all(boolean isOrdered, Receives receives) throws Exception {
        Set<String> found = new HashSet<>();
        Map<String, Integer> newest = new HashMap<>();
        while (found.size() != PUBLISHED.get() && (PUBLISHED.get() < 0 || System.nanoTime() - since < LONG)) {
            Message<String> message = receives.next();
            if (message != null && found.add(message.value()) && isOrdered) {
                int number = Integer.parseInt(message.value().split(" ")[1]);
                Integer before = newest.put(message.key().get(), number);
                if (before != null && before > number) {
                    System.out.println("WRONG " + message.value() + " came after " + before);
                }
            }
        }
        return found.size();
    }
}

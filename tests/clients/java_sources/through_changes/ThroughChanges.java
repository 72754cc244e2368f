import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.CheckpointConsumer;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.config.ConnectionPolicy;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

/**
 * ThroughChanges URL TOPIC RATE: publishes RATE numbers a second under 20 keys, and receives them by a queue consumer, two
 * stream consumers and a checkpoint consumer, while somebody changes the topic's segments.  It says "ready" when all of
 * these are there.  After a line on standard input it stops publishing, and says what each of them got, and how long the
 * longest send took, in ms: "published N", "queue N", "stream N", "checkpoint N", "longest N", "done".
 */
public class ThroughChanges {
    private static final Duration SHORT = Duration.ofMillis(100);
    private static final long LONG = Duration.ofSeconds(60).toNanos();
    private static final AtomicInteger PUBLISHED = new AtomicInteger();
    private static final AtomicLong LONGEST = new AtomicLong();
    private static volatile boolean stops = false;
    private static volatile long since = 0;


    public static void main(String[] said) throws Exception {
        ExecutorService threads = Executors.newCachedThreadPool();
        try (PulsarClient client = PulsarClient.builder().serviceUrl(said[0])
                        .connectionPolicy(ConnectionPolicy.builder().connectionsPerBroker(4).build()).build();
                Producer<String> producer = client.newProducer(Schema.string()).topic(said[1]).create();
                StreamConsumer<String> first = stream(client, said[1], "a");
                StreamConsumer<String> second = stream(client, said[1], "b");
                QueueConsumer<String> queue = client.newQueueConsumer(Schema.string()).topic(said[1])
                        .subscriptionName("queue").subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                        .subscribe();
                CheckpointConsumer<String> reader = client.newCheckpointConsumer(Schema.string()).topic(said[1])
                        .startPosition(Checkpoint.earliest()).create()) {
            Map<String, Integer> newest = new HashMap<>();
            Set<Integer> ofStream = new HashSet<>();
            List<Future<Integer>> found = List.of(
                    threads.submit(() -> all(new HashSet<>(), () -> {
                        Message<String> message = queue.receive(SHORT);
                        if (message != null) {
                            queue.acknowledge(message.id());
                        }
                        return message;
                    })),
                    threads.submit(() -> all(ofStream, () -> next(first, newest, ofStream))),
                    threads.submit(() -> all(ofStream, () -> next(second, newest, ofStream))),
                    threads.submit(() -> all(new HashSet<>(), () -> reader.receive(SHORT))));
            Future<Integer> published = threads.submit(() -> publish(producer, Integer.parseInt(said[2])));
            System.out.println("ready");
            System.in.read();
            stops = true;
            System.out.println("published " + published.get());
            since = System.nanoTime();
            System.out.println("queue " + found.get(0).get());
            found.get(1).get();
            System.out.println("stream " + found.get(2).get());
            System.out.println("checkpoint " + found.get(3).get());
            System.out.println("longest " + LONGEST.get() / 1_000_000);
        }
        System.out.println("done");
        System.exit(0);
    }

    private static StreamConsumer<String> stream(PulsarClient client, String topic, String name) throws Exception {
        return client.newStreamConsumer(Schema.string()).topic(topic).subscriptionName("stream").consumerName(name)
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe();
    }

    /** Publishes without waiting for receipts; returns how many succeeded, which is all, or fails. */
    private static int publish(Producer<String> producer, int rate) throws Exception {
        List<CompletableFuture<?>> sends = new java.util.ArrayList<>();
        long began = System.nanoTime();
        for (int number = 0; !stops; number++) {
            long wait = number * 1_000_000_000L / rate - (System.nanoTime() - began);
            if (wait > 1_000_000) {
                Thread.sleep(wait / 1_000_000);
            }
            long sent = System.nanoTime();
            sends.add(producer.async().newMessage().key("k" + number % 20).value("" + number).send().thenRun(
                    () -> LONGEST.accumulateAndGet(System.nanoTime() - sent, Math::max)));
        }
        for (CompletableFuture<?> send : sends) {
            send.get();
        }
        PUBLISHED.set(sends.size());
        return sends.size();
    }

    /** Takes a message of one of the stream consumers, and looks whether its key's messages come in order. */
    private static Message<String> next(StreamConsumer<String> consumer, Map<String, Integer> newest, Set<Integer> known)
            throws Exception {
        Message<String> message = consumer.receive(SHORT);
        if (message != null) {
            int number = Integer.parseInt(message.value());
            synchronized (known) {
                if (!known.contains(number)) {
                    Integer before = newest.put(message.key().get(), number);
                    if (before != null && before > number) {
                        System.out.println("WRONG " + number + " came after " + before);
                    }
                    known.add(number);
                }
            }
            consumer.acknowledgeCumulative(message.id());
        }
        return message;
    }

    /** Returns how many different numbers came until all that were published have come. */
    private static int all(Set<Integer> received, Callable<Message<String>> receiver) throws Exception {
        while (true) {
            Message<String> message = receiver.call();
            synchronized (received) {
                if (message != null) {
                    received.add(Integer.parseInt(message.value()));
                }
                if (since != 0 && (received.size() >= PUBLISHED.get() || System.nanoTime() - since > LONG)) {
                    return received.size();
                }
            }
        }
    }
}

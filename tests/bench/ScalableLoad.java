import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

/**
 * ScalableLoad URL TOPIC RATE SIZE: publishes messages of SIZE bytes under 1,000 keys with the client of Pulsar 5, RATE a second, or
 * as fast as it goes for 0, and receives them with a stream consumer.  For each line on standard input it says what happened since
 * the one before: seconds, messages with a receipt, messages received, 99th percentile and longest of the time to the
 * receipt in ms.
 */
public class ScalableLoad {
    private static final int ON_THE_WAY = 50_000, KEYS = 1_000;
    private static final Semaphore FREE = new Semaphore(ON_THE_WAY); // what is published waits for what is received
    private static final AtomicLong PUBLISHED = new AtomicLong(), RECEIVED = new AtomicLong();
    private static final AtomicReference<Throwable> FAILURE = new AtomicReference<>();
    private static long[] waits = new long[1 << 22];
    private static int waited = 0;

    public static void main(String[] said) throws Exception {
        int rate = Integer.parseInt(said[2]), size = Integer.parseInt(said[3]);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(said[0]).build();
                Producer<byte[]> producer = client.newProducer(Schema.bytes()).topic(said[1]).create();
                StreamConsumer<byte[]> consumer = client.newStreamConsumer(Schema.bytes()).topic(said[1]).subscriptionName("load")
                        .consumerName("load").subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe()) {
            begin(() -> publish(producer, rate, new byte[size]));
            begin(() -> {
                while (true) {
                    Message<byte[]> message = consumer.receive();
                    FREE.release();
                    if (RECEIVED.incrementAndGet() % 1_000 == 0) {
                        consumer.acknowledgeCumulative(message.id());
                    }
                }
            });
            System.out.println("ready");
            long began = System.nanoTime(), published = 0, received = 0;
            while (System.in.read() == '\n') {
                long now = System.nanoTime(), out = PUBLISHED.get(), in = RECEIVED.get();
                if (FAILURE.get() != null) {
                    throw new Exception(FAILURE.get());
                }
                long[] taken = taken();
                System.out.printf("{\"seconds\": %.3f, \"published\": %d, \"received\": %d, \"p99\": %.1f, \"longest\": %.1f}%n",
                        (now - began) / 1e9, out - published, in - received,
                        taken.length == 0 ? 0 : taken[(int) (taken.length * 0.99)] / 1e6,
                        taken.length == 0 ? 0 : taken[taken.length - 1] / 1e6);
                began = now;
                published = out;
                received = in;
            }
        }
        System.exit(0);
    }

    private interface Work {
        void run() throws Exception;
    }

    private static void begin(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Throwable failure) {
                FAILURE.compareAndSet(null, failure);
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private static void publish(Producer<byte[]> producer, int rate, byte[] payload) throws Exception {
        List<String> keys = new ArrayList<>();
        for (int key = 0; key < KEYS; key++) {
            keys.add("key-" + key);
        }
        long began = System.nanoTime();
        for (long number = 0; ; number++) {
            if (rate > 0) {
                long early = began + number * 1_000_000_000L / rate - System.nanoTime();
                if (early > 500_000) {
                    Thread.sleep(early / 1_000_000 + 1);
                }
            }
            FREE.acquire();
            long sent = System.nanoTime();
            producer.async().newMessage().key(keys.get((int) (number % KEYS))).value(payload).send().whenComplete((id, failure) -> {
                if (failure != null) {
                    FAILURE.compareAndSet(null, failure);
                    return;
                }
                PUBLISHED.incrementAndGet();
                keep(System.nanoTime() - sent);
            });
        }
    }

    private static synchronized void keep(long wait) {
        if (waited < waits.length) {
            waits[waited++] = wait;
        }
    }

    private static synchronized long[] taken() {
        long[] sorted = Arrays.copyOf(waits, waited);
        waited = 0;
        Arrays.sort(sorted);
        return sorted;
    }
}

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

/**
 * Seeking URL TOPIC: publishes messages 0 to 9 and, after a line, 10 to 19.  Each further line is a number of messages, which
 * a queue consumer and a new stream consumer read and acknowledge; 0 ends the program.  It says of both how many messages they got, how
 * many different ones, and the lowest; and "WRONG" if the stream consumer's messages of a key were out of order.
 */
public class Seeking {
    private static final int KEYS = 5;

    public static void main(String[] said) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        try (PulsarClient client = PulsarClient.builder().serviceUrl(said[0]).build();
                Producer<String> producer = client.newProducer(Schema.string()).topic(said[1]).create();
                QueueConsumer<String> queue = client.newQueueConsumer(Schema.string()).topic(said[1])
                        .subscriptionName("queue").subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                        .subscribe()) {
            for (int half = 0; half < 2; half++) {
                for (int number = 10 * half; number < 10 * half + 10; number++) {
                    producer.newMessage().key("k" + number % KEYS).value(Integer.toString(number)).send();
                }
                System.out.println("published");
                if (half == 0) {
                    lines.readLine();
                }
            }
            int expected;
            while ((expected = Integer.parseInt(lines.readLine())) > 0) {
                try (StreamConsumer<String> stream = client.newStreamConsumer(Schema.string()).topic(said[1])
                        .subscriptionName("stream").consumerName("a")
                        .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe()) {
                    System.out.println(all(expected, queue, null) + " " + all(expected, null, stream));
                }
            }
        }
        System.exit(0);
    }

    private static String all(int expected, QueueConsumer<String> queue, StreamConsumer<String> stream) throws Exception {
        List<Integer> found = new ArrayList<>();
        Map<Integer, Integer> newest = new HashMap<>();
        String verdict = "";
        while (true) {
            Duration patience = Duration.ofSeconds(found.size() < expected ? 20 : 1);
            Message<String> message = queue != null ? queue.receive(patience) : stream.receive(patience);
            if (message == null) {
                break;
            }
            int number = Integer.parseInt(message.value());
            found.add(number);
            if (queue != null) {
                queue.acknowledge(message.id());
            } else {
                stream.acknowledgeCumulative(message.id());
                Integer before = newest.put(number % KEYS, number);
                verdict = before != null && before >= number ? "WRONG" : verdict;
            }
        }
        found.sort(null);
        return found.size() + ":" + found.stream().distinct().count() + ":" + (found.isEmpty() ? "" : found.get(0)) + verdict;
    }
}

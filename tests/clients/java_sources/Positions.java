import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.ReaderBuilder;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

/**
 * Publishes "0", "1", ... "9", each its own key, in one batch, and prints a line for each consumer or reader: what it was given.
 * Positions URL TOPIC seek: a consumer seeks to message 5 and acknowledges what it is given; then another one of its subscription.
 * Positions URL TOPIC ranges: two readers, each with half of the hashes of keys; messages are not batched.
 * Positions URL TOPIC rollback: a reader of the last hour, and one of no time at all.
 */
public class Positions {
    private static final int MESSAGES = 10;

    public static void main(String[] said) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(said[0]).build()) {
            publish(client, said[1], !said[2].equals("ranges"));
            switch (said[2]) {
                case "seek" -> seek(client, said[1]);
                case "ranges" -> {
                    read(client.newReader().topic(said[1]).startMessageId(MessageId.earliest).keyHashRange(Range.of(0, 32_767)));
                    read(client.newReader().topic(said[1]).startMessageId(MessageId.earliest).keyHashRange(Range.of(32_768, 65_535)));
                }
                default -> {
                    read(client.newReader().topic(said[1]).startMessageFromRollbackDuration(1, TimeUnit.HOURS));
                    Thread.sleep(1_100); // the client asks in whole seconds
                    read(client.newReader().topic(said[1]).startMessageFromRollbackDuration(1, TimeUnit.SECONDS));
                }
            }
        }
    }

    private static void publish(PulsarClient client, String topic, boolean isBatched) throws Exception {
        List<CompletableFuture<MessageId>> receipts = new ArrayList<>();
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(isBatched).batchingMaxMessages(MESSAGES)
                .batchingMaxPublishDelay(1, TimeUnit.MINUTES).create()) {
            for (int number = 0; number < MESSAGES; number++) {
                receipts.add(producer.newMessage().key("" + number).value(("" + number).getBytes(StandardCharsets.UTF_8)).sendAsync());
            }
            for (CompletableFuture<MessageId> receipt : receipts) {
                receipt.get(30, TimeUnit.SECONDS);
            }
        }
    }

    /** The id is of a message that was received: only such an id has the size of its batch, without which a seek is to the batch. */
    private static MessageId idOf(PulsarClient client, String topic, int number) throws Exception {
        try (Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(MessageId.earliest).create()) {
            Message<byte[]> message = reader.readNext();
            for (int at = 0; at < number; at++) {
                message = reader.readNext();
            }
            return message.getMessageId();
        }
    }

    private static void seek(PulsarClient client, String topic) throws Exception {
        ConsumerBuilder<byte[]> builder = client.newConsumer().topic(topic).subscriptionName("seeks").enableBatchIndexAcknowledgment(true)
                .isAckReceiptEnabled(true).startMessageIdInclusive().acknowledgmentGroupTime(0, TimeUnit.SECONDS)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
        for (boolean isFirst : new boolean[] {true, false}) {
            try (Consumer<byte[]> consumer = builder.subscribe()) {
                if (isFirst) {
                    consumer.seek(idOf(client, topic, 5));
                }
                List<Message<byte[]>> given = new ArrayList<>();
                for (Message<byte[]> next = consumer.receive(5, TimeUnit.SECONDS); next != null; next = last(given) ? null
                        : consumer.receive(5, TimeUnit.SECONDS)) {
                    consumer.acknowledge(next);
                    given.add(next);
                }
                print(given);
            }
        }
    }

    private static boolean last(List<Message<byte[]>> given) {
        return new String(given.get(given.size() - 1).getData(), StandardCharsets.UTF_8).equals("" + (MESSAGES - 1));
    }

    private static void read(ReaderBuilder<byte[]> builder) throws Exception {
        List<Message<byte[]>> given = new ArrayList<>();
        try (Reader<byte[]> reader = builder.create()) {
            for (Message<byte[]> next = reader.readNext(2, TimeUnit.SECONDS); next != null; next = reader.readNext(2, TimeUnit.SECONDS)) {
                given.add(next);
            }
        }
        print(given);
    }

    private static void print(List<Message<byte[]>> given) {
        System.out.println(given.stream().map(message -> new String(message.getData(), StandardCharsets.UTF_8))
                .collect(Collectors.joining(" ")));
    }
}

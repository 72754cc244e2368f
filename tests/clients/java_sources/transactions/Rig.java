import java.io.BufferedReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Objects;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.api.transaction.Transaction;

/** A client of one scenario, and short words for what scenarios do. Closing it closes the client. */
final class Rig implements AutoCloseable {
    static final int WAIT_S = 60;          // for what has to come
    static final int SILENCE_MS = 300;     // for what must not come
    static final SubscriptionType[] TYPES = SubscriptionType.values();

    final String url;
    final PulsarClient client;
    private final String httpUrl;
    private final BufferedReader answers;
    private final HttpClient http = HttpClient.newHttpClient();

    Rig(String url, String httpUrl, BufferedReader answers) throws PulsarClientException {
        this.url = url;
        this.httpUrl = httpUrl;
        this.answers = answers;
        client = newClient();
    }

    PulsarClient newClient() throws PulsarClientException {
        return PulsarClient.builder().serviceUrl(url).enableTransaction(true).build();
    }

    @Override
    public void close() {
        client.closeAsync();      // its threads linger for seconds
    }

    // Topics and administration

    static String topic() {
        return "persistent://public/default/transactions-" + UUID.randomUUID().toString().substring(0, 13);
    }

    String partitioned(int partitions) throws Exception {
        String topic = topic();
        equal(204, request("PUT", path(topic) + "/partitions", "" + partitions).statusCode());
        return topic;
    }

    static String path(String topic) {
        return "/admin/v2/" + topic.replace("://", "/");
    }

    HttpResponse<String> request(String method, String path, String body) throws Exception {
        HttpRequest.BodyPublisher publisher = body == null ? HttpRequest.BodyPublishers.noBody()
                : HttpRequest.BodyPublishers.ofString(body);
        return http.send(HttpRequest.newBuilder(URI.create(httpUrl + path)).method(method, publisher)
                .header("Content-Type", "application/json").build(), HttpResponse.BodyHandlers.ofString());
    }

    /** Ask whoever started this program for something that a client cannot do, and wait until it was done. */
    void please(String what) throws Exception {
        System.out.println("please " + what);
        answers.readLine();
    }

    // Producers, consumers, transactions

    Producer<String> producer(String topic, boolean isBatched) throws PulsarClientException {
        return producers(topic).enableBatching(isBatched).create();
    }

    ProducerBuilder<String> producers(String topic) {
        return client.newProducer(Schema.STRING).topic(topic).batchingMaxPublishDelay(5, TimeUnit.MILLISECONDS)
                .blockIfQueueFull(true);
    }

    Consumer<String> consumer(String topic, SubscriptionType type) throws PulsarClientException {
        return consumers(topic, type).subscribe();
    }

    ConsumerBuilder<String> consumers(String topic, SubscriptionType type) {
        return client.newConsumer(Schema.STRING).topic(topic).subscriptionName("sub").subscriptionType(type)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).isAckReceiptEnabled(true)
                .enableBatchIndexAcknowledgment(true).acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS);
    }

    Transaction begin() throws Exception {
        return begin(300_000);
    }

    Transaction begin(long milliseconds) throws Exception {
        return client.newTransaction().withTransactionTimeout(milliseconds, TimeUnit.MILLISECONDS).build()
                .get(WAIT_S, TimeUnit.SECONDS);
    }

    static <T> T done(CompletableFuture<T> future) throws Exception {
        return future.get(WAIT_S, TimeUnit.SECONDS);
    }

    /** How long the transactions of a scenario live, and whether what has to be in them got there in time. */
    static final class Life {
        private static final int LONGEST_MS = 60_000;
        final long milliseconds;
        private final long end;
        private boolean wasInTime;

        private Life(long milliseconds) {
            this.milliseconds = milliseconds;
            this.end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(milliseconds);
        }

        private boolean isOver() {
            return System.nanoTime() > end;
        }

        /** Called behind what has to happen while the transaction lives. */
        void inTime() {
            check(!isOver(), "a transaction of " + milliseconds + " ms still lives");
            wasInTime = true;
        }
    }

    interface Lived {
        void run(Life life) throws Exception;
    }

    /** Run what needs transactions that time out: with longer lives where this machine was too slow for a short one. */
    static void withLife(long milliseconds, Lived scenario) throws Exception {
        Life life = new Life(milliseconds);
        try {
            scenario.run(life);
        } catch (Exception | AssertionError failure) {
            if (life.wasInTime || !life.isOver() || milliseconds > Life.LONGEST_MS) {
                throw failure;
            }
            withLife(4 * milliseconds, scenario);
        }
    }

    /** Publish "PREFIX0", "PREFIX1", ... in a transaction, or without one if it is null; return them. */
    static List<String> publish(Producer<String> producer, Transaction transaction, String prefix, int count)
            throws Exception {
        List<String> values = IntStream.range(0, count).mapToObj(number -> prefix + number).toList();
        List<CompletableFuture<MessageId>> receipts = new ArrayList<>();
        for (String value : values) {
            receipts.add(message(producer, transaction).value(value).sendAsync());
        }
        producer.flushAsync();
        for (CompletableFuture<MessageId> receipt : receipts) {
            done(receipt);
        }
        return values;
    }

    static TypedMessageBuilder<String> message(Producer<String> producer, Transaction transaction) {
        return transaction == null ? producer.newMessage() : producer.newMessage(transaction);
    }

    /** Publish "PREFIX0", "PREFIX1", ... as one batch to a topic without partitions. */
    List<String> publishBatch(String topic, Transaction transaction, String prefix, int count) throws Exception {
        try (Producer<String> producer = producers(topic).batchingMaxMessages(count)
                .batchingMaxPublishDelay(1, TimeUnit.MINUTES).create()) {
            return publish(producer, transaction, prefix, count);
        }
    }

    static List<Message<String>> receive(Consumer<String> consumer, int count) throws PulsarClientException {
        List<Message<String>> received = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            Message<String> message = consumer.receive(WAIT_S, TimeUnit.SECONDS);
            if (message == null) {
                throw new AssertionError(count + " messages expected, only these came: " + values(received));
            }
            received.add(message);
        }
        return received;
    }

    static List<String> values(List<Message<String>> messages) {
        return messages.stream().map(Message::getValue).toList();
    }

    static void acknowledge(Consumer<String> consumer, List<Message<String>> messages, Transaction transaction)
            throws Exception {
        for (Message<String> message : messages) {
            done(consumer.acknowledgeAsync(message.getMessageId(), transaction));
        }
    }

    // What is expected

    /** Exactly these values come, in any order, and nothing else. */
    static List<Message<String>> expect(Consumer<String> consumer, Collection<String> values) throws Exception {
        List<Message<String>> received = receive(consumer, values.size());
        equal(sorted(values), sorted(values(received)));
        expectNothing(consumer);
        return received;
    }

    static void expectNothing(Consumer<String> consumer) throws Exception {
        Message<String> message = consumer.receive(SILENCE_MS, TimeUnit.MILLISECONDS);
        if (message != null) {
            throw new AssertionError(message.getValue() + " " + message.getMessageId() + " was not expected");
        }
    }

    static List<String> sorted(Collection<String> values) {
        List<String> copy = new ArrayList<>(values);
        Collections.sort(copy);
        return copy;
    }

    static void equal(Object expected, Object found) {
        if (!Objects.equals(expected, found)) {
            throw new AssertionError("expected " + expected + ", found " + found);
        }
    }

    static void check(boolean isTrue, String what) {
        equal(what + ": true", what + ": " + isTrue);
    }

    static void eventually(Callable<Boolean> condition, String what) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_S);
        while (!condition.call()) {
            check(System.nanoTime() < end, what);
            TimeUnit.MILLISECONDS.sleep(20);
        }
    }

    /** Return the innermost cause of a failure as a short name; "success" without one. */
    static String outcome(CompletableFuture<?> future) throws Exception {
        try {
            done(future);
            return "success";
        } catch (ExecutionException failure) {
            Throwable cause = failure.getCause();
            while (cause instanceof CompletionException && cause.getCause() != null) {
                cause = cause.getCause();
            }
            return cause.getClass().getSimpleName();
        }
    }
}

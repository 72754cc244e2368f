import java.io.PrintWriter;
import java.io.StringWriter;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.CheckpointConsumer;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.MessageId;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.PulsarClientException;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.QueueConsumerBuilder;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.Transaction;
import org.apache.pulsar.client.api.v5.async.AsyncMessageBuilder;
import org.apache.pulsar.client.api.v5.config.BackoffPolicy;
import org.apache.pulsar.client.api.v5.config.DeadLetterPolicy;
import org.apache.pulsar.client.api.v5.config.ProducerAccessMode;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.config.TransactionPolicy;
import org.apache.pulsar.client.api.v5.schema.Schema;
import org.apache.pulsar.client.impl.Murmur3Hash32;

/**
 * V5 URL HTTP_URL PREFIX: runs each scenario with the client of Pulsar 5, and prints "ok NAME" or "failed NAME TRACE" for each.
 *
 * A scenario's topics are PREFIX-NAME, without partitions unless the caller has created them with three.
 */
public class V5 {
    interface Scenario {
        void run(PulsarClient client, String topic) throws Exception;
    }

    private static final int PARTITIONS = 3;
    private static final Duration LONG = Duration.ofSeconds(60);
    private static String httpUrl;
    private static final Duration NOTHING = Duration.ofMillis(700); // for messages that must not come

    public static void main(String[] said) throws Exception {
        httpUrl = said[1];
        Map<String, Scenario> all = new LinkedHashMap<>();
        all.put("plain", V5::plain);
        all.put("keys", V5::keys);
        all.put("exclusive", V5::exclusive);
        all.put("negative", V5::negative);
        all.put("dead", V5::dead);
        all.put("dlq", V5::dlq);
        all.put("checkpoint", V5::checkpoint);
        all.put("stream", V5::stream);
        all.put("streams", V5::streams);
        if (!isScalable(said[2])) {
            all.put("surplus", V5::surplus);
            all.put("grown", V5::grown);
        }
        all.put("transactions", V5::transactions);
        all.put("transacted", V5::transacted);
        all.put("scalable", V5::scalable);
        all.put("namespace", V5::namespace);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(said[0])
                .transactionPolicy(TransactionPolicy.builder().timeout(LONG).build()).build()) {
            for (Map.Entry<String, Scenario> one : all.entrySet()) {
                try {
                    one.getValue().run(client, said[2] + "-" + one.getKey());
                    System.out.println("ok " + one.getKey());
                } catch (Throwable failure) {
                    StringWriter trace = new StringWriter();
                    failure.printStackTrace(new PrintWriter(trace));
                    System.out.println("failed " + one.getKey() + " " + trace.toString().replace("\n", "\\n"));
                }
            }
            // The client's own 10 s for a registration that nobody answers must not be in any close().
            long began = System.nanoTime();
            StreamConsumer<String> last = subscribed(client, said[2] + "-last", "sub", "c");
            last.close();
            Producer<String> producer = producer(client, said[2] + "-last");
            producer.newMessage().value("x").send();
            producer.close();
            System.out.println("took closing " + TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - began));
        }
        System.exit(0);
    }

    private static void plain(PulsarClient client, String topic) throws Exception {
        try (QueueConsumer<String> consumer = queue(client, topic, "sub").subscribe();
                Producer<String> producer = producer(client, topic)) {
            publish(producer, 0, 200, null);
            Set<String> received = new TreeSet<>();
            while (received.size() < 200) {
                Message<String> message = next(consumer);
                received.add(message.value());
                consumer.acknowledge(message.id());
            }
            check(producer.topic().equals(isScalable(topic) ? topic : "topic://public/default/" + topic), producer.topic());
            check(consumer.receive(NOTHING) == null, "a message came twice");
        }
    }

    /** Messages with a key go to the partition that clients of Pulsar 4 choose, or to one segment. */
    private static void keys(PulsarClient client, String topic) throws Exception {
        try (QueueConsumer<String> consumer = queue(client, topic, "sub").subscribe();
                Producer<String> producer = producer(client, topic)) {
            publish(producer, 0, 300, 30);
            Map<String, String> places = new HashMap<>();
            for (int number = 0; number < 300; number++) {
                Message<String> message = next(consumer);
                consumer.acknowledge(message.id());
                int partition = Murmur3Hash32.getInstance().makeHash(message.key().get()) % PARTITIONS;
                String place = isScalable(topic) ? topic.replace("topic://", "segment://") + "/"
                        : topic + "-partition-" + partition;
                check(message.topic().contains(place), message.topic());
                String before = places.putIfAbsent(message.key().get(), message.topic());
                check(before == null || before.equals(message.topic()), message.key().get() + " went to two places");
            }
        }
    }

    private static void exclusive(PulsarClient client, String topic) throws Exception {
        try (Producer<String> first = client.newProducer(Schema.string()).topic(topic)
                .accessMode(ProducerAccessMode.EXCLUSIVE).create()) {
            first.newMessage().value("x").send();
            fails("ProducerBusy", () -> client.newProducer(Schema.string()).topic(topic)
                    .accessMode(ProducerAccessMode.EXCLUSIVE).create());
        }
    }

    private static void negative(PulsarClient client, String topic) throws Exception {
        try (QueueConsumer<String> consumer = queue(client, topic, "sub").negativeAckRedeliveryBackoff(soon()).subscribe();
                Producer<String> producer = producer(client, topic)) {
            producer.newMessage().value("x").send();
            Message<String> first = next(consumer);
            consumer.negativeAcknowledge(first.id());
            Message<String> again = next(consumer);
            check(again.value().equals("x") && again.redeliveryCount() == 1, "delivered " + again.redeliveryCount());
            consumer.acknowledge(again.id());
        }
    }

    private static void dead(PulsarClient client, String topic) throws Exception {
        dead(client, topic, "sub", topic + "-letters", DeadLetterPolicy.builder().maxRedeliverCount(1)
                .deadLetterTopic(topic + "-letters").build());
    }

    /** Without a name of its own, the dead letter topic is a scalable one, also of an ordinary topic, made on first use. */
    private static void dlq(PulsarClient client, String topic) throws Exception {
        String letters = (isScalable(topic) ? topic : "topic://public/default/" + topic) + "-DLQ";
        dead(client, topic, "sub", letters, DeadLetterPolicy.builder().maxRedeliverCount(1).build());
    }

    private static void dead(PulsarClient client, String topic, String subscription, String lettersTopic,
            DeadLetterPolicy policy) throws Exception {
        try (QueueConsumer<byte[]> letters = client.newQueueConsumer(Schema.bytes()).topic(lettersTopic)
                        .subscriptionName("sub").subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe();
                QueueConsumer<String> consumer = queue(client, topic, subscription).deadLetterPolicy(policy)
                        .negativeAckRedeliveryBackoff(soon()).subscribe();
                Producer<String> producer = producer(client, topic)) {
            producer.newMessage().value("poison").send();
            producer.newMessage().value("good").send();
            Message<byte[]> letter = null;
            while (letter == null) {
                Message<String> message = consumer.receive(Duration.ofMillis(200));
                if (message != null && message.value().equals("poison")) {
                    consumer.negativeAcknowledge(message.id());
                } else if (message != null) {
                    consumer.acknowledge(message.id());
                }
                letter = letters.receive(Duration.ofMillis(50));
            }
            check(new String(letter.value()).equals("poison"), new String(letter.value()));
            letters.acknowledge(letter.id());
        }
    }

    /** A checkpoint is taken after some messages, and another consumer begins there; so do one at the start and the end. */
    private static void checkpoint(PulsarClient client, String topic) throws Exception {
        try (Producer<String> producer = producer(client, topic)) {
            publish(producer, 0, 30, 7);
            Set<String> all = IntStream.range(0, 30).mapToObj(Integer::toString).collect(Collectors.toSet());
            byte[] taken;
            Set<String> before = new TreeSet<>();
            try (CheckpointConsumer<String> consumer = reader(client, topic, Checkpoint.earliest())) {
                for (int number = 0; number < 11; number++) {
                    before.add(next(consumer).value());
                }
                taken = consumer.checkpoint().toByteArray();
            }
            try (CheckpointConsumer<String> consumer = reader(client, topic, Checkpoint.fromByteArray(taken));
                    CheckpointConsumer<String> latest = reader(client, topic, Checkpoint.latest())) {
                Set<String> after = new TreeSet<>();
                for (int number = 11; number < 30; number++) {
                    after.add(next(consumer).value());
                }
                check(consumer.receive(NOTHING) == null && latest.receive(NOTHING) == null, "too many messages");
                after.addAll(before);
                check(after.equals(all), after.toString());
                producer.newMessage().key("k").value("new").send();
                check(next(latest).value().equals("new") && next(consumer).value().equals("new"), "not the new message");
            }
        }
    }

    private static void stream(PulsarClient client, String topic) throws Exception {
        // Everything is received before it is acknowledged: at times, one message in some thousands, the id of a message
        // covers others that this client has not handed out yet, and nobody gets them any more (Pulsar's broker as well).
        try (Producer<String> producer = producer(client, topic)) {
            publish(producer, 0, 150, 30);
            Orders orders = new Orders();
            MessageId last = null;
            try (StreamConsumer<String> consumer = subscribed(client, topic, "sub", "a")) {
                for (int number = 0; number < 150; number++) {
                    last = orders.add(next(consumer)).id();
                }
                consumer.acknowledgeCumulative(last);
            }
            publish(producer, 150, 300, 30);
            try (StreamConsumer<String> consumer = subscribed(client, topic, "sub", "b")) {
                for (int number = 150; number < 300; number++) {
                    last = orders.add(next(consumer)).id();
                }
                consumer.acknowledgeCumulative(last);
                check(consumer.receive(NOTHING) == null, "a message came twice");
            }
            check(orders.count == 300, "" + orders.count);
        }
    }

    /** A second consumer takes some of the partitions over, and gives them back. */
    private static void streams(PulsarClient client, String topic) throws Exception {
        try (Producer<String> producer = producer(client, topic);
                StreamConsumer<String> first = subscribed(client, topic, "sub", "a")) {
            Orders orders = new Orders();
            publish(producer, 0, 90, 30);
            drain(first, orders, 90);
            try (StreamConsumer<String> second = subscribed(client, topic, "sub", "b")) {
                Map<String, String> taken = new HashMap<>();
                publish(producer, 90, 390, 30);
                while (orders.count < 390) {
                    for (StreamConsumer<String> one : List.of(first, second)) {
                        Message<String> message = one.receive(Duration.ofMillis(50));
                        if (message != null) {
                            one.acknowledgeCumulative(orders.add(message).id());
                            String before = taken.putIfAbsent(message.key().get(), one.consumerName());
                            check(before == null || before.equals(one.consumerName()), "a key went to two consumers");
                        }
                    }
                }
                check(Set.copyOf(taken.values()).size() == 2, "one consumer had everything");
            }
            publish(producer, 390, 480, 30);
            drain(first, orders, 480);
            check(first.receive(NOTHING) == null, "a message came twice");
        }
    }

    /** A topic without partitions has one consumer at a time; another one waits, and takes over. */
    private static void surplus(PulsarClient client, String topic) throws Exception {
        try (Producer<String> producer = producer(client, topic);
                StreamConsumer<String> first = subscribed(client, topic, "sub", "a");
                StreamConsumer<String> second = subscribed(client, topic, "sub", "b")) {
            Orders orders = new Orders();
            publish(producer, 0, 20, 3);
            drain(first, orders, 20);
            check(second.receive(NOTHING) == null, "the second consumer got something");
            first.close();
            publish(producer, 20, 40, 3);
            drain(second, orders, 40);
        }
    }

    /** Partitions are added while clients are connected, which use them. */
    private static void grown(PulsarClient client, String topic) throws Exception {
        try (Producer<String> producer = producer(client, topic);
                StreamConsumer<String> first = subscribed(client, topic, "sub", "a");
                StreamConsumer<String> second = subscribed(client, topic, "sub", "b");
                QueueConsumer<String> queue = queue(client, topic, "queue").subscribe()) {
            publish(producer, 0, 60, 30);
            rest("POST", "persistent/public/default/" + topic + "/partitions", "5");
            Set<String> used = new TreeSet<>();
            Set<String> received = new TreeSet<>();
            int count = 60;
            while (used.size() < 5) {
                publish(producer, count, count + 30, 30);
                count += 30;
                for (Message<String> message; (message = queue.receive(Duration.ofMillis(200))) != null;) {
                    used.add(message.topic());
                    queue.acknowledge(message.id());
                }
            }
            while (received.size() < count) {
                for (StreamConsumer<String> one : List.of(first, second)) {
                    Message<String> message = one.receive(Duration.ofMillis(50));
                    if (message != null) {
                        check(received.add(message.value()), message.value() + " came twice");
                        one.acknowledgeCumulative(message.id());
                    }
                }
            }
        }
    }

    /** What is committed comes, what is aborted does not, and the topic goes on. */
    private static void transactions(PulsarClient client, String topic) throws Exception {
        try (Producer<String> producer = producer(client, topic);
                Producer<String> other = producer(client, topic + "-other");
                QueueConsumer<String> consumer = queue(client, topic, "sub").subscribe();
                QueueConsumer<String> others = queue(client, topic + "-other", "sub").subscribe()) {
            for (String round : List.of("1", "2", "3", "4", "5")) {
                Transaction aborted = client.newTransaction();
                producer.newMessage().key("k").value("aborted" + round).transaction(aborted).send();
                aborted.abort();
                Transaction transaction = client.newTransaction();
                producer.newMessage().key("k").value("a" + round).transaction(transaction).send();
                producer.newMessage().key("l").value("b" + round).transaction(transaction).send();
                other.newMessage().value("c" + round).transaction(transaction).send();
                check(consumer.receive(NOTHING) == null && others.receive(NOTHING) == null, "it came before the commit");
                transaction.commit();
                Set<String> received = new TreeSet<>();
                for (int number = 0; number < 2; number++) {
                    Message<String> message = next(consumer);
                    received.add(message.value());
                    consumer.acknowledge(message.id());
                }
                Message<String> third = next(others);
                others.acknowledge(third.id());
                received.add(third.value());
                check(received.equals(Set.of("a" + round, "b" + round, "c" + round)), received.toString());
            }
            producer.newMessage().key("k").value("plain").send();
            Message<String> plain = next(consumer);
            check(plain.value().equals("plain"), plain.value());
            consumer.acknowledge(plain.id());
        }
    }

    /** Acknowledgements in transactions, one by one and cumulative. */
    private static void transacted(PulsarClient client, String topic) throws Exception {
        try (Producer<String> producer = producer(client, topic)) {
            publish(producer, 0, 30, 7);
            try (QueueConsumer<String> consumer = queue(client, topic, "sub").subscribe()) {
                Transaction aborted = client.newTransaction();
                consumer.acknowledge(next(consumer).id(), aborted);
                aborted.abort();
                Transaction transaction = client.newTransaction();
                Set<String> received = new TreeSet<>();
                while (received.size() < 30) {
                    Message<String> message = next(consumer);
                    received.add(message.value());
                    consumer.acknowledge(message.id(), transaction);
                }
                transaction.commit();
            }
            try (StreamConsumer<String> consumer = subscribed(client, topic, "cumulative", "a")) {
                Transaction transaction = client.newTransaction();
                MessageId last = null;
                for (int number = 0; number < 30; number++) {
                    last = next(consumer).id();
                }
                consumer.acknowledgeCumulative(last, transaction);
                transaction.commit();
            }
        }
    }

    private static void scalable(PulsarClient client, String topic) throws Exception {
        named(client, isScalable(topic) ? topic : "topic://public/default/" + topic);
    }

    /**
     * Consumers of a namespace, and of its topics with a property, get the messages of topics that are there, that are
     * created, deleted and created again.
     */
    private static void namespace(PulsarClient client, String topic) throws Exception {
        String namespace = "public/" + topic.substring(topic.lastIndexOf('/') + 1);
        rest("PUT", "namespaces/" + namespace, "");
        rest("PUT", "scalable/" + namespace + "/first?numInitialSegments=3", "{\"team\": \"a\"}");
        String[] topics = {"first", "second", "third", "first"};
        try (QueueConsumer<String> queue = client.newQueueConsumer(Schema.string()).namespace(namespace)
                        .subscriptionName("queue").subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe();
                StreamConsumer<String> stream = client.newStreamConsumer(Schema.string()).namespace(namespace)
                        .subscriptionName("stream").subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe();
                QueueConsumer<String> some = client.newQueueConsumer(Schema.string())
                        .namespace(namespace, Map.of("team", "a")).subscriptionName("some")
                        .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe()) {
            for (int number = 0; number < topics.length; number++) {
                String name = "topic://" + namespace + "/" + topics[number];
                if (number == 1) {      // the others are created by REST, this one by its producer
                    rest("PUT", "scalable/" + namespace + "/third", "");
                } else if (number == 3) {
                    rest("DELETE", "scalable/" + namespace + "/first", "");
                    rest("PUT", "scalable/" + namespace + "/first?numInitialSegments=2", "{\"team\": \"a\"}");
                }
                try (Producer<String> producer = producer(client, name)) {
                    producer.newMessage().key("k").value("" + number).send();
                }
                Message<String> queued = next(queue);
                Message<String> streamed = next(stream);
                check(queued.topic().equals(name) && streamed.topic().equals(name), queued.topic() + streamed.topic());
                check(queued.value().equals("" + number) && streamed.value().equals("" + number), queued.value());
                queue.acknowledge(queued.id());
                stream.acknowledgeCumulative(streamed.id());
                if (topics[number].equals("first")) {
                    Message<String> chosen = next(some);
                    check(chosen.topic().equals(name) && chosen.value().equals("" + number), chosen.topic());
                    some.acknowledge(chosen.id());
                }
            }
            rest("PUT", "scalable/" + namespace + "/second/properties", "{\"team\": \"a\"}");
            check(next(some).value().equals("1"), "not the message of the topic that has got the property");
            check(some.receive(NOTHING) == null && queue.receive(NOTHING) == null && stream.receive(NOTHING) == null,
                    "too many messages");
        }
    }

    private static void rest(String method, String path, String body) throws Exception {
        HttpResponse<String> answer = HttpClient.newHttpClient().send(HttpRequest.newBuilder(URI.create(
                httpUrl + "/admin/v2/" + path)).header("Content-Type", "application/json")
                .method(method, HttpRequest.BodyPublishers.ofString(body)).build(), HttpResponse.BodyHandlers.ofString());
        check(answer.statusCode() == 204, path + ": " + answer.body());
    }

    /** The name without the domain stands for the scalable topic, also for a stream consumer. */
    private static void named(PulsarClient client, String topic) throws Exception {
        String name = topic.substring(topic.lastIndexOf('/') + 1);
        try (Producer<String> producer = producer(client, topic); Producer<String> other = producer(client, name);
                QueueConsumer<String> consumer = queue(client, "persistent://public/default/" + name, "sub").subscribe();
                StreamConsumer<String> stream = subscribed(client, name, "stream", "a")) {
            producer.newMessage().key("k").value("1").send();
            other.newMessage().key("k").value("2").send();
            check(other.topic().equals(topic), other.topic());
            for (String value : List.of("1", "2")) {
                Message<String> message = next(consumer);
                check(message.value().equals(value) && message.topic().startsWith("segment://"), message.topic());
                consumer.acknowledge(message.id());
                Message<String> streamed = next(stream);
                check(streamed.value().equals(value), streamed.value());
                stream.acknowledgeCumulative(streamed.id());
            }
        }
    }

    // -- parts

    private static boolean isScalable(String topic) {
        return topic.startsWith("topic://");
    }

    private interface Failing {
        void run() throws Exception;
    }

    private static void fails(String why, Failing what) throws Exception {
        try {
            what.run();
        } catch (PulsarClientException expected) {
            StringWriter text = new StringWriter();
            expected.printStackTrace(new PrintWriter(text));
            check(text.toString().contains(why), text.toString());
            return;
        }
        throw new AssertionError("it has not failed: " + why);
    }

    private static void check(boolean isTrue, String what) {
        if (!isTrue) {
            throw new AssertionError(what);
        }
    }

    /** Messages that have come, each of a key behind the one before it. */
    private static class Orders {
        private final Map<String, Integer> newest = new HashMap<>();
        private int count;

        Message<String> add(Message<String> message) {
            int number = Integer.parseInt(message.value());
            Integer before = newest.put(message.key().get(), number);
            check(before == null || before < number, message.key().get() + ": " + number + " after " + before);
            count++;
            return message;
        }
    }

    private static BackoffPolicy soon() {
        return BackoffPolicy.exponential(Duration.ofMillis(100), Duration.ofMillis(200));
    }

    private static Producer<String> producer(PulsarClient client, String topic) throws Exception {
        return client.newProducer(Schema.string()).topic(topic).create();
    }

    private static QueueConsumerBuilder<String> queue(PulsarClient client, String topic, String subscription) {
        return client.newQueueConsumer(Schema.string()).topic(topic).subscriptionName(subscription)
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST);
    }

    private static StreamConsumer<String> subscribed(PulsarClient client, String topic, String subscription, String name)
            throws Exception {
        return client.newStreamConsumer(Schema.string()).topic(topic).subscriptionName(subscription).consumerName(name)
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe();
    }

    private static CheckpointConsumer<String> reader(PulsarClient client, String topic, Checkpoint start) throws Exception {
        return client.newCheckpointConsumer(Schema.string()).topic(topic).startPosition(start).create();
    }

    /** Publish numbers; keys: as many keys, null for none. */
    private static void publish(Producer<String> producer, int start, int stop, Integer keys) throws Exception {
        List<CompletableFuture<MessageId>> receipts = new ArrayList<>();
        for (int number = start; number < stop; number++) {
            AsyncMessageBuilder<String> message = producer.async().newMessage().value("" + number);
            receipts.add((keys == null ? message : message.key("k" + number % keys)).send());
        }
        for (CompletableFuture<MessageId> receipt : receipts) {
            receipt.get(LONG.toSeconds(), TimeUnit.SECONDS);
        }
    }

    private static void drain(StreamConsumer<String> consumer, Orders orders, int until) throws Exception {
        while (orders.count < until) {
            consumer.acknowledgeCumulative(orders.add(next(consumer)).id());
        }
    }

    private static Message<String> next(QueueConsumer<String> consumer) throws Exception {
        return came(consumer.receive(LONG));
    }

    private static Message<String> next(StreamConsumer<String> consumer) throws Exception {
        return came(consumer.receive(LONG));
    }

    private static Message<String> next(CheckpointConsumer<String> consumer) throws Exception {
        return came(consumer.receive(LONG));
    }

    private static Message<String> came(Message<String> message) {
        check(message != null, "no message has come");
        return message;
    }
}

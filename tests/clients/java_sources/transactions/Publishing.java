import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.api.transaction.Transaction;

/** Messages that are published in transactions come after a commit, and neither before it nor after an abort. */
final class Publishing {
    private static final int COUNT = 20;
    private static final int LARGE = 6 << 20;      // characters: more than a message may have, so it is cut into chunks

    static void add(Map<String, Scenarios.Scenario> all) {
        all.put("published-unbatched", rig -> kinds(rig, rig.producers(rig.partitioned(4)).enableBatching(false), "",
                Rig.TYPES));
        all.put("published-batched", rig -> kinds(rig, rig.producers(rig.partitioned(4)), "", Rig.TYPES));
        all.put("published-by-key-in-batches", rig -> kinds(rig, rig.producers(rig.partitioned(4))
                .batcherBuilder(BatcherBuilder.KEY_BASED), "", Rig.TYPES));
        all.put("published-compressed", rig -> {
            for (CompressionType type : CompressionType.values()) {
                kinds(rig, rig.producers(rig.partitioned(2)).compressionType(type), "compressible ".repeat(100),
                        SubscriptionType.Shared);
            }
        });
        all.put("published-in-chunks", rig -> chunks(rig));
        all.put("published-with-delays", rig -> delays(rig));
        all.put("published-with-keys", rig -> keys(rig));
        all.put("order-is-that-of-storing", rig -> order(rig));
        all.put("many-interleaved", rig -> interleaved(rig));
        all.put("several-topics", rig -> severalTopics(rig));
        all.put("first-use-of-a-topic", rig -> firstUse(rig));
        all.put("deduplicated", rig -> deduplicated(rig));
        all.put("deduplicated-after-an-abort", rig -> deduplicatedAfterAbort(rig));
        all.put("non-persistent-topic", rig -> nonPersistent(rig));
    }

    private static void kinds(Rig rig, ProducerBuilder<String> builder, String filler, SubscriptionType... types)
            throws Exception {
        for (SubscriptionType type : types) {
            try (Producer<String> producer = builder.clone().create();
                 Consumer<String> consumer = rig.consumers(producer.getTopic(), type)
                     .subscriptionName(type.name()).subscriptionInitialPosition(SubscriptionInitialPosition.Latest)
                     .subscribe()) {
                Transaction aborted = rig.begin();
                Transaction committed = rig.begin();
                List<String> values = new ArrayList<>();
                for (int round = 0; round < 3; round++) {
                    send(producer, aborted, filler + "aborted" + round + "-");
                    values.addAll(send(producer, committed, filler + "committed" + round + "-"));
                }
                Rig.expectNothing(consumer);
                Rig.done(aborted.abort());
                Rig.expectNothing(consumer);
                Rig.done(committed.commit());
                Rig.acknowledge(consumer, Rig.expect(consumer, values), null);
                Rig.equal(Transaction.State.COMMITTED, committed.getState());
                Rig.equal(Transaction.State.ABORTED, aborted.getState());
            }
        }
    }

    private static List<String> send(Producer<String> producer, Transaction transaction, String prefix)
            throws Exception {
        List<String> values = new ArrayList<>();
        for (int number = 0; number < COUNT; number++) {
            values.add(prefix + number);
            producer.newMessage(transaction).key("key" + number % 5).value(prefix + number).sendAsync();
        }
        producer.flushAsync();      // commit and abort wait for the receipts
        return values;
    }

    private static void chunks(Rig rig) throws Exception {
        try (Producer<String> producer = rig.producers(rig.partitioned(2)).enableBatching(false).enableChunking(true)
                .create(); Consumer<String> consumer = rig.consumer(producer.getTopic(), SubscriptionType.Shared)) {
            Transaction aborted = rig.begin();
            Transaction committed = rig.begin();
            for (int number = 0; number < 2; number++) {
                producer.newMessage(aborted).value("a".repeat(LARGE)).sendAsync();
                producer.newMessage(committed).value(("" + number).repeat(LARGE)).sendAsync();
            }
            Rig.done(aborted.abort());
            Rig.expectNothing(consumer);
            Rig.done(committed.commit());
            Rig.acknowledge(consumer, Rig.expect(consumer, List.of("0".repeat(LARGE), "1".repeat(LARGE))), null);
        }
    }

    private static void delays(Rig rig) throws Exception {
        String topic = rig.partitioned(2);
        long delay = 1_500;
        try (Producer<String> producer = rig.producer(topic, false);
             Consumer<String> shared = rig.consumer(topic, SubscriptionType.Shared);
             Consumer<String> failover = rig.consumers(topic, SubscriptionType.Failover).subscriptionName("at once")
                 .subscribe()) {
            Transaction early = rig.begin();
            Transaction late = rig.begin();
            Transaction aborted = rig.begin();
            List<String> values = new ArrayList<>();
            for (int number = 0; number < 6; number++) {
                values.add("delayed" + number);
                for (Transaction one : List.of(early, aborted)) {
                    producer.newMessage(one).value(values.get(number)).deliverAfter(delay, TimeUnit.MILLISECONDS)
                            .property("due", "" + (System.currentTimeMillis() + delay)).sendAsync();
                }
            }
            Rig.done(aborted.abort());
            Rig.done(early.commit());
            Rig.expect(failover, values);      // delays concern only Shared and Key_Shared subscriptions
            for (Message<String> message : Rig.expect(shared, values)) {
                Rig.check(System.currentTimeMillis() >= Long.parseLong(message.getProperty("due")), "came when due");
            }
            producer.newMessage(late).value("past").deliverAfter(50, TimeUnit.MILLISECONDS).send();
            Rig.expectNothing(shared);         // the delay is over, the transaction is not
            Rig.done(late.commit());
            Rig.expect(shared, List.of("past"));
        }
    }

    private static void keys(Rig rig) throws Exception {
        String topic = rig.partitioned(2);
        try (Producer<String> producer = rig.producer(topic, false);
             Consumer<String> one = rig.consumer(topic, SubscriptionType.Key_Shared);
             Consumer<String> two = rig.consumer(topic, SubscriptionType.Key_Shared)) {
            int keys = 16;
            for (int round = 0; round < 4; round++) {
                Transaction transaction = rig.begin();
                for (int key = 0; key < keys; key++) {
                    producer.newMessage(transaction).key("key" + key).value("" + round).send();
                }
                Rig.done(round % 2 == 0 ? transaction.commit() : transaction.abort());
            }
            Map<String, List<String>> received = new HashMap<>();
            for (int number = 0; number < 2 * keys; number++) {
                Message<String> message = null;
                for (int turn = 0; message == null; turn++) {
                    Rig.check(turn < 600, "all keys came, " + received);
                    message = (turn % 2 == 0 ? one : two).receive(50, TimeUnit.MILLISECONDS);
                }
                received.computeIfAbsent(message.getKey(), key -> new ArrayList<>()).add(message.getValue());
            }
            Rig.equal(keys, received.size());
            received.values().forEach(rounds -> Rig.equal(List.of("0", "2"), rounds));
            Rig.expectNothing(one);
            Rig.expectNothing(two);
        }
    }

    private static void order(Rig rig) throws Exception {
        String topic = Rig.topic();
        try (Producer<String> producer = rig.producer(topic, false);
             Consumer<String> consumer = rig.consumer(topic, SubscriptionType.Exclusive)) {
            producer.send("before");
            Transaction first = rig.begin();
            Transaction second = rig.begin();
            Transaction third = rig.begin();
            producer.newMessage(first).value("first").send();
            producer.send("plain");
            producer.newMessage(second).value("second").send();
            producer.newMessage(third).value("third").send();
            producer.newMessage(first).value("first again").send();
            producer.send("last");
            Rig.expect(consumer, List.of("before"));
            Rig.done(second.commit());
            Rig.done(third.abort());
            Rig.expectNothing(consumer);
            Rig.done(first.commit());
            Rig.equal(List.of("first", "plain", "second", "first again", "last"), Rig.values(Rig.receive(consumer, 5)));
            Rig.expectNothing(consumer);
        }
    }

    private static void interleaved(Rig rig) throws Exception {
        String topic = rig.partitioned(3);
        for (boolean isBatched : new boolean[] {true, false}) {
            try (Producer<String> producer = rig.producer(topic, isBatched);
                 Consumer<String> consumer = rig.consumer(topic, SubscriptionType.Exclusive)) {
                List<Transaction> both = List.of(rig.begin(), rig.begin());
                List<String> values = new ArrayList<>();
                for (int number = 0; number < 1_000; number++) {
                    values.add("" + number);
                    producer.newMessage(both.get(number % 5 == 0 ? 0 : 1)).value("" + number).sendAsync();
                }
                producer.flushAsync();
                Rig.expectNothing(consumer);
                Rig.done(both.get(0).commit());
                Rig.done(both.get(1).commit());
                for (Message<String> message : Rig.expect(consumer, values)) {
                    consumer.acknowledgeAsync(message);
                }
            }
        }
    }

    private static void severalTopics(Rig rig) throws Exception {
        List<Producer<String>> producers = new ArrayList<>();
        List<Consumer<String>> consumers = new ArrayList<>();
        for (int number = 0; number < 6; number++) {
            String topic = number % 2 == 0 ? Rig.topic() : rig.partitioned(3);
            consumers.add(rig.consumer(topic, SubscriptionType.Shared));
            producers.add(rig.producer(topic, number % 3 == 0));
        }
        for (boolean commits : new boolean[] {false, true, false, true}) {
            Transaction transaction = rig.begin();
            for (Producer<String> producer : producers) {
                Rig.publish(producer, transaction, commits ? "committed" : "aborted", 3);
            }
            Rig.done(commits ? transaction.commit() : transaction.abort());
            for (Consumer<String> consumer : consumers) {
                Rig.equal(commits ? List.of("committed0", "committed1", "committed2") : List.of(),
                        Rig.sorted(Rig.values(Rig.receive(consumer, commits ? 3 : 0))));
            }
        }
        for (Consumer<String> consumer : consumers) {
            Rig.expectNothing(consumer);
        }
    }

    private static void firstUse(Rig rig) throws Exception {
        String topic = Rig.topic();
        String other = Rig.topic();
        try (Producer<String> producer = rig.producer(topic, true);
             Producer<String> more = rig.producer(other, false)) {
            Transaction committed = rig.begin();
            Transaction aborted = rig.begin();
            producer.newMessage(committed).value("first of all").sendAsync();
            more.newMessage(aborted).value("first and aborted").sendAsync();
            Rig.done(committed.commit());
            Rig.done(aborted.abort());
            more.send("plain");
        }
        try (Consumer<String> consumer = rig.consumer(topic, SubscriptionType.Exclusive);
             Consumer<String> second = rig.consumer(other, SubscriptionType.Exclusive)) {
            Rig.expect(consumer, List.of("first of all"));
            Rig.expect(second, List.of("plain"));
        }
    }

    private static String deduplicatedTopic(Rig rig) throws Exception {
        String topic = Rig.topic();
        rig.producer(topic, false).close();
        Rig.eventually(() -> rig.request("POST", Rig.path(topic) + "/deduplicationEnabled", "true").statusCode() == 204,
                "deduplication was switched on");
        Rig.eventually(() -> rig.request("GET", Rig.path(topic) + "/deduplicationEnabled", null).body().equals("true"),
                "deduplication is on");
        return topic;
    }

    private static void number(Producer<String> producer, Transaction transaction, long sequence) throws Exception {
        Rig.done(Rig.message(producer, transaction).sequenceId(sequence).value("" + sequence).sendAsync());
    }

    private static void deduplicated(Rig rig) throws Exception {
        String topic = deduplicatedTopic(rig);
        ProducerBuilder<String> builder = rig.producers(topic).producerName("one").sendTimeout(0, TimeUnit.SECONDS)
                .enableBatching(false);
        try (Consumer<String> consumer = rig.consumer(topic, SubscriptionType.Exclusive)) {
            try (Producer<String> producer = builder.create()) {
                Transaction transaction = rig.begin();
                for (long sequence = 1; sequence <= 4; sequence++) {
                    number(producer, transaction, sequence);
                    number(producer, null, sequence);      // sent already: dropped
                }
                Rig.done(transaction.commit());
            }
            try (Producer<String> producer = builder.create()) {
                Rig.equal(4L, producer.getLastSequenceId());
                Transaction transaction = rig.begin();
                for (long sequence = 3; sequence <= 6; sequence++) {
                    number(producer, transaction, sequence);
                }
                Rig.done(transaction.commit());
            }
            Rig.equal(List.of("1", "2", "3", "4", "5", "6"), Rig.values(Rig.receive(consumer, 6)));
            Rig.expectNothing(consumer);
        }
    }

    private static void deduplicatedAfterAbort(Rig rig) throws Exception {
        String topic = deduplicatedTopic(rig);
        try (Consumer<String> consumer = rig.consumer(topic, SubscriptionType.Exclusive);
             Producer<String> producer = rig.producers(topic).producerName("one").sendTimeout(0, TimeUnit.SECONDS)
                 .enableBatching(false).create()) {
            for (boolean commits : new boolean[] {false, true}) {
                Transaction transaction = rig.begin();
                for (long sequence = 1; sequence <= 3; sequence++) {
                    number(producer, transaction, sequence);
                }
                Rig.done(commits ? transaction.commit() : transaction.abort());
            }
            Rig.equal(List.of("1", "2", "3"), Rig.values(Rig.receive(consumer, 3)));
            Rig.expectNothing(consumer);
        }
    }

    private static void nonPersistent(Rig rig) throws Exception {
        String topic = Rig.topic().replace("persistent", "non-persistent");
        try (Consumer<String> consumer = rig.consumer(topic, SubscriptionType.Shared);
             Producer<String> producer = rig.producers(topic).enableBatching(false).sendTimeout(5, TimeUnit.SECONDS)
                 .create()) {
            Transaction transaction = rig.begin();
            Rig.equal("NotAllowedException", Rig.outcome(producer.newMessage(transaction).value("never").sendAsync()));
            Rig.equal("TransactionHasOperationFailedException", Rig.outcome(transaction.commit()));
            producer.send("plain");
            Message<String> message = Rig.expect(consumer, List.of("plain")).get(0);
            Transaction other = rig.begin();
            Rig.equal("NotAllowedException", Rig.outcome(consumer.acknowledgeAsync(message.getMessageId(), other)));
            Rig.equal("success", Rig.outcome(other.abort()));
        }
    }
}

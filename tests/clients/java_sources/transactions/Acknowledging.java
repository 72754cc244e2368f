import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.api.transaction.Transaction;

/** Acknowledgements in transactions: hidden until the end, gone after a commit, delivered again after an abort. */
final class Acknowledging {
    private static final String CONFLICT = "TransactionConflictException";

    static void add(Map<String, Scenarios.Scenario> all) {
        for (SubscriptionType type : Rig.TYPES) {
            all.put("acknowledged-one-by-one-" + type, rig -> individual(rig, type));
        }
        for (SubscriptionType type : List.of(SubscriptionType.Exclusive, SubscriptionType.Failover)) {
            all.put("acknowledged-cumulatively-" + type, rig -> cumulative(rig, type));
        }
        for (SubscriptionType type : Rig.TYPES) {
            all.put("acknowledged-parts-of-a-batch-" + type, rig -> partsOfBatch(rig, type));
        }
        all.put("acknowledged-cumulatively-within-a-batch", rig -> cumulativeWithinBatch(rig));
        all.put("acknowledged-as-a-list", rig -> list(rig));
        all.put("acknowledged-chunks", rig -> chunks(rig));
        all.put("acknowledged-in-two-subscriptions", rig -> twoSubscriptions(rig));
        all.put("conflicts", rig -> conflicts(rig));
        all.put("conflicts-within-a-batch", rig -> conflictsWithinBatch(rig));
        all.put("a-failed-operation-aborts", rig -> failedOperation(rig));
        all.put("plain-acknowledgements-win", rig -> plainWins(rig));
        all.put("unacked-messages-are-counted", rig -> unacked(rig));
        all.put("consume-process-produce", rig -> pipelines(rig));
    }

    private static void individual(Rig rig, SubscriptionType type) throws Exception {
        for (boolean isBatched : new boolean[] {false, true}) {
            String topic = rig.partitioned(3);
            Consumer<String> consumer = rig.consumer(topic, type);
            Producer<String> producer = rig.producer(topic, isBatched);
            List<String> values = Rig.publish(producer, null, "plain", 30);
            for (int round = 0; round < 2; round++) {
                Transaction aborted = rig.begin();
                Rig.acknowledge(consumer, Rig.expect(consumer, values), aborted);
                consumer.redeliverUnacknowledgedMessages();
                Rig.expectNothing(consumer);
                Rig.done(aborted.abort());
            }
            Transaction committed = rig.begin();
            Rig.acknowledge(consumer, Rig.expect(consumer, values), committed);
            Rig.done(committed.commit());
            consumer.redeliverUnacknowledgedMessages();
            Rig.expectNothing(consumer);
            consumer.close();
            Consumer<String> next = rig.consumer(topic, type);
            Rig.expect(next, Rig.publish(producer, null, "next", 3));
            next.close();
        }
    }

    private static void cumulative(Rig rig, SubscriptionType type) throws Exception {
        for (boolean isBatched : new boolean[] {false, true}) {
            String topic = Rig.topic();
            Consumer<String> consumer = rig.consumer(topic, type);
            Producer<String> producer = rig.producer(topic, isBatched);
            for (int round = 0; round < 2; round++) {
                List<String> values = Rig.publish(producer, null, "round" + round + "-", 30);
                Transaction aborted = rig.begin();
                MessageId last = everyThird(consumer, values, aborted);
                Rig.equal(CONFLICT, Rig.outcome(consumer.acknowledgeCumulativeAsync(last, aborted)));
                Transaction other = rig.begin();
                Rig.equal(CONFLICT, Rig.outcome(consumer.acknowledgeCumulativeAsync(last, other)));
                Rig.done(other.abort());
                Rig.done(aborted.abort());
                consumer.redeliverUnacknowledgedMessages();
                Transaction committed = rig.begin();
                everyThird(consumer, values, committed);
                Rig.done(committed.commit());
                consumer.redeliverUnacknowledgedMessages();
                Rig.expectNothing(consumer);
            }
            consumer.close();
            rig.consumer(topic, type);
        }
    }

    /** Receive the values in order, acknowledge every third and the last one cumulatively; return the last id. */
    private static MessageId everyThird(Consumer<String> consumer, List<String> values, Transaction transaction)
            throws Exception {
        MessageId last = null;
        for (int number = 0; number < values.size(); number++) {
            Message<String> message = Rig.receive(consumer, 1).get(0);
            Rig.equal(values.get(number), message.getValue());
            if (number % 3 == 2 || number == values.size() - 1) {
                last = message.getMessageId();
                Rig.done(consumer.acknowledgeCumulativeAsync(last, transaction));
            }
        }
        return last;
    }

    /** Three thirds of a batch: one stays pending, one is aborted, one is acknowledged without a transaction. */
    private static void partsOfBatch(Rig rig, SubscriptionType type) throws Exception {
        String topic = Rig.topic();
        Consumer<String> consumer = rig.consumer(topic, type);
        List<String> values = rig.publishBatch(topic, null, "part", 9);
        List<Message<String>> messages = Rig.expect(consumer, values);
        Transaction first = rig.begin();
        Transaction second = rig.begin();
        Rig.acknowledge(consumer, messages.subList(0, 3), first);
        Rig.acknowledge(consumer, messages.subList(3, 6), second);
        for (Message<String> message : messages.subList(6, 9)) {
            Rig.done(consumer.acknowledgeAsync(message));
        }
        Rig.expectNothing(consumer);
        Rig.done(second.abort());
        Rig.expect(consumer, values.subList(3, 6));
        consumer.close();
        consumer = rig.consumer(topic, type);
        Rig.expect(consumer, values.subList(3, 6));
        Rig.done(first.abort());
        messages = Rig.expect(consumer, values.subList(0, 6));      // the batch comes again with all that is left
        Transaction third = rig.begin();
        Rig.acknowledge(consumer, messages, third);
        Rig.done(third.commit());
        consumer.close();
        consumer = rig.consumer(topic, type);
        Rig.expect(consumer, rig.publishBatch(topic, null, "next", 2));
    }

    private static void cumulativeWithinBatch(Rig rig) throws Exception {
        for (boolean commits : new boolean[] {false, true}) {
            String topic = Rig.topic();
            List<String> values;
            try (Consumer<String> consumer = rig.consumer(topic, SubscriptionType.Exclusive)) {
                values = rig.publishBatch(topic, null, "value", 6);
                List<Message<String>> messages = Rig.receive(consumer, 4);
                Transaction transaction = rig.begin();
                Rig.done(consumer.acknowledgeCumulativeAsync(messages.get(3).getMessageId(), transaction));
                Rig.done(commits ? transaction.commit() : transaction.abort());
            }
            try (Consumer<String> consumer = rig.consumer(topic, SubscriptionType.Exclusive)) {
                Rig.expect(consumer, values.subList(commits ? 4 : 0, 6));
            }
        }
    }

    private static void list(Rig rig) throws Exception {
        String topic = rig.partitioned(2);
        BatchReceivePolicy ten = BatchReceivePolicy.builder().maxNumMessages(10).timeout(10, TimeUnit.SECONDS).build();
        try (Consumer<String> consumer = rig.consumers(topic, SubscriptionType.Shared).batchReceivePolicy(ten)
                .subscribe(); Producer<String> producer = rig.producer(topic, false)) {
            List<String> values = Rig.publish(producer, null, "value", 10);
            Transaction transaction = rig.begin();
            Messages<String> messages = consumer.batchReceive();
            Rig.equal(10, messages.size());
            Rig.done(consumer.acknowledgeAsync(messages, transaction));
            Rig.done(transaction.abort());
            Rig.expect(consumer, values);
        }
    }

    private static void chunks(Rig rig) throws Exception {
        String topic = rig.partitioned(2);
        String large = "c".repeat(11 << 20);
        try (Consumer<String> consumer = rig.consumer(topic, SubscriptionType.Shared);
             Producer<String> producer = rig.producers(topic).enableBatching(false).enableChunking(true).create()) {
            producer.send(large);
            Transaction aborted = rig.begin();
            Rig.acknowledge(consumer, Rig.expect(consumer, List.of(large)), aborted);
            consumer.redeliverUnacknowledgedMessages();
            Rig.expectNothing(consumer);
            Rig.done(aborted.abort());
            Transaction committed = rig.begin();
            Rig.acknowledge(consumer, Rig.expect(consumer, List.of(large)), committed);
            Rig.done(committed.commit());
            consumer.redeliverUnacknowledgedMessages();
            Rig.expectNothing(consumer);
        }
    }

    private static void twoSubscriptions(Rig rig) throws Exception {
        String topic = rig.partitioned(2);
        Producer<String> producer = rig.producer(topic, false);
        Consumer<String> one = rig.consumer(topic, SubscriptionType.Shared);
        Consumer<String> two = rig.consumers(topic, SubscriptionType.Failover).subscriptionName("two").subscribe();
        List<String> values = Rig.publish(producer, null, "value", 6);
        for (boolean commits : new boolean[] {false, true}) {
            Transaction transaction = rig.begin();
            Rig.acknowledge(one, Rig.expect(one, values), transaction);
            Rig.acknowledge(two, Rig.expect(two, values), transaction);
            Rig.done(commits ? transaction.commit() : transaction.abort());
        }
        one.redeliverUnacknowledgedMessages();
        two.redeliverUnacknowledgedMessages();
        Rig.expectNothing(one);
        Rig.expectNothing(two);
    }

    private static void conflicts(Rig rig) throws Exception {
        String topic = rig.partitioned(2);
        Producer<String> producer = rig.producer(topic, false);
        Consumer<String> consumer = rig.consumer(topic, SubscriptionType.Shared);
        Rig.publish(producer, null, "value", 3);
        List<Message<String>> messages = Rig.receive(consumer, 3);
        MessageId id = messages.get(0).getMessageId();
        Transaction first = rig.begin();
        Transaction second = rig.begin();
        Transaction third = rig.begin();
        Rig.done(consumer.acknowledgeAsync(id, first));
        Rig.equal(CONFLICT, Rig.outcome(consumer.acknowledgeAsync(id, second)));
        Rig.equal(CONFLICT, Rig.outcome(consumer.acknowledgeAsync(id, first)));
        Rig.done(second.abort());
        Rig.equal("TransactionHasOperationFailedException", Rig.outcome(first.commit()));
        Rig.equal(Transaction.State.ABORTED, first.getState());
        Rig.equal(id, Rig.receive(consumer, 1).get(0).getMessageId());
        Rig.done(consumer.acknowledgeAsync(id, third));
        Rig.done(third.commit());
        Transaction late = rig.begin();
        Rig.equal(CONFLICT, Rig.outcome(consumer.acknowledgeAsync(id, late)));
        Rig.done(consumer.acknowledgeAsync(messages.get(1)));
        Rig.equal(CONFLICT, Rig.outcome(consumer.acknowledgeAsync(messages.get(1).getMessageId(), late)));
        Rig.done(late.abort());
    }

    private static void conflictsWithinBatch(Rig rig) throws Exception {
        String topic = Rig.topic();
        Consumer<String> consumer = rig.consumer(topic, SubscriptionType.Shared);
        List<String> values = rig.publishBatch(topic, null, "value", 4);
        List<Message<String>> messages = Rig.receive(consumer, 4);
        Transaction first = rig.begin();
        Transaction second = rig.begin();
        Rig.acknowledge(consumer, messages.subList(0, 2), first);
        Rig.equal(CONFLICT, Rig.outcome(consumer.acknowledgeAsync(messages.get(1).getMessageId(), second)));
        Rig.acknowledge(consumer, messages.subList(2, 3), second);
        Rig.equal("TransactionHasOperationFailedException", Rig.outcome(second.commit()));
        Rig.equal(values.subList(2, 3), Rig.values(Rig.receive(consumer, 1)));
        Rig.done(first.commit());
        consumer.close();
        consumer = rig.consumer(topic, SubscriptionType.Shared);
        Rig.expect(consumer, values.subList(2, 4));
    }

    private static void failedOperation(Rig rig) throws Exception {
        String topic = rig.partitioned(2);
        String results = rig.partitioned(2);
        Producer<String> inputs = rig.producer(topic, false);
        Producer<String> outputs = rig.producer(results, true);
        Consumer<String> consumer = rig.consumer(topic, SubscriptionType.Shared);
        Consumer<String> readers = rig.consumer(results, SubscriptionType.Shared);
        inputs.send("value");
        MessageId id = Rig.receive(consumer, 1).get(0).getMessageId();
        Transaction winner = rig.begin();
        Transaction loser = rig.begin();
        for (Transaction one : List.of(winner, loser)) {
            outputs.newMessage(one).value(one == winner ? "winner" : "loser").sendAsync();
            CompletableFuture<Void> acknowledged = consumer.acknowledgeAsync(id, one);
            Rig.equal(one == winner ? "success" : CONFLICT, Rig.outcome(acknowledged));
        }
        Rig.equal("TransactionHasOperationFailedException", Rig.outcome(loser.commit()));
        Rig.done(winner.commit());
        Rig.expect(readers, List.of("winner"));
        Rig.equal(Transaction.State.ABORTED, loser.getState());
    }

    private static void plainWins(Rig rig) throws Exception {
        String topic = rig.partitioned(2);
        Producer<String> producer = rig.producer(topic, false);
        Consumer<String> consumer = rig.consumer(topic, SubscriptionType.Shared);
        List<Message<String>> messages = Rig.expect(consumer, Rig.publish(producer, null, "value", 4));
        Transaction transaction = rig.begin();
        Rig.acknowledge(consumer, messages, transaction);
        Rig.done(consumer.acknowledgeAsync(messages.get(2)));
        Rig.done(transaction.abort());
        messages = new ArrayList<>(messages);
        messages.remove(2);
        Rig.expect(consumer, Rig.values(messages));
    }

    private static void unacked(Rig rig) throws Exception {
        for (boolean isBatched : new boolean[] {false, true}) {
            String topic = Rig.topic();
            Consumer<String> consumer = rig.consumer(topic, SubscriptionType.Shared);
            if (isBatched) {
                rig.publishBatch(topic, null, "value", 20);
            } else {
                Rig.publish(rig.producer(topic, false), null, "value", 20);
            }
            List<Message<String>> messages = Rig.receive(consumer, 20);
            Transaction transaction = rig.begin();
            Rig.acknowledge(consumer, messages.subList(0, 10), transaction);
            Rig.done(transaction.commit());
            Rig.eventually(() -> rig.request("GET", Rig.path(topic) + "/stats", null).body()
                    .matches("(?s).*\"sub\"\\s*:.*\"unackedMessages\"\\s*:\\s*10\\b.*"), "10 messages are unacked");
            transaction = rig.begin();
            Rig.acknowledge(consumer, messages.subList(10, 20), transaction);
            Rig.eventually(() -> rig.request("GET", Rig.path(topic) + "/stats", null).body()
                    .matches("(?s).*\"sub\"\\s*:.*\"unackedMessages\"\\s*:\\s*0\\b.*"), "no message is unacked");
            Rig.done(transaction.commit());
        }
    }

    private static void pipelines(Rig rig) throws Exception {
        for (boolean isBatched : new boolean[] {false, true}) {
            pipeline(rig, isBatched);
        }
    }

    /**
     * Four workers turn inputs into outputs, and abort every fourth time; each input has one output in the end.
     *
     * After an abort a whole batch comes again, also to another worker than has some of its messages in its queue. So
     * of two workers with the same message one has a conflict, and aborts.
     */
    private static void pipeline(Rig rig, boolean isBatched) throws Exception {
        String topic = rig.partitioned(3);
        String results = rig.partitioned(3);
        int count = 60;
        AtomicInteger left = new AtomicInteger(count);
        List<Throwable> failures = Collections.synchronizedList(new ArrayList<>());
        Consumer<String> reader = rig.consumer(results, SubscriptionType.Exclusive);
        List<Thread> workers = new ArrayList<>();
        for (int number = 0; number < 4; number++) {
            Random random = new Random(number);
            Consumer<String> consumer = rig.consumers(topic, SubscriptionType.Shared).receiverQueueSize(2).subscribe();
            Producer<String> producer = rig.producer(results, number % 2 == 0);
            workers.add(new Thread(() -> {
                try {
                    while (left.get() > 0 && failures.isEmpty()) {
                        Message<String> message = consumer.receive(100, TimeUnit.MILLISECONDS);
                        if (message == null) {
                            continue;
                        }
                        Transaction transaction = rig.begin();
                        producer.newMessage(transaction).value("of " + message.getValue()).sendAsync();
                        producer.flushAsync();
                        String outcome = Rig.outcome(consumer.acknowledgeAsync(message.getMessageId(), transaction));
                        Rig.check(outcome.equals("success") || isBatched && outcome.equals(CONFLICT), outcome);
                        if (!outcome.equals("success") || random.nextInt(4) == 0) {
                            Rig.done(transaction.abort());
                        } else {
                            Rig.done(transaction.commit());
                            left.decrementAndGet();
                        }
                    }
                } catch (Throwable failure) {
                    failures.add(failure);
                }
            }));
        }
        List<String> values = Rig.publish(rig.producer(topic, isBatched), null, "input", count);
        workers.forEach(Thread::start);
        for (Thread worker : workers) {
            worker.join(60_000);
        }
        Rig.equal(List.of(), failures);
        Rig.equal(0, left.get());
        Rig.expect(reader, values.stream().map("of "::concat).toList());
    }
}

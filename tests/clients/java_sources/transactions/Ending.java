import java.lang.reflect.Constructor;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.client.api.transaction.TransactionCoordinatorClient;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.client.impl.PulsarClientImpl;
import org.apache.pulsar.client.impl.transaction.TransactionImpl;

/** How transactions end: by commit, by abort, by their time, by another client; and what is said afterwards. */
final class Ending {
    private static final String NOT_FOUND = "TransactionNotFoundException";
    private static final String INVALID = "InvalidTxnStatusException";

    static void add(Map<String, Scenarios.Scenario> all) {
        all.put("ended-transactions-refuse", rig -> ended(rig));
        all.put("ended-ones-are-not-found", rig -> endedAtTheCoordinator(rig));
        all.put("unknown-ones-are-not-found", rig -> unknown(rig));
        all.put("empty-transactions-end", rig -> empty(rig));
        all.put("time-out", rig -> timeout(rig));
        all.put("time-out-without-the-clients-clock",
                rig -> Rig.withLife(500, life -> timeoutAtTheBroker(rig, life)));
        all.put("another-client-commits", rig -> anotherClient(rig));
        all.put("a-client-closes-with-open-transactions", rig -> Rig.withLife(3_000, life -> closes(rig, life)));
        all.put("several-coordinators", rig -> coordinators(rig));
        all.put("many-at-once", rig -> many(rig));
    }

    private static TransactionCoordinatorClient coordinatorClient(PulsarClient client) {
        return ((PulsarClientImpl) client).getTcClient();
    }

    private static void ended(Rig rig) throws Exception {
        String topic = Rig.topic();
        Producer<String> producer = rig.producer(topic, false);
        Consumer<String> consumer = rig.consumer(topic, SubscriptionType.Exclusive);
        for (boolean commits : new boolean[] {true, false}) {
            producer.send("plain");
            MessageId id = Rig.receive(consumer, 1).get(0).getMessageId();
            Transaction transaction = rig.begin();
            producer.newMessage(transaction).value("committed").send();
            Rig.done(commits ? transaction.commit() : transaction.abort());
            if (commits) {
                Rig.receive(consumer, 1);
            }
            Rig.equal(INVALID, Rig.outcome(producer.newMessage(transaction).value("late").sendAsync()));
            Rig.equal(INVALID, Rig.outcome(consumer.acknowledgeAsync(id, transaction)));
            Rig.equal(INVALID, Rig.outcome(consumer.acknowledgeCumulativeAsync(id, transaction)));
            Rig.equal(INVALID, Rig.outcome(transaction.commit()));
            Rig.equal(INVALID, Rig.outcome(transaction.abort()));
            Rig.equal(commits ? Transaction.State.COMMITTED : Transaction.State.ABORTED, transaction.getState());
        }
        Rig.expectNothing(consumer);
    }

    private static void endedAtTheCoordinator(Rig rig) throws Exception {
        TransactionCoordinatorClient coordinator = coordinatorClient(rig.client);
        for (boolean commits : new boolean[] {true, false}) {
            Transaction transaction = rig.begin();
            Rig.done(commits ? transaction.commit() : transaction.abort());
            Rig.equal(NOT_FOUND, Rig.outcome(coordinator.commitAsync(transaction.getTxnID())));
            Rig.equal(NOT_FOUND, Rig.outcome(coordinator.abortAsync(transaction.getTxnID())));
            Rig.equal(NOT_FOUND, Rig.outcome(coordinator.addPublishPartitionToTxnAsync(transaction.getTxnID(),
                    List.of(Rig.topic()))));
        }
    }

    private static void unknown(Rig rig) throws Exception {
        TransactionCoordinatorClient coordinator = coordinatorClient(rig.client);
        TxnID id = new TxnID(0, 1L << 40);
        Rig.equal(NOT_FOUND, Rig.outcome(coordinator.commitAsync(id)));
        Rig.equal(NOT_FOUND, Rig.outcome(coordinator.abortAsync(id)));
        Rig.equal(NOT_FOUND, Rig.outcome(coordinator.addPublishPartitionToTxnAsync(id, List.of(Rig.topic()))));
        Rig.equal(NOT_FOUND, Rig.outcome(coordinator.addSubscriptionToTxnAsync(id, Rig.topic(), "sub")));
        TransactionImpl made = made(rig, id);
        Rig.equal(NOT_FOUND, Rig.outcome(made.commit()));
        Rig.equal(Transaction.State.ERROR, made.getState());
    }

    /** A transaction object of another transaction's id, whose own clock allows it a minute. */
    private static TransactionImpl made(Rig rig, TxnID id) throws Exception {
        Constructor<TransactionImpl> constructor = TransactionImpl.class.getDeclaredConstructor(PulsarClientImpl.class,
                long.class, long.class, long.class);
        constructor.setAccessible(true);
        return constructor.newInstance((PulsarClientImpl) rig.client, 60_000L, id.getLeastSigBits(),
                id.getMostSigBits());
    }

    private static void empty(Rig rig) throws Exception {
        String topic = rig.partitioned(2);
        Consumer<String> consumer = rig.consumer(topic, SubscriptionType.Shared);
        Producer<String> producer = rig.producer(topic, false);
        for (boolean commits : new boolean[] {true, false}) {
            Transaction transaction = rig.begin();
            Rig.equal(Transaction.State.OPEN, transaction.getState());
            Rig.done(commits ? transaction.commit() : transaction.abort());
            Transaction registered = rig.begin();
            Rig.done(coordinatorClient(rig.client).addPublishPartitionToTxnAsync(registered.getTxnID(),
                    List.of(topic + "-partition-0")));
            Rig.done(commits ? registered.commit() : registered.abort());
        }
        Rig.expect(consumer, Rig.publish(producer, null, "plain", 4));
    }

    private static void timeout(Rig rig) throws Exception {
        for (SubscriptionType type : List.of(SubscriptionType.Exclusive, SubscriptionType.Shared)) {
            Rig.withLife(1_500, life -> timeout(rig, type, life));
        }
    }

    private static void timeout(Rig rig, SubscriptionType type, Rig.Life life) throws Exception {
        String topic = rig.partitioned(2);
        Producer<String> producer = rig.producer(topic, false);
        Consumer<String> consumer = rig.consumer(topic, type);
        Rig.publish(producer, null, "plain", 2);
        List<Message<String>> messages = Rig.receive(consumer, 2);
        Transaction transaction = rig.begin(life.milliseconds);
        Rig.publish(producer, transaction, "never", 4);
        Rig.acknowledge(consumer, messages, transaction);
        Rig.expectNothing(consumer);
        life.inTime();
        List<Message<String>> again = Rig.expect(consumer, Rig.values(messages));
        Rig.equal(Set.of(messages.get(0).getMessageId(), messages.get(1).getMessageId()),
                Set.of(again.get(0).getMessageId(), again.get(1).getMessageId()));
        Rig.eventually(() -> transaction.getState() == Transaction.State.TIME_OUT, "the client sees the time-out");
        Rig.equal(INVALID, Rig.outcome(producer.newMessage(transaction).value("late").sendAsync()));
        Rig.equal(INVALID, Rig.outcome(consumer.acknowledgeAsync(messages.get(0).getMessageId(), transaction)));
        Rig.equal(INVALID, Rig.outcome(transaction.commit()));
        Rig.equal(INVALID, Rig.outcome(transaction.abort()));
    }

    /**
     * The client's own clock says that there is time, so its commit reaches the broker, where the time is over.
     *
     * The broker answers that the status is invalid while it knows how the transaction ended, else that there is none.
     */
    private static void timeoutAtTheBroker(Rig rig, Rig.Life life) throws Exception {
        String topic = rig.partitioned(2);
        Producer<String> producer = rig.producer(topic, false);
        Consumer<String> consumer = rig.consumer(topic, SubscriptionType.Shared);
        producer.send("plain");
        MessageId id = Rig.receive(consumer, 1).get(0).getMessageId();
        TxnID ofShortLife = Rig.done(coordinatorClient(rig.client)
                .newTransactionAsync(life.milliseconds, TimeUnit.MILLISECONDS));
        TransactionImpl transaction = made(rig, ofShortLife);
        producer.newMessage(transaction).value("never").send();
        Rig.done(consumer.acknowledgeAsync(id, transaction));
        life.inTime();
        Rig.equal("plain", Rig.receive(consumer, 1).get(0).getValue());      // the time is over
        String outcome = Rig.outcome(transaction.commit());
        Rig.check(Set.of(NOT_FOUND, INVALID).contains(outcome), outcome);
        Rig.equal(Transaction.State.ERROR, transaction.getState());
        Rig.expectNothing(consumer);
    }

    private static void anotherClient(Rig rig) throws Exception {
        String topic = rig.partitioned(2);
        List<TxnID> ids = new ArrayList<>();
        Consumer<String> consumer = rig.consumer(topic, SubscriptionType.Shared);
        List<String> committed = new ArrayList<>();
        try (PulsarClient first = rig.newClient();
             Producer<String> producer = first.newProducer(Schema.STRING).topic(topic).create()) {
            for (int number = 0; number < 8; number++) {
                Transaction transaction = Rig.done(first.newTransaction()
                        .withTransactionTimeout(1, TimeUnit.MINUTES).build());
                List<String> values = Rig.publish(producer, transaction, "of " + number + "-", 3);
                if (number % 2 == 0) {
                    committed.addAll(values);
                }
                ids.add(transaction.getTxnID());
            }
        }
        Rig.expectNothing(consumer);
        for (int number = 0; number < ids.size(); number++) {
            TransactionCoordinatorClient coordinator = coordinatorClient(rig.client);
            TxnID id = ids.get(number);
            Rig.done(number % 2 == 0 ? coordinator.commitAsync(id) : coordinator.abortAsync(id));
        }
        Rig.expect(consumer, committed);
    }

    private static void closes(Rig rig, Rig.Life life) throws Exception {
        String topic = rig.partitioned(2);
        Producer<String> plain = rig.producer(topic, false);
        Consumer<String> consumer = rig.consumer(topic, SubscriptionType.Shared);
        List<String> values = Rig.publish(plain, null, "plain", 4);
        consumer.close();
        try (PulsarClient leaving = rig.newClient();
             Consumer<String> other = leaving.newConsumer(Schema.STRING).topic(topic).subscriptionName("sub")
                 .subscriptionType(SubscriptionType.Shared).isAckReceiptEnabled(true).subscribe();
             Producer<String> producer = leaving.newProducer(Schema.STRING).topic(topic).create()) {
            Transaction transaction = Rig.done(leaving.newTransaction()
                    .withTransactionTimeout(life.milliseconds, TimeUnit.MILLISECONDS).build());
            Rig.publish(producer, transaction, "never", 4);
            Rig.acknowledge(other, Rig.receive(other, 4), transaction);
        }
        consumer = rig.consumer(topic, SubscriptionType.Shared);
        Rig.expectNothing(consumer);           // the transaction is open, though its client is gone
        life.inTime();
        Rig.expect(consumer, values);          // its time is over
    }

    private static void coordinators(Rig rig) throws Exception {
        int count = rig.request("GET", "/admin/v3/transactions/coordinators", null).body().split("\"id\"").length - 1;
        String topic = rig.partitioned(3);
        Producer<String> producer = rig.producer(topic, true);
        Consumer<String> consumer = rig.consumer(topic, SubscriptionType.Shared);
        Set<Long> used = new TreeSet<>();
        Set<TxnID> ids = new HashSet<>();
        List<Transaction> open = new ArrayList<>();
        List<String> committed = new ArrayList<>();
        for (int number = 0; number < 4 * count; number++) {
            open.add(rig.begin());
            ids.add(open.get(number).getTxnID());
            used.add(open.get(number).getTxnID().getMostSigBits());
            List<String> values = Rig.publish(producer, open.get(number), "of " + number + "-", 3);
            if (number % 3 != 0) {
                committed.addAll(values);
            }
        }
        Rig.equal(count, used.size());
        Rig.equal(4 * count, ids.size());
        for (int number = open.size() - 1; number >= 0; number--) {
            Rig.done(number % 3 != 0 ? open.get(number).commit() : open.get(number).abort());
        }
        Rig.expect(consumer, committed);
    }

    private static void many(Rig rig) throws Exception {
        String topic = rig.partitioned(4);
        Producer<String> producer = rig.producer(topic, true);
        Consumer<String> consumer = rig.consumer(topic, SubscriptionType.Shared);
        List<CompletableFuture<Void>> ends = new ArrayList<>();
        List<String> committed = new ArrayList<>();
        List<Transaction> open = new ArrayList<>();
        for (int number = 0; number < 200; number++) {
            open.add(rig.begin());
        }
        for (int number = 0; number < open.size(); number++) {
            producer.newMessage(open.get(number)).value("of " + number).sendAsync();
            if (number % 2 == 0) {
                committed.add("of " + number);
            }
        }
        producer.flushAsync();
        for (int number = 0; number < open.size(); number++) {
            ends.add(number % 2 == 0 ? open.get(number).commit() : open.get(number).abort());
        }
        for (CompletableFuture<Void> end : ends) {
            Rig.done(end);
        }
        Rig.expect(consumer, committed);
    }
}

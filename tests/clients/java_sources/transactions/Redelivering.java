import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.api.transaction.Transaction;

/** Messages that come again: after aborts, negative acknowledgements and time-outs, and into dead letter topics. */
final class Redelivering {
    static void add(Map<String, Scenarios.Scenario> all) {
        all.put("redelivery-counts", rig -> counts(rig));
        all.put("negative-acknowledgements", rig -> negative(rig));
        all.put("acknowledgement-time-outs", rig -> timeouts(rig));
        all.put("dead-letter-topic", rig -> deadLetter(rig));
        all.put("dead-letter-topic-of-a-batch", rig -> deadLetterOfBatch(rig));
        all.put("retry-letter-topic", rig -> retryLetter(rig));
        all.put("another-consumer-takes-over", rig -> takesOver(rig));
        all.put("committed-messages-come-again", rig -> committedAgain(rig));
    }

    private static void counts(Rig rig) throws Exception {
        for (SubscriptionType type : Rig.TYPES) {
            String topic = rig.partitioned(2);
            Consumer<String> consumer = rig.consumer(topic, type);
            List<String> values = Rig.publish(rig.producer(topic, false), null, "value", 4);
            boolean counts = type == SubscriptionType.Shared || type == SubscriptionType.Key_Shared;
            for (int round = 0; round < 3; round++) {
                List<Message<String>> messages = Rig.expect(consumer, values);
                for (Message<String> message : messages) {
                    Rig.equal(type + " " + (counts ? round : 0), type + " " + message.getRedeliveryCount());
                }
                Transaction transaction = rig.begin();
                Rig.acknowledge(consumer, messages, transaction);
                Rig.done(transaction.abort());
            }
        }
    }

    private static void negative(Rig rig) throws Exception {
        String topic = rig.partitioned(2);
        Consumer<String> consumer = rig.consumers(topic, SubscriptionType.Shared)
                .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS).subscribe();
        Rig.publish(rig.producer(topic, false), null, "value", 8);
        List<Message<String>> messages = Rig.receive(consumer, 8);
        Transaction transaction = rig.begin();
        List<Message<String>> pending = messages.subList(0, 4);
        List<Message<String>> refused = messages.subList(4, 8);
        Rig.acknowledge(consumer, pending, transaction);
        refused.forEach(consumer::negativeAcknowledge);
        Rig.acknowledge(consumer, Rig.expect(consumer, Rig.values(refused)), transaction);
        messages.forEach(consumer::negativeAcknowledge);      // changes nothing: all of them are pending
        Rig.expectNothing(consumer);
        Rig.done(transaction.abort());
        Rig.expect(consumer, Rig.values(messages));
    }

    private static void timeouts(Rig rig) throws Exception {
        String topic = rig.partitioned(2);
        Consumer<String> consumer = rig.consumers(topic, SubscriptionType.Shared).ackTimeout(1, TimeUnit.SECONDS)
                .ackTimeoutTickTime(100, TimeUnit.MILLISECONDS).subscribe();
        Rig.publish(rig.producer(topic, false), null, "value", 6);
        List<Message<String>> messages = Rig.receive(consumer, 6);
        Transaction transaction = rig.begin();
        Rig.acknowledge(consumer, messages.subList(0, 3), transaction);
        List<Message<String>> again = Rig.expect(consumer, Rig.values(messages.subList(3, 6)));
        Rig.acknowledge(consumer, again, transaction);
        Rig.check(consumer.receive(1_500, TimeUnit.MILLISECONDS) == null, "pending ones do not come");
        Rig.done(transaction.commit());
        Rig.check(consumer.receive(1_500, TimeUnit.MILLISECONDS) == null, "acknowledged ones do not come");
    }

    private static Consumer<String> withDeadLetters(Rig rig, String topic) throws Exception {
        return rig.consumers(topic, SubscriptionType.Shared).deadLetterPolicy(DeadLetterPolicy.builder()
                .maxRedeliverCount(1).deadLetterTopic(topic + "-dead").build()).subscribe();
    }

    private static void deadLetter(Rig rig) throws Exception {
        String topic = rig.partitioned(2);
        Consumer<String> consumer = withDeadLetters(rig, topic);
        Consumer<String> dead = rig.consumer(topic + "-dead", SubscriptionType.Shared);
        rig.producer(topic, false).send("value");
        for (int count = 0; count < 2; count++) {
            Transaction transaction = rig.begin();
            Rig.acknowledge(consumer, Rig.receive(consumer, 1), transaction);
            Rig.done(transaction.abort());
        }
        // The message goes to the dead letter topic while the consumer waits for another one.
        Rig.expectNothing(consumer);
        Message<String> letter = Rig.receive(dead, 1).get(0);
        Rig.equal("value", letter.getValue());
        Transaction transaction = rig.begin();
        Rig.done(dead.acknowledgeAsync(letter.getMessageId(), transaction));
        Rig.done(transaction.commit());
        consumer.close();
        Rig.expectNothing(rig.consumer(topic, SubscriptionType.Shared));
    }

    private static void deadLetterOfBatch(Rig rig) throws Exception {
        String topic = Rig.topic();
        Consumer<String> consumer = withDeadLetters(rig, topic);
        Consumer<String> dead = rig.consumer(topic + "-dead", SubscriptionType.Shared);
        List<String> values = rig.publishBatch(topic, null, "value", 3);
        for (int count = 0; count < 2; count++) {
            List<Message<String>> messages = Rig.receive(consumer, 3);
            Transaction transaction = rig.begin();
            Rig.acknowledge(consumer, messages, transaction);
            Rig.done(transaction.abort());
        }
        Rig.expectNothing(consumer);
        Rig.expect(dead, values);
    }

    private static void retryLetter(Rig rig) throws Exception {
        String topic = rig.partitioned(2);
        Consumer<String> consumer = rig.consumers(topic, SubscriptionType.Shared).enableRetry(true)
                .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(5).retryLetterTopic(topic + "-retry")
                    .deadLetterTopic(topic + "-dead").build()).subscribe();
        Rig.publish(rig.producer(topic, false), null, "value", 2);
        List<Message<String>> messages = Rig.receive(consumer, 2);
        Transaction transaction = rig.begin();
        Rig.acknowledge(consumer, messages.subList(0, 1), transaction);
        consumer.reconsumeLater(messages.get(1), 100, TimeUnit.MILLISECONDS);
        Message<String> retried = Rig.receive(consumer, 1).get(0);
        Rig.equal(messages.get(1).getValue(), retried.getValue());
        Rig.check(retried.getTopicName().contains("-retry"), "it came by the topic for retries");
        Rig.done(consumer.acknowledgeAsync(retried.getMessageId(), transaction));
        Rig.done(transaction.abort());
        messages = Rig.expect(consumer, Rig.values(messages));      // one of each topic
        Transaction committed = rig.begin();
        Rig.acknowledge(consumer, messages, committed);
        Rig.done(committed.commit());
        consumer.redeliverUnacknowledgedMessages();
        Rig.expectNothing(consumer);
    }

    private static void takesOver(Rig rig) throws Exception {
        for (SubscriptionType type : Rig.TYPES) {
            String topic = rig.partitioned(2);
            Consumer<String> first = rig.consumer(topic, type);
            List<String> values = Rig.publish(rig.producer(topic, false), null, "value", 10);
            List<Message<String>> messages = Rig.receive(first, 10);
            Transaction aborted = rig.begin();
            Transaction committed = rig.begin();
            Rig.acknowledge(first, messages.subList(0, 3), aborted);
            Rig.acknowledge(first, messages.subList(3, 6), committed);
            first.close();
            Consumer<String> second = rig.consumer(topic, type);
            Rig.expect(second, Rig.values(messages.subList(6, 10)));
            Rig.done(committed.commit());
            Rig.done(aborted.abort());
            List<String> wanted = new ArrayList<>(Rig.values(messages.subList(0, 3)));
            second.redeliverUnacknowledgedMessages();
            wanted.addAll(Rig.values(messages.subList(6, 10)));
            // Those that the abort gave back may come once more where all were asked for again at the same time.
            List<String> found = new ArrayList<>();
            Rig.eventually(() -> {
                Message<String> message = second.receive(Rig.SILENCE_MS, TimeUnit.MILLISECONDS);
                if (message != null) {
                    found.add(message.getValue());
                }
                return message == null && found.containsAll(wanted);
            }, "those come that nobody acknowledged");
            Rig.check(wanted.containsAll(found), "only those come: " + found);
        }
    }

    private static void committedAgain(Rig rig) throws Exception {
        String topic = rig.partitioned(2);
        Consumer<String> consumer = rig.consumer(topic, SubscriptionType.Exclusive);
        Transaction transaction = rig.begin();
        Producer<String> producer = rig.producer(topic, false);
        Rig.publish(producer, transaction, "value", 10);
        Transaction aborted = rig.begin();
        Rig.publish(producer, aborted, "aborted", 10);
        Rig.done(transaction.commit());
        Rig.done(aborted.abort());
        List<Message<String>> messages = Rig.receive(consumer, 10);
        Rig.expectNothing(consumer);
        for (Message<String> message : messages.subList(0, 5)) {
            Rig.done(consumer.acknowledgeAsync(message));
        }
        consumer.redeliverUnacknowledgedMessages();
        for (Message<String> message : Rig.expect(consumer, Rig.values(messages.subList(5, 10)))) {
            Rig.done(consumer.acknowledgeAsync(message));
        }
        consumer.redeliverUnacknowledgedMessages();
        Rig.expectNothing(consumer);
    }
}

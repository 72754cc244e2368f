import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.api.transaction.Transaction;

/** Topics that are unloaded or deleted, and processes that are killed, in the middle of transactions. */
final class Failing {
    interface Disturbance {
        void happen(Rig rig, String topic) throws Exception;
    }

    static void add(Map<String, Scenarios.Scenario> all) {
        all.put("unloaded-topics", rig -> disturbed(rig, Failing::unload));
        all.put("killed-owner-0", rig -> disturbed(rig, (one, topic) -> one.please("kill owner 0")));
        all.put("killed-owner-1", rig -> disturbed(rig, (one, topic) -> one.please("kill owner 1")));
        all.put("killed-worker", rig -> disturbed(rig, (one, topic) -> one.please("kill worker 0")));
        all.put("deleted-topics", rig -> deleted(rig));
    }

    private static void unload(Rig rig, String topic) throws Exception {
        for (int partition = 0; partition < 3; partition++) {
            String path = Rig.path(topic) + "-partition-" + partition + "/unload";
            Rig.equal(204, rig.request("PUT", path, null).statusCode());
        }
    }

    /** Transactions go on after the disturbance, and end whole: published messages and acknowledgements alike. */
    private static void disturbed(Rig rig, Disturbance disturbance) throws Exception {
        String topic = rig.partitioned(3);
        String results = rig.partitioned(3);
        Producer<String> inputs = rig.producer(topic, false);
        List<String> values = Rig.publish(inputs, null, "input", 16);
        Producer<String> outputs = rig.producer(results, true);
        Consumer<String> consumer = rig.consumers(topic, SubscriptionType.Shared).receiverQueueSize(100).subscribe();
        Consumer<String> reader = rig.consumer(results, SubscriptionType.Exclusive);
        List<Message<String>> messages = Rig.receive(consumer, values.size());
        List<Transaction> open = new ArrayList<>();
        List<String> wanted = new ArrayList<>();
        for (int number = 0; number < 4; number++) {      // two commit, two abort
            open.add(rig.begin());
            wanted.addAll(Rig.publish(outputs, open.get(number), number + " before ", 4));
            Rig.acknowledge(consumer, messages.subList(4 * number, 4 * number + 2), open.get(number));
        }
        disturbance.happen(rig, topic);
        disturbance.happen(rig, results);
        for (int number = 0; number < 4; number++) {
            wanted.addAll(Rig.publish(outputs, open.get(number), number + " after ", 4));
        }
        Rig.expectNothing(reader);
        for (int number = 0; number < 4; number++) {
            Rig.done(number % 2 == 0 ? open.get(number).commit() : open.get(number).abort());
        }
        wanted.removeIf(value -> value.startsWith("1") || value.startsWith("3"));
        Rig.expect(reader, wanted);
        consumer.close();
        List<String> left = new ArrayList<>(values);
        for (int number = 0; number < 4; number += 2) {
            left.removeAll(Rig.values(messages.subList(4 * number, 4 * number + 2)));
        }
        Rig.expect(rig.consumer(topic, SubscriptionType.Shared), left);
    }

    private static void deleted(Rig rig) throws Exception {
        String topic = Rig.topic();
        String other = Rig.topic();
        for (boolean commits : new boolean[] {true, false}) {
            Transaction transaction = rig.begin();
            try (Producer<String> producer = rig.producer(topic, false);
                 Producer<String> kept = rig.producer(other, false)) {
                Rig.publish(producer, transaction, "gone", 2);
                Rig.publish(kept, transaction, "kept", 2);
            }
            Rig.equal(204, rig.request("DELETE", Rig.path(topic) + "?force=true", null).statusCode());
            Rig.done(commits ? transaction.commit() : transaction.abort());
        }
        Rig.expect(rig.consumer(other, SubscriptionType.Shared), List.of("kept0", "kept1"));
        Rig.expectNothing(rig.consumer(topic, SubscriptionType.Shared));
    }
}

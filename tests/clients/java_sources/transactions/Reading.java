import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.api.transaction.Transaction;

/** Readers, table views, last message ids and seeks: all of them see what is committed, and nothing else. */
final class Reading {
    static void add(Map<String, Scenarios.Scenario> all) {
        all.put("readers", rig -> readers(rig));
        all.put("readers-at-the-latest-message", rig -> latest(rig));
        all.put("table-views", rig -> tableViews(rig));
        all.put("last-message-ids", rig -> lastMessageIds(rig));
        all.put("seeks", rig -> seeks(rig));
        all.put("compacted-topics", rig -> compacted(rig));
        all.put("late-subscriptions", rig -> lateSubscriptions(rig));
    }

    private static List<String> read(Reader<String> reader) throws Exception {
        List<String> values = new ArrayList<>();
        while (reader.hasMessageAvailable()) {
            Message<String> message = reader.readNext(Rig.WAIT_S, TimeUnit.SECONDS);
            Rig.check(message != null, "the message that is said to be available comes, after " + values);
            values.add(message.getValue());
        }
        return values;
    }

    private static void readers(Rig rig) throws Exception {
        for (String topic : List.of(Rig.topic(), rig.partitioned(2))) {
            try (Producer<String> producer = rig.producer(topic, false);
                 Reader<String> reader = rig.client.newReader(Schema.STRING).topic(topic)
                     .startMessageId(MessageId.earliest).create()) {
                List<String> before = Rig.publish(producer, null, "before", 4);
                Rig.equal(before, Rig.sorted(read(reader)));
                Transaction aborted = rig.begin();
                Transaction committed = rig.begin();
                Rig.publish(producer, aborted, "aborted", 4);
                List<String> values = Rig.publish(producer, committed, "committed", 4);
                Rig.equal(List.of(), read(reader));
                Rig.done(aborted.abort());
                Rig.equal(List.of(), read(reader));
                Rig.done(committed.commit());
                Rig.equal(values, Rig.sorted(read(reader)));
                Transaction last = rig.begin();
                Rig.publish(producer, last, "last", 2);
                Rig.done(last.abort());
                Rig.equal(List.of(), read(reader));
            }
        }
    }

    private static void latest(Rig rig) throws Exception {
        String topic = Rig.topic();
        Producer<String> producer = rig.producer(topic, false);
        Transaction transaction = rig.begin();
        Rig.publish(producer, transaction, "open", 2);
        try (Reader<String> reader = rig.client.newReader(Schema.STRING).topic(topic)
                .startMessageId(MessageId.latest).create()) {
            Rig.done(transaction.commit());
            Rig.equal(false, reader.hasMessageAvailable());
            producer.send("after");
            Rig.equal(List.of("after"), read(reader));
        }
    }

    private static void tableViews(Rig rig) throws Exception {
        String topic = rig.partitioned(2);
        Producer<String> producer = rig.producer(topic, false);
        producer.newMessage().key("a").value("1").send();
        try (TableView<String> view = rig.client.newTableView(Schema.STRING).topic(topic)
                .autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).create()) {
            Rig.equal(Map.of("a", "1"), copy(view));
            for (boolean commits : new boolean[] {false, true}) {
                Transaction transaction = rig.begin();
                producer.newMessage(transaction).key("a").value("2").send();
                producer.newMessage(transaction).key("b").value("3").send();
                Rig.done(view.refreshAsync());
                Rig.equal(Map.of("a", "1"), copy(view));
                Rig.done(commits ? transaction.commit() : transaction.abort());
                Rig.done(view.refreshAsync());
            }
            Rig.eventually(() -> copy(view).equals(Map.of("a", "2", "b", "3")), "the view has what was committed");
        }
        try (TableView<String> view = rig.client.newTableView(Schema.STRING).topic(topic).create()) {
            Rig.equal(Map.of("a", "2", "b", "3"), copy(view));
        }
    }

    private static Map<String, String> copy(TableView<String> view) {
        Map<String, String> values = new TreeMap<>();
        view.forEach(values::put);
        return values;
    }

    private static void lastMessageIds(Rig rig) throws Exception {
        String topic = Rig.topic();
        Producer<String> producer = rig.producer(topic, false);
        Consumer<String> consumer = rig.consumer(topic, SubscriptionType.Exclusive);
        MessageIdAdv none = (MessageIdAdv) consumer.getLastMessageIds().get(0);
        Rig.equal(-1L, none.getEntryId());
        Transaction first = rig.begin();
        MessageIdAdv open = (MessageIdAdv) producer.newMessage(first).value("open").send();
        Rig.equal(-1L, ((MessageIdAdv) consumer.getLastMessageIds().get(0)).getEntryId());
        Rig.done(first.commit());
        same(open, consumer);
        Transaction second = rig.begin();
        producer.newMessage(second).value("aborted").send();
        same(open, consumer);
        MessageIdAdv plain = (MessageIdAdv) producer.send("plain");
        same(open, consumer);
        Rig.done(second.abort());
        same(plain, consumer);
        Transaction third = rig.begin();
        producer.newMessage(third).value("aborted at the end").send();
        Rig.done(third.abort());
        same(plain, consumer);
    }

    private static void same(MessageIdAdv expected, Consumer<String> consumer) throws Exception {
        MessageIdAdv found = (MessageIdAdv) consumer.getLastMessageIds().get(0);
        Rig.equal(expected.getLedgerId() + ":" + expected.getEntryId(), found.getLedgerId() + ":" + found.getEntryId());
    }

    private static void seeks(Rig rig) throws Exception {
        String topic = Rig.topic();
        Producer<String> producer = rig.producer(topic, false);
        Consumer<String> consumer = rig.consumer(topic, SubscriptionType.Exclusive);
        producer.send("first");
        Transaction aborted = rig.begin();
        MessageId hidden = producer.newMessage(aborted).value("aborted").send();
        Transaction committed = rig.begin();
        MessageId seen = producer.newMessage(committed).value("committed").send();
        Transaction open = rig.begin();
        MessageId later = producer.newMessage(open).value("open").send();
        Rig.done(aborted.abort());
        Rig.done(committed.commit());
        Rig.expect(consumer, List.of("first", "committed"));
        consumer.seek(hidden);
        Rig.expect(consumer, List.of("committed"));
        consumer.seek(seen);
        Rig.expectNothing(consumer);
        consumer.seek(MessageId.earliest);
        Rig.expect(consumer, List.of("first", "committed"));
        consumer.seek(0L);
        Rig.expect(consumer, List.of("first", "committed"));
        consumer.seek(seen);
        Rig.done(open.commit());
        Rig.expect(consumer, List.of("open"));
        consumer.seek(later);
        Rig.expectNothing(consumer);
    }

    private static void compacted(Rig rig) throws Exception {
        String topic = Rig.topic();
        Producer<String> producer = rig.producer(topic, false);
        for (String value : List.of("superseded", "committed", "aborted", "open")) {
            Transaction transaction = rig.begin();
            producer.newMessage(transaction).key("a").value(value).send();
            producer.newMessage(transaction).key(value).value(value).send();
            if (!value.equals("open")) {
                Rig.done(value.equals("aborted") ? transaction.abort() : transaction.commit());
                continue;
            }
            Rig.equal(204, rig.request("PUT", Rig.path(topic) + "/compaction", null).statusCode());
            Rig.eventually(() -> rig.request("GET", Rig.path(topic) + "/compaction", null).body().contains("SUCCESS"),
                    "the topic is compacted");
            Rig.equal(List.of("superseded", "committed", "committed"), readCompacted(rig, topic));
            Rig.done(transaction.commit());
        }
        Rig.equal(List.of("superseded", "committed", "committed", "open", "open"), readCompacted(rig, topic));
    }

    private static List<String> readCompacted(Rig rig, String topic) throws Exception {
        try (Reader<String> reader = rig.client.newReader(Schema.STRING).topic(topic).readCompacted(true)
                .startMessageId(MessageId.earliest).create()) {
            return read(reader);
        }
    }

    /** Batches, chunks and single messages of ended transactions come to subscriptions that are made afterwards. */
    private static void lateSubscriptions(Rig rig) throws Exception {
        String topic = rig.partitioned(2);
        List<String> values = new ArrayList<>();
        for (CompressionType compression : CompressionType.values()) {
            for (boolean commits : new boolean[] {true, false}) {
                Transaction transaction = rig.begin();
                ProducerBuilder<String> builder = rig.producers(topic).compressionType(compression);
                try (Producer<String> batched = builder.clone().create();
                     Producer<String> chunked = builder.clone().enableBatching(false).enableChunking(true)
                         .chunkMaxMessageSize(1_000).create()) {
                    String prefix = compression + " " + commits;
                    List<String> published = Rig.publish(batched, transaction, prefix, 10);
                    String large = prefix + new Random(1).ints(5_000, 'a', 'z')
                            .collect(StringBuilder::new, StringBuilder::appendCodePoint, StringBuilder::append);
                    chunked.newMessage(transaction).value(large).sendAsync();
                    Rig.done(commits ? transaction.commit() : transaction.abort());
                    if (commits) {
                        values.addAll(published);
                        values.add(large);
                    }
                }
            }
        }
        for (SubscriptionType type : Rig.TYPES) {
            Rig.expect(rig.consumers(topic, type).subscriptionName(type.name()).subscribe(), values);
        }
    }
}

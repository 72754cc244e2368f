import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TableView;
import org.apache.pulsar.client.api.transaction.Transaction;

/** What the lab asks of Java's client, each thing by its name; `Ground.ask` says how the program is told.  It is compiled for each version. */
public class Things {
    static final int SECONDS = 15;      // longest wait for a message that has to come
    static final int SILENCE_MS = 400;  // shortest wait for one that must not
    static Map<String, String> told;
    static final BufferedReader INPUT = new BufferedReader(new InputStreamReader(System.in));
    static final java.io.PrintStream OUT = System.out;
    static final Map<String, Thing> THINGS = new LinkedHashMap<>();

    interface Thing {
        String run(PulsarClient c, String topic) throws Exception;
    }

    static class Lacks extends RuntimeException {
        Lacks(String what) {
            super(what);
        }
    }

    static String quoted(String text) {
        StringBuilder all = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            all.append(c == '"' || c == '\\' ? "\\" + c : c < ' ' ? " " : String.valueOf(c));
        }
        return all.append('"').toString();
    }

    static void please(String method, String path, String body) throws Exception {
        OUT.println("{\"please\": " + quoted(method) + ", \"path\": " + quoted(path) + ", \"body\": " + body + "}");
        OUT.flush();
        String answer = INPUT.readLine();
        if (!"done".equals(answer)) {
            throw new IllegalStateException("administration: " + answer);
        }
    }

    static String path(String topic) {
        return topic.replace("://", "/");
    }

    static ClientBuilder builder(String url) throws Exception {
        return PulsarClient.builder().serviceUrl(url).operationTimeout(20, TimeUnit.SECONDS)
                .enableTransaction(true).statsInterval(0, TimeUnit.SECONDS);
    }

    static PulsarClient client() throws Exception {
        return builder(told.get("service")).build();
    }

    static List<String> numbered(int count, String prefix) {
        return IntStream.range(0, count).mapToObj(n -> prefix + n).collect(Collectors.toList());
    }

    static List<String> numbered(int count) {
        return numbered(count, "m");
    }

    static ConsumerBuilder<byte[]> sub(PulsarClient c, String topic) {
        return c.newConsumer().topic(topic).subscriptionName("s").negativeAckRedeliveryDelay(200, TimeUnit.MILLISECONDS);
    }

    static void publish(ProducerBuilder<byte[]> made, List<String> payloads) throws Exception {
        try (Producer<byte[]> producer = made.create()) {
            List<java.util.concurrent.CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (String payload : payloads) {
                sent.add(producer.sendAsync(payload.getBytes()));
            }
            producer.flush();
            sent.forEach(java.util.concurrent.CompletableFuture::join);
        }
    }

    static void publish(PulsarClient c, String topic, List<String> payloads) throws Exception {
        publish(c.newProducer().topic(topic).enableBatching(false), payloads);
    }

    static <T> List<Message<T>> receive(Consumer<T> consumer, int count, boolean acknowledges) throws Exception {
        List<Message<T>> got = new ArrayList<>();
        for (int n = 0; n < count; n++) {
            Message<T> message = consumer.receive(SECONDS, TimeUnit.SECONDS);
            if (message == null) {
                throw new IllegalStateException("nothing more after " + n);
            }
            got.add(message);
            if (acknowledges) {
                consumer.acknowledge(message);
            }
        }
        return got;
    }

    static <T> List<Message<T>> receive(Consumer<T> consumer, int count) throws Exception {
        return receive(consumer, count, true);
    }

    static <T> List<Message<T>> drain(Consumer<T> consumer, int ms) throws Exception {
        List<Message<T>> got = new ArrayList<>();
        Message<T> message;
        while ((message = consumer.receive(ms, TimeUnit.MILLISECONDS)) != null) {
            consumer.acknowledge(message);
            got.add(message);
        }
        return got;
    }

    static List<String> data(List<Message<byte[]>> messages) {
        return messages.stream().map(m -> new String(m.getData())).collect(Collectors.toList());
    }

    static String said(List<String> data, List<String> expected) {
        if (data.equals(expected)) {
            return data.size() + " in order";
        }
        List<String> one = new ArrayList<>(data), other = new ArrayList<>(expected);
        java.util.Collections.sort(one);
        java.util.Collections.sort(other);
        if (one.equals(other)) {
            return data.size() + " out of order";
        }
        Set<String> missing = new HashSet<>(expected);
        missing.removeAll(data);
        return data.size() + " came, " + missing.size() + " missing, " + (data.size() - new HashSet<>(data).size()) + " twice";
    }

    @SafeVarargs
    static List<List<Message<byte[]>>> pooled(int count, Consumer<byte[]>... consumers) throws Exception {
        List<List<Message<byte[]>>> got = new ArrayList<>();
        for (Consumer<byte[]> ignored : consumers) {
            got.add(new ArrayList<>());
        }
        long until = System.currentTimeMillis() + SECONDS * 1000;
        while (got.stream().mapToInt(List::size).sum() < count && System.currentTimeMillis() < until) {
            for (int at = 0; at < consumers.length; at++) {
                Message<byte[]> message = consumers[at].receive(20, TimeUnit.MILLISECONDS);
                if (message != null) {
                    consumers[at].acknowledge(message);
                    got.get(at).add(message);
                }
            }
        }
        return got;
    }

    static String byKey(List<List<Message<byte[]>>> got) {
        Set<String> both = got.get(0).stream().map(Message::getKey).collect(Collectors.toSet());
        both.retainAll(got.get(1).stream().map(Message::getKey).collect(Collectors.toSet()));
        return got.stream().mapToInt(List::size).sum() + ", " + (both.isEmpty() ? "each key at one" : "keys at both");
    }

    public static class Ordered {
        public String name;
        public int count;
    }

    public static class Versions {
        public static class Ordered {
            public String name;
            public int count;
            public String remark;
        }
    }

    public static class Others {
        public static class Ordered {
            public int name;
        }
    }

    static Ordered ordered(String name, int count) {
        Ordered made = new Ordered();
        made.name = name;
        made.count = count;
        return made;
    }

    static String withSchema(PulsarClient c, String topic, Schema<Ordered> schema) throws Exception {
        Consumer<Ordered> consumer = c.newConsumer(schema).topic(topic).subscriptionName("s").subscribe();
        Producer<Ordered> producer = c.newProducer(schema).topic(topic).create();
        for (int n = 0; n < 3; n++) {
            producer.send(ordered("n" + n, n));
        }
        return receive(consumer, 3).stream().map(m -> m.getValue().name + "=" + m.getValue().count)
                .collect(Collectors.joining(" "));
    }

    static String refusedWith(ClientBuilder made) throws Exception {
        try (PulsarClient other = made.build()) {
            other.newProducer().topic("persistent://public/default/" + told.get("prefix") + "-credentials").create();
            return "admitted";
        } catch (PulsarClientException | RuntimeException refused) {
            return "refused";
        }
    }

    static String acrossTransaction(PulsarClient c, String topic, boolean commits) throws Exception {
        Consumer<byte[]> input = sub(c, topic).subscribe();
        Consumer<byte[]> output = sub(c, topic + "-out").subscribe();
        publish(c, topic, List.of("input"));
        Transaction transaction = c.newTransaction().withTransactionTimeout(30, TimeUnit.SECONDS).build().get();
        Message<byte[]> taken = receive(input, 1, false).get(0);
        Producer<byte[]> producer = c.newProducer().topic(topic + "-out").sendTimeout(0, TimeUnit.SECONDS).create();
        for (String payload : numbered(5)) {
            producer.newMessage(transaction).value(payload.getBytes()).send();
        }
        input.acknowledgeAsync(taken.getMessageId(), transaction).get();
        String before = drain(output, SILENCE_MS).isEmpty() ? "nothing before" : "some before";
        if (commits) {
            transaction.commit().get();
            return before + ", then " + said(data(receive(output, 5)), numbered(5));
        }
        transaction.abort().get();
        input.redeliverUnacknowledgedMessages();
        return (drain(output, SILENCE_MS).isEmpty() ? "nothing" : "some") + ", and the "
                + data(receive(input, 1)).get(0) + " again";
    }

    static {
        THINGS.put("exclusive", (c, topic) -> {
            Consumer<byte[]> consumer = sub(c, topic).subscribe();
            String second = "second admitted";
            try (PulsarClient other = client()) {
                sub(other, topic).subscribe();
            } catch (PulsarClientException.ConsumerBusyException busy) {
                second = "second refused";
            }
            publish(c, topic, numbered(20));
            return said(data(receive(consumer, 20)), numbered(20)) + ", " + second;
        });
        THINGS.put("failover", (c, topic) -> {
            try (PulsarClient other = client()) {
                Consumer<byte[]> first = sub(c, topic).subscriptionType(SubscriptionType.Failover).consumerName("a").subscribe();
                Consumer<byte[]> second = sub(other, topic).subscriptionType(SubscriptionType.Failover).consumerName("b").subscribe();
                publish(c, topic, numbered(20));
                List<Message<byte[]>> got = receive(first, 10);
                first.close();
                got.addAll(receive(second, 10));
                return said(data(got), numbered(20));
            }
        });
        THINGS.put("shared", (c, topic) -> {
            Consumer<byte[]> a = sub(c, topic).subscriptionType(SubscriptionType.Shared).receiverQueueSize(5).subscribe();
            Consumer<byte[]> b = sub(c, topic).subscriptionType(SubscriptionType.Shared).receiverQueueSize(5).subscribe();
            publish(c, topic, numbered(60));
            List<List<Message<byte[]>>> got = pooled(60, a, b);
            Set<String> all = new HashSet<>(data(got.get(0)));
            all.addAll(data(got.get(1)));
            return all.size() + " of " + (got.get(0).size() + got.get(1).size()) + ", "
                    + (got.get(0).isEmpty() || got.get(1).isEmpty() ? "one has none" : "both have some");
        });
        THINGS.put("key shared", (c, topic) -> {
            Consumer<byte[]> a = sub(c, topic).subscriptionType(SubscriptionType.Key_Shared).subscribe();
            Consumer<byte[]> b = sub(c, topic).subscriptionType(SubscriptionType.Key_Shared).subscribe();
            Producer<byte[]> producer = c.newProducer().topic(topic).enableBatching(false).create();
            for (int n = 0; n < 60; n++) {
                producer.newMessage().key("k" + n % 12).value(String.valueOf(n).getBytes()).send();
            }
            List<List<Message<byte[]>>> got = pooled(60, a, b);
            boolean inOrder = true;
            for (List<Message<byte[]>> mine : got) {
                Map<String, Integer> last = new HashMap<>();
                for (Message<byte[]> message : mine) {
                    int n = Integer.parseInt(new String(message.getData()));
                    inOrder &= last.getOrDefault(message.getKey(), -1) < n;
                    last.put(message.getKey(), n);
                }
            }
            return byKey(got) + (inOrder ? ", in order" : ", out of order");
        });
        THINGS.put("batches of mixed keys", (c, topic) -> {
            Consumer<byte[]> consumer = sub(c, topic).subscribe();
            Producer<byte[]> producer = c.newProducer().topic(topic).batchingMaxPublishDelay(20, TimeUnit.MILLISECONDS).create();
            for (int n = 0; n < 30; n++) {
                producer.newMessage().key("k" + n % 7).property("n", "" + n).value(("" + n).getBytes()).sendAsync();
            }
            producer.flush();
            List<Message<byte[]>> got = receive(consumer, 30);
            boolean kept = got.stream().allMatch(m -> m.getProperty("n").equals(new String(m.getData()))
                    && m.getKey().equals("k" + Integer.parseInt(new String(m.getData())) % 7));
            return said(data(got), numbered(30, "")) + (kept ? ", keys kept" : ", keys lost");
        });
        THINGS.put("batches by key", (c, topic) -> {
            Consumer<byte[]> a = sub(c, topic).subscriptionType(SubscriptionType.Key_Shared).subscribe();
            Consumer<byte[]> b = sub(c, topic).subscriptionType(SubscriptionType.Key_Shared).subscribe();
            Producer<byte[]> producer = c.newProducer().topic(topic).batchingMaxPublishDelay(20, TimeUnit.MILLISECONDS)
                    .batcherBuilder(BatcherBuilder.KEY_BASED).create();
            for (int n = 0; n < 60; n++) {
                producer.newMessage().key("k" + n % 12).value(("" + n).getBytes()).sendAsync();
            }
            producer.flush();
            return byKey(pooled(60, a, b));
        });
        THINGS.put("part of a batch acknowledged", (c, topic) -> {
            Consumer<byte[]> consumer = sub(c, topic).subscriptionType(SubscriptionType.Shared).enableBatchIndexAcknowledgment(true)
                    .acknowledgmentGroupTime(0, TimeUnit.SECONDS).subscribe();
            publish(c.newProducer().topic(topic).batchingMaxPublishDelay(200, TimeUnit.MILLISECONDS), numbered(10));
            for (Message<byte[]> message : receive(consumer, 10, false).subList(0, 5)) {
                consumer.acknowledge(message);
            }
            consumer.close();
            Consumer<byte[]> again = sub(c, topic).subscriptionType(SubscriptionType.Shared).enableBatchIndexAcknowledgment(true).subscribe();
            List<Message<byte[]>> got = receive(again, 5);
            got.addAll(drain(again, SILENCE_MS));
            return "others come again: " + said(data(got), numbered(10).subList(5, 10));
        });
        THINGS.put("cumulative acknowledgement", (c, topic) -> {
            Consumer<byte[]> consumer = sub(c, topic).subscribe();
            publish(c, topic, numbered(10));
            consumer.acknowledgeCumulative(receive(consumer, 10, false).get(5));
            consumer.close();
            Consumer<byte[]> again = sub(c, topic).subscribe();
            List<Message<byte[]>> got = receive(again, 4);
            got.addAll(drain(again, SILENCE_MS));
            return "others come again: " + said(data(got), numbered(10).subList(6, 10));
        });
        THINGS.put("chunks", (c, topic) -> {
            byte[] payload = new byte[12_000_000];
            new Random(7).nextBytes(payload);
            Consumer<byte[]> consumer = sub(c, topic).subscribe();
            Producer<byte[]> producer = c.newProducer().topic(topic).enableBatching(false).enableChunking(true).create();
            producer.send("small".getBytes());
            producer.send(payload);
            byte[] large = receive(consumer, 2).get(1).getData();
            return large.length + " bytes, " + (Arrays.equals(large, payload) ? "the same" : "others");
        });
        for (Map.Entry<String, CompressionType> codec : Map.of("LZ4", CompressionType.LZ4, "zlib", CompressionType.ZLIB,
                "zstd", CompressionType.ZSTD, "Snappy", CompressionType.SNAPPY).entrySet()) {
            THINGS.put("compression " + codec.getKey(), (c, topic) -> {
                Consumer<byte[]> consumer = sub(c, topic).subscribe();
                List<String> payloads = numbered(10, "x".repeat(1000)), twice = new ArrayList<>(payloads);
                twice.addAll(payloads);
                publish(c.newProducer().topic(topic).compressionType(codec.getValue()), payloads);
                publish(c.newProducer().topic(topic).compressionType(codec.getValue()).enableBatching(false), payloads);
                return said(data(receive(consumer, 20)), twice);
            });
        }
        THINGS.put("schema JSON", (c, topic) -> withSchema(c, topic, Schema.JSON(Ordered.class)));
        THINGS.put("schema Avro", (c, topic) -> withSchema(c, topic, Schema.AVRO(Ordered.class)));
        THINGS.put("schema evolved", (c, topic) -> {
            c.newProducer(Schema.AVRO(Ordered.class)).topic(topic).create().send(ordered("old", 1));
            // the record's name in its definition is that of the class; only its fields count
            Versions.Ordered wider = new Versions.Ordered();
            wider.name = "new";
            c.newProducer(Schema.AVRO(Versions.Ordered.class)).topic(topic).create().send(wider);
            Consumer<Ordered> consumer = c.newConsumer(Schema.AVRO(Ordered.class)).topic(topic).subscriptionName("s")
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
            return receive(consumer, 2).stream().map(m -> m.getValue().name).collect(Collectors.joining(" "));
        });
        THINGS.put("schema refused", (c, topic) -> {
            c.newProducer(Schema.AVRO(Ordered.class)).topic(topic).create().send(ordered("old", 1));
            try {
                c.newProducer(Schema.AVRO(Others.Ordered.class)).topic(topic).create();
                return "admitted";
            } catch (PulsarClientException.IncompatibleSchemaException refused) {
                return "refused";
            }
        });
        THINGS.put("schema string", (c, topic) -> {
            Consumer<String> consumer = c.newConsumer(Schema.STRING).topic(topic).subscriptionName("s").subscribe();
            c.newProducer(Schema.STRING).topic(topic).create().send("text");
            return receive(consumer, 1).get(0).getValue();
        });
        THINGS.put("encryption", (c, topic) -> {
            Consumer<byte[]> consumer = sub(c, topic).defaultCryptoKeyReader(Map.of("lab", "file://" + told.get("private"))).subscribe();
            publish(c.newProducer().topic(topic).addEncryptionKey("lab")
                    .defaultCryptoKeyReader(Map.of("lab", "file://" + told.get("public"))), numbered(10));
            return said(data(receive(consumer, 10)), numbered(10));
        });
        THINGS.put("dead letters", (c, topic) -> letters(c, topic, false));
        THINGS.put("retry topic", (c, topic) -> letters(c, topic, true));
        THINGS.put("seek by id", (c, topic) -> {
            Consumer<byte[]> consumer = sub(c, topic).subscribe();
            publish(c, topic, numbered(10));
            consumer.seek(receive(consumer, 10).get(4).getMessageId());
            return "from there: " + said(data(receive(consumer, 5)), numbered(10).subList(5, 10));
        });
        THINGS.put("seek by time", (c, topic) -> {
            Consumer<byte[]> consumer = sub(c, topic).subscribe();
            publish(c, topic, numbered(5, "early"));
            Thread.sleep(50);
            long moment = System.currentTimeMillis();
            Thread.sleep(50);
            publish(c, topic, numbered(5, "late"));
            receive(consumer, 10);
            consumer.seek(moment);
            return "from there: " + said(data(receive(consumer, 5)), numbered(5, "late"));
        });
        THINGS.put("seek to the begin", (c, topic) -> {
            Consumer<byte[]> consumer = sub(c, topic).subscribe();
            publish(c, topic, numbered(10));
            receive(consumer, 10);
            consumer.seek(MessageId.earliest);
            return said(data(receive(consumer, 10)), numbered(10));
        });
        THINGS.put("reader from the begin", (c, topic) -> {
            publish(c.newProducer().topic(topic), numbered(20));
            return said(readAll(c.newReader().topic(topic).startMessageId(MessageId.earliest).create()), numbered(20));
        });
        THINGS.put("reader from an id", (c, topic) -> {
            Producer<byte[]> producer = c.newProducer().topic(topic).enableBatching(false).create();
            List<MessageId> ids = new ArrayList<>();
            for (String payload : numbered(10)) {
                ids.add(producer.send(payload.getBytes()));
            }
            List<String> got = readAll(c.newReader().topic(topic).startMessageId(ids.get(3)).startMessageIdInclusive().create());
            return "from there: " + (got.equals(numbered(10).subList(3, 10)) ? "in order" : said(got, numbered(10).subList(3, 10)));
        });
        THINGS.put("last message id", (c, topic) -> {
            Consumer<byte[]> consumer = sub(c, topic).subscribe();
            Producer<byte[]> producer = c.newProducer().topic(topic).enableBatching(false).create();
            producer.send("a".getBytes());
            MessageId sent = producer.send("b".getBytes());
            MessageId last = consumer.getLastMessageId();
            return sent.compareTo(last) == 0 ? "the last one" : "" + last;
        });
        THINGS.put("table view", (c, topic) -> {
            Producer<byte[]> producer = c.newProducer().topic(topic).create();
            for (int n = 0; n < 10; n++) {
                producer.newMessage().key("k" + n % 3).value(("" + n).getBytes()).send();
            }
            TableView<byte[]> view = newTableView(c, topic);
            Map<String, String> seen = new TreeMap<>();
            view.forEach((key, value) -> seen.put(key, new String(value)));
            return seen.entrySet().stream().map(e -> e.getKey() + "=" + e.getValue()).collect(Collectors.joining(" "));
        });
        THINGS.put("pattern", (c, topic) -> {
            publish(c, topic + "-a", List.of());
            Consumer<byte[]> consumer = c.newConsumer().topicsPattern(Pattern.compile(topic + "-.*")).subscriptionName("s")
                    .patternAutoDiscoveryPeriod(1, TimeUnit.SECONDS).subscribe();
            publish(c, topic + "-a", numbered(3));
            int count = receive(consumer, 3).size();
            Producer<byte[]> late = c.newProducer().topic(topic + "-b").create();
            for (int tries = 0; tries < 2 * SECONDS; tries++) {
                late.send("late".getBytes());
                if (consumer.receive(500, TimeUnit.MILLISECONDS) != null) {
                    return count + ", and of a later topic";
                }
            }
            return count + ", none of a later topic";
        });
        THINGS.put("several topics", (c, topic) -> {
            List<String> topics = List.of(topic + "-a", topic + "-b", topic + "-c");
            Consumer<byte[]> consumer = c.newConsumer().topics(topics).subscriptionName("s").subscribe();
            for (String name : topics) {
                publish(c, name, numbered(4, name.substring(name.length() - 1)));
            }
            List<Message<byte[]>> got = receive(consumer, 12);
            return new HashSet<>(data(got)).size() + " of " + got.stream().map(Message::getTopicName).distinct().count() + " topics";
        });
        THINGS.put("partitions", (c, topic) -> {
            please("PUT", path(topic) + "/partitions", "3");
            Consumer<byte[]> consumer = sub(c, topic).subscribe();
            Producer<byte[]> producer = c.newProducer().topic(topic).create();
            for (int n = 0; n < 30; n++) {
                producer.newMessage().key("k" + n % 10).value(("" + n).getBytes()).send();
            }
            Map<String, Set<String>> ofKey = new HashMap<>();
            List<Message<byte[]>> got = receive(consumer, 30);
            got.forEach(m -> ofKey.computeIfAbsent(m.getKey(), key -> new HashSet<>()).add(m.getTopicName()));
            return new HashSet<>(data(got)).size() + ", " + (ofKey.values().stream().allMatch(found -> found.size() == 1)
                    ? "each key in one" : "keys in several");
        });
        THINGS.put("partitions added", (c, topic) -> {
            please("PUT", path(topic) + "/partitions", "1");
            Producer<byte[]> producer = c.newProducer().topic(topic).enableBatching(false)
                    .messageRoutingMode(org.apache.pulsar.client.api.MessageRoutingMode.RoundRobinPartition)
                    .autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).create();
            Consumer<byte[]> consumer = sub(c, topic).autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).subscribe();
            producer.send("before".getBytes());
            please("POST", path(topic) + "/partitions", "3");
            long until = System.currentTimeMillis() + SECONDS * 1000;
            Set<String> from = new HashSet<>(), received = new HashSet<>();
            int sent = 1;
            while (from.size() < 3 && System.currentTimeMillis() < until) {
                producer.send(("" + sent++).getBytes());
                Message<byte[]> message = consumer.receive(200, TimeUnit.MILLISECONDS);
                if (message != null) {
                    received.add(new String(message.getData()));
                    from.add(message.getTopicName());
                }
            }
            received.addAll(data(drain(consumer, 3 * SILENCE_MS)));
            return (received.size() == sent ? "10" : "some missing, " + received.size() + " of " + sent) + " of " + from.size() + " partitions";
        });
        THINGS.put("negative acknowledgement", (c, topic) -> {
            Consumer<byte[]> consumer = sub(c, topic).subscriptionType(SubscriptionType.Shared).subscribe();
            publish(c, topic, List.of("again"));
            consumer.negativeAcknowledge(receive(consumer, 1, false).get(0));
            Message<byte[]> message = receive(consumer, 1).get(0);
            return new String(message.getData()) + ", count " + message.getRedeliveryCount();
        });
        THINGS.put("acknowledgement timeout", (c, topic) -> {
            Consumer<byte[]> consumer = sub(c, topic).subscriptionType(SubscriptionType.Shared).ackTimeout(2, TimeUnit.SECONDS).subscribe();
            publish(c, topic, List.of("again"));
            receive(consumer, 1, false);
            Message<byte[]> message = receive(consumer, 1).get(0);
            return new String(message.getData()) + ", count " + message.getRedeliveryCount();
        });
        THINGS.put("delayed", (c, topic) -> {
            Consumer<byte[]> consumer = sub(c, topic).subscriptionType(SubscriptionType.Shared).subscribe();
            Producer<byte[]> producer = c.newProducer().topic(topic).enableBatching(false).create();
            producer.newMessage().value("later".getBytes()).deliverAfter(1, TimeUnit.SECONDS).send();
            long sent = System.currentTimeMillis();
            producer.send("now".getBytes());
            List<Message<byte[]>> got = receive(consumer, 2);
            long late = System.currentTimeMillis() - sent;
            return String.join(", ", data(got)) + ", " + (late > 900 && late < 6000 ? "in time" : late + " ms");
        });
        THINGS.put("transaction committed", (c, topic) -> acrossTransaction(c, topic, true));
        THINGS.put("transaction aborted", (c, topic) -> acrossTransaction(c, topic, false));
        THINGS.put("deduplication", (c, topic) -> {
            String namespace = topic.substring(topic.lastIndexOf('/') + 1);
            please("PUT", "namespaces/public/" + namespace, "null");
            please("POST", "namespaces/public/" + namespace + "/deduplication", "true");
            String own = "persistent://public/" + namespace + "/t";
            Consumer<byte[]> consumer = sub(c, own).subscribe();
            Producer<byte[]> producer = c.newProducer().topic(own).producerName("p").enableBatching(false).create();
            for (int id : new int[] {1, 2, 2, 1, 3}) {
                producer.newMessage().sequenceId(id).value(("" + id).getBytes()).send();
            }
            return said(data(drain(consumer, 1500)), List.of("1", "2", "3"));
        });
        THINGS.put("closed in the middle", (c, topic) -> {
            Consumer<byte[]> consumer = sub(c, topic).subscriptionType(SubscriptionType.Shared).subscribe();
            publish(c, topic, numbered(20));
            List<Message<byte[]>> got = receive(consumer, 10);
            receive(consumer, 5, false);
            c.close();
            try (PulsarClient other = client()) {
                got.addAll(receive(sub(other, topic).subscriptionType(SubscriptionType.Shared).subscribe(), 10));
            }
            return said(data(got), numbered(20));
        });
        THINGS.put("broker started again", (c, topic) -> {
            Consumer<byte[]> consumer = sub(c, topic).subscribe();
            Producer<byte[]> producer = c.newProducer().topic(topic).sendTimeout(60, TimeUnit.SECONDS).create();
            for (String payload : numbered(10)) {
                producer.send(payload.getBytes());
            }
            Set<String> got = new LinkedHashSet<>(data(receive(consumer, 5)));
            please("restart", "", "null");
            for (String payload : numbered(10, "n")) {
                producer.send(payload.getBytes());
            }
            long until = System.currentTimeMillis() + 2 * SECONDS * 1000;
            while (got.size() < 20 && System.currentTimeMillis() < until) {
                Message<byte[]> message = consumer.receive(1, TimeUnit.SECONDS);
                if (message != null) {
                    consumer.acknowledge(message);
                    got.add(new String(message.getData()));
                }
            }
            List<String> expected = numbered(10);
            expected.addAll(numbered(10, "n"));
            return got.size() + " of 20, " + (new ArrayList<>(got).equals(expected) ? "in order" : "out of order");
        });
        THINGS.put("topic deleted", (c, topic) -> {
            Producer<byte[]> producer = c.newProducer().topic(topic).sendTimeout(20, TimeUnit.SECONDS).create();
            producer.send("before".getBytes());
            please("DELETE", path(topic) + "?force=true", "null");
            try {
                producer.send("after".getBytes());
            } catch (PulsarClientException gone) {
                c.newProducer().topic(topic).create().send("after".getBytes());
            }
            Consumer<byte[]> consumer = sub(c, topic).subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
            List<Message<byte[]>> got = receive(consumer, 1);
            got.addAll(drain(consumer, SILENCE_MS));
            return "only " + String.join(" ", data(got));
        });
        THINGS.put("unsubscribe", (c, topic) -> {
            Consumer<byte[]> consumer = sub(c, topic).subscribe();
            publish(c, topic, numbered(3));
            consumer.unsubscribe();
            return said(data(receive(sub(c, topic).subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe(), 3)),
                    numbered(3));
        });
        THINGS.put("properties and times", (c, topic) -> {
            Consumer<byte[]> consumer = sub(c, topic).subscribe();
            c.newProducer().topic(topic).enableBatching(false).create().newMessage().property("a", "1").property("empty", "")
                    .eventTime(12345).key("k").orderingKey("o".getBytes()).value("x".getBytes()).send();
            Message<byte[]> m = receive(consumer, 1).get(0);
            String pairs = new TreeMap<>(m.getProperties()).entrySet().stream().map(e -> "('" + e.getKey() + "', '" + e.getValue() + "')")
                    .collect(Collectors.joining(", "));
            return "[" + pairs + "] " + m.getEventTime() + " " + m.getKey() + " " + new String(m.getOrderingKey());
        });
        THINGS.put("exclusive producer", (c, topic) -> {
            c.newProducer().topic(topic).accessMode(ProducerAccessMode.Exclusive).create();
            try (PulsarClient other = client()) {
                other.newProducer().topic(topic).accessMode(ProducerAccessMode.Exclusive).create();
                return "second admitted";
            } catch (PulsarClientException.ProducerFencedException fenced) {
                return "second refused";
            }
        });
        THINGS.put("non-persistent", (c, topic) -> {
            String passing = topic.replace("persistent", "non-persistent");
            Consumer<byte[]> consumer = sub(c, passing).subscribe();
            publish(c.newProducer().topic(passing), numbered(10));
            return said(data(receive(consumer, 10)), numbered(10));
        });
        THINGS.put("without a queue", (c, topic) -> {
            Consumer<byte[]> consumer = sub(c, topic).receiverQueueSize(0).subscribe();
            publish(c, topic, numbered(5));
            List<Message<byte[]>> got = new ArrayList<>();
            for (int n = 0; n < 5; n++) {
                got.add(consumer.receive());
            }
            return said(data(got), numbered(5));
        });
        THINGS.put("forged token", (c, topic) -> refusedWith(builder(told.get("service")).authentication(
                AuthenticationFactory.token(told.get("forged")))));
        THINGS.put("expired token", (c, topic) -> refusedWith(builder(told.get("service")).authentication(
                AuthenticationFactory.token(told.get("expired")))));
        THINGS.put("token over TLS", (c, topic) -> {
            try (PulsarClient secure = builder(told.get("tls")).authentication(AuthenticationFactory.token(told.get("token")))
                    .tlsTrustCertsFilePath(told.get("trusted")).enableTlsHostnameVerification(true).build()) {
                Consumer<byte[]> consumer = sub(secure, topic).subscribe();
                publish(secure, topic, numbered(10));
                return said(data(receive(consumer, 10)), numbered(10));
            }
        });
        THINGS.put("TLS of a stranger", (c, topic) -> refusedWith(builder(told.get("tls"))
                .tlsTrustCertsFilePath(told.get("stranger")).operationTimeout(5, TimeUnit.SECONDS)));
        THINGS.put("lookup over HTTP", (c, topic) -> {
            try (PulsarClient other = PulsarClient.builder().serviceUrl(told.get("http")).statsInterval(0, TimeUnit.SECONDS).build()) {
                Consumer<byte[]> consumer = sub(other, topic).subscribe();
                publish(other, topic, numbered(5));
                return said(data(receive(consumer, 5)), numbered(5));
            }
        });
    }

    static List<String> readAll(Reader<byte[]> reader) throws Exception {
        List<String> got = new ArrayList<>();
        while (reader.hasMessageAvailable()) {
            got.add(new String(reader.readNext(SECONDS, TimeUnit.SECONDS).getData()));
        }
        return got;
    }

    @SuppressWarnings("unchecked")
    static TableView<byte[]> newTableView(PulsarClient c, String topic) throws Exception {
        // 2.10 has the schema in the view's builder, later versions may have it in the client
        Object made = c.getClass().getMethod("newTableViewBuilder", Schema.class).invoke(c, Schema.BYTES);
        return ((org.apache.pulsar.client.api.TableViewBuilder<byte[]>) made).topic(topic).create();
    }

    static String letters(PulsarClient c, String topic, boolean retries) throws Exception {
        Consumer<byte[]> dead = c.newConsumer().topic(topic + "-dead").subscriptionName("d").subscribe();
        DeadLetterPolicy.DeadLetterPolicyBuilder policy = DeadLetterPolicy.builder().maxRedeliverCount(2).deadLetterTopic(topic + "-dead");
        Consumer<byte[]> consumer = sub(c, topic).subscriptionType(SubscriptionType.Shared).enableRetry(retries)
                .deadLetterPolicy((retries ? policy.retryLetterTopic(topic + "-retry") : policy).build()).subscribe();
        publish(c, topic, List.of("bad"));
        long until = System.currentTimeMillis() + SECONDS * 1000;
        for (int count = 0; System.currentTimeMillis() < until; ) {
            Message<byte[]> message = consumer.receive(300, TimeUnit.MILLISECONDS);
            if (message != null) {
                count++;
                if (retries) {
                    consumer.reconsumeLater(message, 100, TimeUnit.MILLISECONDS);
                } else {
                    consumer.negativeAcknowledge(message);
                }
                continue;
            }
            Message<byte[]> letter = dead.receive(300, TimeUnit.MILLISECONDS);
            if (letter != null) {
                return count + " deliveries, then " + new String(letter.getData());
            }
        }
        return "no dead letter";
    }

    static Map<String, String> parsed(String json) {
        Map<String, String> found = new HashMap<>();      // a flat object of texts without escapes
        java.util.regex.Matcher pairs = Pattern.compile("\"([^\"]*)\": \"([^\"]*)\"").matcher(json);
        while (pairs.find()) {
            found.put(pairs.group(1), pairs.group(2));
        }
        return found;
    }

    interface Ask {
        /** Raises Lacks. */
        String answer(String name, String topic) throws Exception;
    }

    static String ask(String name, String topic) throws Exception {
        Thing thing = THINGS.get(name);
        if (thing == null) {
            throw new Lacks("not in this program");
        }
        PulsarClient c = client();
        try {
            return thing.run(c, topic);
        } finally {
            try {
                c.close();
            } catch (Exception closed) {
                closed.printStackTrace();
            }
        }
    }

    /** Ask each thing that the last argument names, print the answers, and end the program. */
    static void answerAll(String[] arguments, Ask ask) {
        told = parsed(arguments[arguments.length - 1]);
        System.setOut(System.err);
        for (String name : told.get("things").split(",")) {
            String answer;
            try {
                answer = ask.answer(name, "persistent://public/default/" + told.get("prefix") + "-" + name.replace(' ', '-'));
            } catch (Lacks lacks) {
                answer = "lacks: " + lacks.getMessage();
            } catch (Throwable error) {
                error.printStackTrace();
                answer = error.getClass().getSimpleName() + ": " + error.getMessage();
            }
            OUT.println("{\"thing\": " + quoted(name) + ", \"answer\": " + quoted(answer) + "}");
            OUT.flush();
        }
        System.exit(0);
    }

    public static void main(String[] arguments) {
        answerAll(arguments, Things::ask);
    }
}

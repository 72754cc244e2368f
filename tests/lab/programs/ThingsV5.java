import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.CheckpointConsumer;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.ProducerBuilder;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.PulsarClientBuilder;
import org.apache.pulsar.client.api.v5.PulsarClientException;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.QueueConsumerBuilder;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.Transaction;
import org.apache.pulsar.client.api.v5.auth.AuthenticationFactory;
import org.apache.pulsar.client.api.v5.auth.PemFileKeyProvider;
import org.apache.pulsar.client.api.v5.config.BackoffPolicy;
import org.apache.pulsar.client.api.v5.config.BatchingPolicy;
import org.apache.pulsar.client.api.v5.config.ChunkingPolicy;
import org.apache.pulsar.client.api.v5.config.CompressionPolicy;
import org.apache.pulsar.client.api.v5.config.CompressionType;
import org.apache.pulsar.client.api.v5.config.ConsumerEncryptionPolicy;
import org.apache.pulsar.client.api.v5.config.DeadLetterPolicy;
import org.apache.pulsar.client.api.v5.config.ProcessingTimeoutPolicy;
import org.apache.pulsar.client.api.v5.config.ProducerAccessMode;
import org.apache.pulsar.client.api.v5.config.ProducerEncryptionPolicy;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.config.TransactionPolicy;
import org.apache.pulsar.client.api.v5.schema.Schema;
import org.apache.pulsar.tls.TlsPolicy;

/** What the lab asks of the client of Pulsar 5 with its new API, each thing by its name. */
public class ThingsV5 {
    interface Thing {
        String run(PulsarClient c, String topic) throws Exception;
    }

    interface Receiving<T> {
        Message<T> receive(Duration wait) throws Exception;
    }

    static final Duration LONG = Duration.ofSeconds(Things.SECONDS), SILENCE = Duration.ofMillis(Things.SILENCE_MS);
    static final BatchingPolicy BATCHES = BatchingPolicy.builder().enabled(true).maxPublishDelay(Duration.ofMillis(20)).build();
    static final Map<String, Thing> THINGS = new LinkedHashMap<>();

    static PulsarClientBuilder builder(String url) throws Exception {
        return PulsarClient.builder().serviceUrl(Things.told.get(url)).operationTimeout(Duration.ofSeconds(20))
                .transactionPolicy(TransactionPolicy.builder().timeout(Duration.ofSeconds(30)).build());
    }

    static PulsarClient client() throws Exception {
        return builder("service").build();
    }

    static QueueConsumerBuilder<byte[]> queue(PulsarClient c, String topic) {
        return c.newQueueConsumer(Schema.bytes()).topic(topic).subscriptionName("s")
                .negativeAckRedeliveryBackoff(BackoffPolicy.exponential(Duration.ofMillis(100), Duration.ofMillis(200)));
    }

    static StreamConsumer<byte[]> stream(PulsarClient c, String topic, String name) throws Exception {
        return c.newStreamConsumer(Schema.bytes()).topic(topic).subscriptionName("s").consumerName(name).subscribe();
    }

    static ProducerBuilder<byte[]> producer(PulsarClient c, String topic) {
        return c.newProducer(Schema.bytes()).topic(topic);
    }

    static void publish(ProducerBuilder<byte[]> made, List<String> payloads) throws Exception {
        try (Producer<byte[]> producer = made.create()) {
            for (var sent : payloads.stream().map(one -> producer.async().newMessage().value(one.getBytes()).send()).toList()) {
                sent.get();
            }
        }
    }

    static <T> List<Message<T>> receive(Receiving<T> from, int count) throws Exception {
        List<Message<T>> got = new ArrayList<>();
        while (got.size() < count) {
            Message<T> message = from.receive(LONG);
            if (message == null) {
                throw new IllegalStateException("nothing more after " + got.size());
            }
            got.add(message);
        }
        return got;
    }

    static List<Message<byte[]>> take(QueueConsumer<byte[]> from, int count) throws Exception {
        List<Message<byte[]>> got = receive(from::receive, count);
        got.forEach(message -> from.acknowledge(message.id()));
        return got;
    }

    static List<Message<byte[]>> take(StreamConsumer<byte[]> from, int count) throws Exception {
        List<Message<byte[]>> got = receive(from::receive, count);
        from.acknowledgeCumulative(got.get(count - 1).id());
        return got;
    }

    static <T> List<Message<T>> drain(Receiving<T> from, Duration silence) throws Exception {
        List<Message<T>> got = new ArrayList<>();
        for (Message<T> message; (message = from.receive(silence)) != null;) {
            got.add(message);
        }
        return got;
    }

    static List<String> data(List<Message<byte[]>> messages) {
        return messages.stream().map(message -> new String(message.value())).collect(Collectors.toList());
    }

    static String said(List<Message<byte[]>> messages, List<String> expected) {
        return Things.said(data(messages), expected);
    }

    static String withSchema(PulsarClient c, String topic, Schema<Things.Ordered> schema) throws Exception {
        QueueConsumer<Things.Ordered> consumer = c.newQueueConsumer(schema).topic(topic).subscriptionName("s").subscribe();
        Producer<Things.Ordered> producer = c.newProducer(schema).topic(topic).create();
        for (int n = 0; n < 3; n++) {
            producer.newMessage().value(Things.ordered("n" + n, n)).send();
        }
        return receive(consumer::receive, 3).stream().map(m -> m.value().name + "=" + m.value().count).collect(Collectors.joining(" "));
    }

    static String refusedWith(PulsarClientBuilder made) throws Exception {
        try (PulsarClient other = made.build()) {
            producer(other, "persistent://public/default/" + Things.told.get("prefix") + "-credentials").create();
            return "admitted";
        } catch (PulsarClientException | RuntimeException refused) {
            return "refused";
        }
    }

    static PulsarClientBuilder secure(String trusted) throws Exception {
        return builder("tls").authentication(AuthenticationFactory.token(Things.told.get("token"))).tlsPolicy(TlsPolicy.builder()
                .trustCertsFilePath(Things.told.get(trusted)).enableHostnameVerification(true).build());
    }

    static String acrossTransaction(PulsarClient c, String topic, boolean commits) throws Exception {
        QueueConsumer<byte[]> input = queue(c, topic).subscribe(), output = queue(c, topic + "-out").subscribe();
        publish(producer(c, topic), List.of("input"));
        Transaction transaction = c.newTransaction();
        Message<byte[]> taken = receive(input::receive, 1).get(0);
        Producer<byte[]> producer = producer(c, topic + "-out").create();
        for (String payload : Things.numbered(5)) {
            producer.newMessage().transaction(transaction).value(payload.getBytes()).send();
        }
        input.acknowledge(taken.id(), transaction);
        String before = drain(output::receive, SILENCE).isEmpty() ? "nothing before" : "some before";
        if (commits) {
            transaction.commit();
            return before + ", then " + said(take(output, 5), Things.numbered(5));
        }
        transaction.abort();
        input.close();      // this client has no other way to be given it again
        return (drain(output::receive, SILENCE).isEmpty() ? "nothing" : "some") + ", and the "
                + data(take(queue(c, topic).subscribe(), 1)).get(0) + " again";
    }

    static {
        THINGS.put("failover", (c, topic) -> {
            try (PulsarClient other = client()) {
                StreamConsumer<byte[]> first = stream(c, topic, "a"), second = stream(other, topic, "b");
                publish(producer(c, topic), Things.numbered(20));
                List<Message<byte[]>> got = take(first, 10);
                first.close();
                got.addAll(take(second, 10));
                return said(got, Things.numbered(20));
            }
        });
        THINGS.put("shared", (c, topic) -> {
            List<QueueConsumer<byte[]>> consumers = List.of(queue(c, topic).receiverQueueSize(5).subscribe(),
                    queue(c, topic).receiverQueueSize(5).subscribe());
            publish(producer(c, topic).batchingPolicy(BatchingPolicy.ofDisabled()), Things.numbered(60));
            List<Message<byte[]>> got = new ArrayList<>();
            int[] of = new int[2];
            long until = System.currentTimeMillis() + LONG.toMillis();
            while (got.size() < 60 && System.currentTimeMillis() < until) {
                for (int at = 0; at < 2; at++) {
                    Message<byte[]> message = consumers.get(at).receive(Duration.ofMillis(20));
                    if (message != null) {
                        consumers.get(at).acknowledge(message.id());
                        of[at] += got.add(message) ? 1 : 0;
                    }
                }
            }
            return new HashSet<>(data(got)).size() + " of " + got.size() + ", " + (of[0] * of[1] > 0 ? "both have some" : "one has none");
        });
        THINGS.put("batches of mixed keys", (c, topic) -> {
            QueueConsumer<byte[]> consumer = queue(c, topic).subscribe();
            Producer<byte[]> producer = producer(c, topic).batchingPolicy(BATCHES).create();
            for (int n = 0; n < 30; n++) {
                producer.async().newMessage().key("k" + n % 7).property("n", "" + n).value(("" + n).getBytes()).send();
            }
            producer.async().flush().get();
            List<Message<byte[]>> got = take(consumer, 30);
            boolean kept = got.stream().allMatch(m -> m.properties().get("n").equals(new String(m.value()))
                    && m.key().get().equals("k" + Integer.parseInt(new String(m.value())) % 7));
            return said(got, Things.numbered(30, "")) + (kept ? ", keys kept" : ", keys lost");
        });
        THINGS.put("cumulative acknowledgement", (c, topic) -> {
            StreamConsumer<byte[]> consumer = stream(c, topic, "a");
            publish(producer(c, topic).batchingPolicy(BatchingPolicy.ofDisabled()), Things.numbered(10));
            consumer.acknowledgeCumulative(receive(consumer::receive, 10).get(5).id());
            consumer.close();
            StreamConsumer<byte[]> again = stream(c, topic, "a");
            return "others come again: " + said(drain(again::receive, Duration.ofSeconds(2)), Things.numbered(10).subList(6, 10));
        });
        THINGS.put("chunks", (c, topic) -> {
            byte[] large = new byte[12_000_000];
            new Random(1).nextBytes(large);
            QueueConsumer<byte[]> consumer = queue(c, topic).subscribe();
            producer(c, topic).batchingPolicy(BatchingPolicy.ofDisabled()).chunkingPolicy(ChunkingPolicy.builder().enabled(true)
                    .chunkSize(4_000_000).build())
                    .create().newMessage().value(large).send();
            byte[] got = take(consumer, 1).get(0).value();
            return got.length + " bytes, " + (java.util.Arrays.equals(got, large) ? "the same" : "others");
        });
        for (CompressionType type : List.of(CompressionType.LZ4, CompressionType.ZLIB, CompressionType.ZSTD, CompressionType.SNAPPY)) {
            String name = Map.of("ZLIB", "zlib", "ZSTD", "zstd", "SNAPPY", "Snappy").getOrDefault(type.name(), type.name());
            THINGS.put("compression " + name, (c, topic) -> {
                QueueConsumer<byte[]> consumer = queue(c, topic).subscribe();
                List<String> payloads = Things.numbered(20, "x".repeat(1000));
                publish(producer(c, topic).compressionPolicy(CompressionPolicy.of(type)).batchingPolicy(BATCHES), payloads.subList(0, 10));
                publish(producer(c, topic).compressionPolicy(CompressionPolicy.of(type)).batchingPolicy(BatchingPolicy.ofDisabled()),
                        payloads.subList(10, 20));
                return said(take(consumer, 20), payloads);
            });
        }
        THINGS.put("schema JSON", (c, topic) -> withSchema(c, topic, Schema.json(Things.Ordered.class)));
        THINGS.put("schema Avro", (c, topic) -> withSchema(c, topic, Schema.avro(Things.Ordered.class)));
        THINGS.put("schema refused", (c, topic) -> {
            c.newProducer(Schema.avro(Things.Ordered.class)).topic(topic).create().newMessage().value(Things.ordered("old", 1)).send();
            try {
                c.newProducer(Schema.avro(Things.Others.Ordered.class)).topic(topic).create().newMessage()
                        .value(new Things.Others.Ordered()).send();
                return "admitted";
            } catch (PulsarClientException refused) {
                return "refused";
            }
        });
        THINGS.put("schema string", (c, topic) -> {
            QueueConsumer<String> consumer = c.newQueueConsumer(Schema.string()).topic(topic).subscriptionName("s").subscribe();
            c.newProducer(Schema.string()).topic(topic).create().newMessage().value("text").send();
            return receive(consumer::receive, 1).get(0).value();
        });
        THINGS.put("encryption", (c, topic) -> {
            PemFileKeyProvider keys = PemFileKeyProvider.builder().publicKey("lab", Path.of(Things.told.get("public")))
                    .privateKey("lab", Path.of(Things.told.get("private"))).build();
            QueueConsumer<byte[]> consumer = queue(c, topic).encryptionPolicy(
                    ConsumerEncryptionPolicy.builder().privateKeyProvider(keys).build()).subscribe();
            publish(producer(c, topic).encryptionPolicy(ProducerEncryptionPolicy.builder().publicKeyProvider(keys).keyName("lab").build()),
                    Things.numbered(10));
            return said(take(consumer, 10), Things.numbered(10));
        });
        THINGS.put("dead letters", (c, topic) -> {
            QueueConsumer<byte[]> dead = queue(c, topic + "-dead").subscribe();
            QueueConsumer<byte[]> consumer = queue(c, topic).deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2)
                    .deadLetterTopic(topic + "-dead").build()).subscribe();
            publish(producer(c, topic), List.of("bad"));
            long until = System.currentTimeMillis() + LONG.toMillis();
            for (int count = 0; System.currentTimeMillis() < until;) {
                Message<byte[]> message = consumer.receive(Duration.ofMillis(300));
                Message<byte[]> letter = message == null ? dead.receive(Duration.ofMillis(300)) : null;
                if (message != null) {
                    count++;
                    consumer.negativeAcknowledge(message.id());
                } else if (letter != null) {
                    return count + " deliveries, then " + new String(letter.value());
                }
            }
            return "no dead letter";
        });
        THINGS.put("reader from the begin", (c, topic) -> {
            publish(producer(c, topic), Things.numbered(20));
            return said(receive(reader(c, topic, Checkpoint.earliest())::receive, 20), Things.numbered(20));
        });
        THINGS.put("reader from an id", (c, topic) -> {
            publish(producer(c, topic), Things.numbered(10));
            CheckpointConsumer<byte[]> reader = reader(c, topic, Checkpoint.earliest());
            receive(reader::receive, 4);
            Checkpoint there = Checkpoint.fromByteArray(reader.checkpoint().toByteArray());
            String found = said(receive(reader(c, topic, there)::receive, 6), Things.numbered(10).subList(4, 10));
            return "from there: " + (found.equals("6 in order") ? "in order" : found);
        });
        THINGS.put("partitions", (c, topic) -> {
            Things.please("PUT", Things.path(topic) + "/partitions", "3");
            QueueConsumer<byte[]> consumer = queue(c, topic).subscribe();
            Producer<byte[]> producer = producer(c, topic).create();
            for (int n = 0; n < 30; n++) {
                producer.newMessage().key("k" + n % 10).value(("" + n).getBytes()).send();
            }
            Map<String, Set<String>> ofKey = new HashMap<>();
            List<Message<byte[]>> got = take(consumer, 30);
            got.forEach(m -> ofKey.computeIfAbsent(m.key().get(), key -> new HashSet<>()).add(m.topic()));
            return new HashSet<>(data(got)).size() + ", "
                    + (ofKey.values().stream().allMatch(found -> found.size() == 1) ? "each key in one" : "keys in several");
        });
        THINGS.put("negative acknowledgement", (c, topic) -> again(c, topic, queue(c, topic).subscribe(), true));
        THINGS.put("acknowledgement timeout", (c, topic) -> again(c, topic, queue(c, topic).processingTimeout(
                ProcessingTimeoutPolicy.of(Duration.ofSeconds(2))).subscribe(), false));
        THINGS.put("delayed", (c, topic) -> {
            QueueConsumer<byte[]> consumer = queue(c, topic).subscribe();
            Producer<byte[]> producer = producer(c, topic).create();
            producer.newMessage().value("later".getBytes()).deliverAfter(Duration.ofSeconds(1)).send();
            long sent = System.currentTimeMillis();
            producer.newMessage().value("now".getBytes()).send();
            List<Message<byte[]>> got = take(consumer, 2);
            long late = System.currentTimeMillis() - sent;
            return String.join(", ", data(got)) + ", " + (late > 900 && late < 6000 ? "in time" : late + " ms");
        });
        THINGS.put("transaction committed", (c, topic) -> acrossTransaction(c, topic, true));
        THINGS.put("transaction aborted", (c, topic) -> acrossTransaction(c, topic, false));
        THINGS.put("deduplication", (c, topic) -> {
            String namespace = topic.substring(topic.lastIndexOf('/') + 1);
            Things.please("PUT", "namespaces/public/" + namespace, "null");
            Things.please("POST", "namespaces/public/" + namespace + "/deduplication", "true");
            String own = "persistent://public/" + namespace + "/t";
            QueueConsumer<byte[]> consumer = queue(c, own).subscribe();
            Producer<byte[]> producer = producer(c, own).producerName("p").batchingPolicy(BatchingPolicy.ofDisabled()).create();
            for (int id : new int[] {1, 2, 2, 1, 3}) {
                producer.newMessage().sequenceId(id).value(("" + id).getBytes()).send();
            }
            return said(drain(consumer::receive, Duration.ofMillis(1500)), List.of("1", "2", "3"));
        });
        THINGS.put("closed in the middle", (c, topic) -> {
            QueueConsumer<byte[]> consumer = queue(c, topic).subscribe();
            publish(producer(c, topic).batchingPolicy(BatchingPolicy.ofDisabled()), Things.numbered(20));
            List<Message<byte[]>> got = take(consumer, 10);
            receive(consumer::receive, 5);
            c.close();
            try (PulsarClient other = client()) {
                got.addAll(take(queue(other, topic).subscribe(), 10));
            }
            return said(got, Things.numbered(20));
        });
        THINGS.put("broker started again", (c, topic) -> {
            QueueConsumer<byte[]> consumer = queue(c, topic).subscribe();
            Producer<byte[]> producer = producer(c, topic).sendTimeout(Duration.ofSeconds(60)).create();
            for (String payload : Things.numbered(10)) {
                producer.newMessage().value(payload.getBytes()).send();
            }
            Set<String> got = new LinkedHashSet<>(data(take(consumer, 5)));
            Things.please("restart", "", "null");
            for (String payload : Things.numbered(10, "n")) {
                producer.newMessage().value(payload.getBytes()).send();
            }
            long until = System.currentTimeMillis() + 2 * LONG.toMillis();
            while (got.size() < 20 && System.currentTimeMillis() < until) {
                Message<byte[]> message = consumer.receive(Duration.ofSeconds(1));
                if (message != null) {
                    consumer.acknowledge(message.id());
                    got.add(new String(message.value()));
                }
            }
            List<String> expected = Things.numbered(10);
            expected.addAll(Things.numbered(10, "n"));
            return got.size() + " of 20, " + (new ArrayList<>(got).equals(expected) ? "in order" : "out of order");
        });
        THINGS.put("properties and times", (c, topic) -> {
            QueueConsumer<byte[]> consumer = queue(c, topic).subscribe();
            producer(c, topic).create().newMessage().property("a", "1").property("empty", "").eventTime(Instant.ofEpochMilli(12345))
                    .key("k").value("x".getBytes()).send();
            Message<byte[]> m = take(consumer, 1).get(0);
            String pairs = new TreeMap<>(m.properties()).entrySet().stream().map(e -> "('" + e.getKey() + "', '" + e.getValue() + "')")
                    .collect(Collectors.joining(", "));
            return "[" + pairs + "] " + m.eventTime().get().toEpochMilli() + " " + m.key().get();
        });
        THINGS.put("exclusive producer", (c, topic) -> {
            producer(c, topic).accessMode(ProducerAccessMode.EXCLUSIVE).create();
            try (PulsarClient other = client()) {
                producer(other, topic).accessMode(ProducerAccessMode.EXCLUSIVE).create();
                return "second admitted";
            } catch (PulsarClientException fenced) {
                return "second refused";
            }
        });
        THINGS.put("forged token", (c, topic) -> refusedWith(builder("service").authentication(
                AuthenticationFactory.token(Things.told.get("forged")))));
        THINGS.put("expired token", (c, topic) -> refusedWith(builder("service").authentication(
                AuthenticationFactory.token(Things.told.get("expired")))));
        THINGS.put("token over TLS", (c, topic) -> {
            try (PulsarClient other = secure("trusted").build()) {
                QueueConsumer<byte[]> consumer = queue(other, topic).subscribe();
                publish(producer(other, topic), Things.numbered(10));
                return said(take(consumer, 10), Things.numbered(10));
            }
        });
        THINGS.put("TLS of a stranger", (c, topic) -> refusedWith(secure("stranger").operationTimeout(Duration.ofSeconds(5))));
    }

    static CheckpointConsumer<byte[]> reader(PulsarClient c, String topic, Checkpoint start) throws Exception {
        return c.newCheckpointConsumer(Schema.bytes()).topic(topic).startPosition(start).create();
    }

    static String again(PulsarClient c, String topic, QueueConsumer<byte[]> consumer, boolean says) throws Exception {
        publish(producer(c, topic), List.of("again"));
        Message<byte[]> first = receive(consumer::receive, 1).get(0);
        if (says) {
            consumer.negativeAcknowledge(first.id());
        }
        Message<byte[]> message = take(consumer, 1).get(0);
        return new String(message.value()) + ", count " + message.redeliveryCount();
    }

    public static void main(String[] arguments) {
        Things.answerAll(arguments, (name, topic) -> {
            try (PulsarClient c = client()) {
                return THINGS.get(name).run(c, topic);
            }
        });
    }
}

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.reactive.client.adapter.AdaptedReactivePulsarClientFactory;
import org.apache.pulsar.reactive.client.api.MessageResult;
import org.apache.pulsar.reactive.client.api.MessageSpec;
import org.apache.pulsar.reactive.client.api.ReactiveMessageConsumerBuilder;
import org.apache.pulsar.reactive.client.api.ReactiveMessagePipeline;
import org.apache.pulsar.reactive.client.api.ReactiveMessageSenderBuilder;
import org.apache.pulsar.reactive.client.api.ReactivePulsarClient;
import org.apache.pulsar.reactive.client.api.StartAtSpec;
import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;

/** What the lab asks of the reactive client of Java, each thing by its name. */
public class ThingsReactive {
    static final Duration LONG = Duration.ofSeconds(Things.SECONDS), SILENCE = Duration.ofMillis(2 * Things.SILENCE_MS);

    static ReactiveMessageSenderBuilder<byte[]> sender(ReactivePulsarClient c, String topic) {
        return c.messageSender(Schema.BYTES).topic(topic);
    }

    static ReactiveMessageConsumerBuilder<byte[]> consumer(ReactivePulsarClient c, String topic) {
        return c.messageConsumer(Schema.BYTES).topic(topic).subscriptionName("s").negativeAckRedeliveryDelay(Duration.ofMillis(200))
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
    }

    static List<MessageId> publish(ReactiveMessageSenderBuilder<byte[]> made, List<String> payloads) {
        return made.build().sendMany(Flux.fromIterable(payloads).map(one -> MessageSpec.of(one.getBytes())))
                .map(result -> result.getMessageId()).collectList().block(LONG);
    }

    static <T> List<Message<T>> take(ReactiveMessageConsumerBuilder<T> made, int count) {
        return made.build().consumeMany(messages -> messages.map(MessageResult::acknowledgeAndReturn)).take(count).collectList().block(LONG);
    }

    static String said(List<Message<byte[]>> messages, List<String> expected) {
        return Things.said(Things.data(messages), expected);
    }

    static String roundTrip(PulsarClient plain, String topic, int count) {
        ReactivePulsarClient c = AdaptedReactivePulsarClientFactory.create(plain);
        publish(sender(c, topic), Things.numbered(count));
        return said(take(consumer(c, topic), count), Things.numbered(count));
    }

    static String compressed(ReactivePulsarClient c, String topic, CompressionType type) {
        List<String> payloads = Things.numbered(20, "x".repeat(1000));
        publish(sender(c, topic).compressionType(type), payloads.subList(0, 10));
        publish(sender(c, topic).compressionType(type).batchingEnabled(false), payloads.subList(10, 20));
        return said(take(consumer(c, topic), 20), payloads);
    }

    static String withSchema(ReactivePulsarClient c, String topic, Schema<Things.Ordered> schema) {
        c.messageSender(schema).topic(topic).build().sendMany(Flux.range(0, 3).map(n -> MessageSpec.of(Things.ordered("n" + n, n)))).blockLast(LONG);
        return take(c.messageConsumer(schema).topic(topic).subscriptionName("s")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest), 3).stream()
                .map(m -> m.getValue().name + "=" + m.getValue().count).collect(Collectors.joining(" "));
    }

    static String refusedWith(ClientBuilder made) throws Exception {
        try (PulsarClient other = made.build()) {
            publish(sender(AdaptedReactivePulsarClientFactory.create(other), Things.told.get("prefix") + "-credentials"), List.of("x"));
            return "admitted";
        } catch (PulsarClientException | RuntimeException refused) {
            return refused instanceof PulsarClientException || refused.getCause() instanceof PulsarClientException ? "refused"
                    : refused.toString();
        }
    }

    static void await(java.util.function.BooleanSupplier holds, long seconds) throws Exception {
        for (long until = System.currentTimeMillis() + seconds * 1000; !holds.getAsBoolean() && System.currentTimeMillis() < until;) {
            Thread.sleep(20);
        }
    }

    /** Return what two pipelines of one subscription get of 60 messages. */
    static List<List<Message<byte[]>>> pooled(ReactivePulsarClient c, String topic, SubscriptionType type) throws Exception {
        List<ConcurrentLinkedQueue<Message<byte[]>>> got = List.of(new ConcurrentLinkedQueue<>(), new ConcurrentLinkedQueue<>());
        List<ReactiveMessagePipeline> lines = new ArrayList<>();
        for (var mine : got) {
            lines.add(consumer(c, topic).subscriptionType(type).receiverQueueSize(5).build().messagePipeline()
                    .messageHandler(message -> Mono.fromRunnable(() -> mine.add(message))).build().start());
        }
        for (var line : lines) {
            line.untilStarted().block(LONG);
        }
        sender(c, topic).batchingEnabled(false).build().sendMany(Flux.range(0, 60).map(n -> MessageSpec.builder(("" + n).getBytes())
                .key("k" + n % 12).build())).blockLast(LONG);
        await(() -> got.get(0).size() + got.get(1).size() >= 60, Things.SECONDS);
        for (var line : lines) {
            line.close();
        }
        return got.stream().map(mine -> (List<Message<byte[]>>) new ArrayList<>(mine)).toList();
    }

    static String answer(PulsarClient plain, String name, String topic) throws Exception {
        ReactivePulsarClient c = AdaptedReactivePulsarClientFactory.create(plain);
        switch (name) {
            case "exclusive": {
                var holding = consumer(c, topic).build().messagePipeline().messageHandler(message -> Mono.never()).build().start();
                holding.untilStarted().block(LONG);
                String second = "second admitted";
                try (PulsarClient other = Things.client()) {
                    consumer(AdaptedReactivePulsarClientFactory.create(other), topic).build().consumeNothing().block(LONG);
                } catch (RuntimeException busy) {
                    second = busy.getCause() instanceof PulsarClientException.ConsumerBusyException ? "second refused" : busy.toString();
                }
                holding.close();
                return roundTrip(plain, topic, 20) + ", " + second;
            }
            case "shared": {
                List<List<Message<byte[]>>> got = pooled(c, topic, SubscriptionType.Shared);
                Set<String> all = new HashSet<>(Things.data(got.get(0)));
                all.addAll(Things.data(got.get(1)));
                return all.size() + " of " + (got.get(0).size() + got.get(1).size()) + ", "
                        + (got.get(0).isEmpty() || got.get(1).isEmpty() ? "one has none" : "both have some");
            }
            case "batches by key":
                return Things.byKey(pooled(c, topic, SubscriptionType.Key_Shared));
            case "batches of mixed keys": {
                sender(c, topic).build().sendMany(Flux.range(0, 30).map(n -> MessageSpec.builder(("" + n).getBytes()).key("k" + n % 7)
                        .property("n", "" + n).build())).blockLast(LONG);
                List<Message<byte[]>> got = take(consumer(c, topic), 30);
                boolean kept = got.stream().allMatch(m -> m.getProperty("n").equals(new String(m.getData()))
                        && m.getKey().equals("k" + Integer.parseInt(new String(m.getData())) % 7));
                return said(got, Things.numbered(30, "")) + (kept ? ", keys kept" : ", keys lost");
            }
            case "chunks": {
                byte[] large = new byte[12_000_000];
                new java.util.Random(1).nextBytes(large);
                sender(c, topic).chunkingEnabled(true).batchingEnabled(false).build().sendOne(MessageSpec.of(large)).block(LONG);
                byte[] got = take(consumer(c, topic), 1).get(0).getData();
                return got.length + " bytes, " + (java.util.Arrays.equals(got, large) ? "the same" : "others");
            }
            case "compression LZ4": return compressed(c, topic, CompressionType.LZ4);
            case "compression zlib": return compressed(c, topic, CompressionType.ZLIB);
            case "compression zstd": return compressed(c, topic, CompressionType.ZSTD);
            case "compression Snappy": return compressed(c, topic, CompressionType.SNAPPY);
            case "schema JSON": return withSchema(c, topic, Schema.JSON(Things.Ordered.class));
            case "schema Avro": return withSchema(c, topic, Schema.AVRO(Things.Ordered.class));
            case "dead letters": {
                int[] count = {0};
                consumer(c, topic + "-dead").build().consumeNothing().block(LONG);
                publish(sender(c, topic), List.of("bad"));
                ReactiveMessagePipeline line = consumer(c, topic).subscriptionType(SubscriptionType.Shared).deadLetterPolicy(DeadLetterPolicy
                        .builder().maxRedeliverCount(2).deadLetterTopic(topic + "-dead").build()).build().messagePipeline()
                        .messageHandler(message -> {
                            count[0]++;
                            return Mono.error(new IllegalStateException("bad"));
                        }).build().start();
                String letter = new String(take(consumer(c, topic + "-dead"), 1).get(0).getData());
                line.close();
                return count[0] + " deliveries, then " + letter;
            }
            case "reader from the begin": {
                publish(sender(c, topic), Things.numbered(20));
                return said(c.messageReader(Schema.BYTES).topic(topic).startAtSpec(StartAtSpec.ofEarliest()).build().readMany().collectList()
                        .block(LONG), Things.numbered(20));
            }
            case "reader from an id": {
                MessageId fourth = publish(sender(c, topic), Things.numbered(10)).get(3);
                String found = said(c.messageReader(Schema.BYTES).topic(topic).startAtSpec(StartAtSpec.ofMessageId(fourth, true)).build()
                        .readMany().collectList().block(LONG), Things.numbered(10).subList(3, 10));
                return "from there: " + (found.equals("7 in order") ? "in order" : found);
            }
            case "partitions": {
                Things.please("PUT", Things.path(topic) + "/partitions", "3");
                sender(c, topic).build().sendMany(Flux.range(0, 30).map(n -> MessageSpec.builder(("" + n).getBytes()).key("k" + n % 10)
                        .build())).blockLast(LONG);
                List<Message<byte[]>> got = take(consumer(c, topic), 30);
                long places = got.stream().map(m -> m.getKey() + m.getTopicName()).distinct().count();
                return new HashSet<>(Things.data(got)).size() + ", " + (places == 10 ? "each key in one" : "keys in several");
            }
            case "negative acknowledgement": {
                publish(sender(c, topic), List.of("again"));
                boolean[] seen = {false};
                Message<byte[]> last = consumer(c, topic).subscriptionType(SubscriptionType.Shared).build().<Message<byte[]>>consumeMany(
                        messages -> messages.map(message -> {
                            boolean first = !seen[0];
                            seen[0] = true;
                            return first ? MessageResult.negativeAcknowledge(message.getMessageId(), message)
                                    : MessageResult.acknowledge(message.getMessageId(), message);
                        })).take(2).blockLast(LONG);
                return new String(last.getData()) + ", count " + last.getRedeliveryCount();
            }
            case "delayed": {
                consumer(c, topic).subscriptionType(SubscriptionType.Shared).build().consumeNothing().block(LONG);
                var sender = sender(c, topic).batchingEnabled(false).build();
                sender.sendOne(MessageSpec.builder("later".getBytes()).deliverAfter(1, TimeUnit.SECONDS).build()).block(LONG);
                long sent = System.currentTimeMillis();
                sender.sendOne(MessageSpec.of("now".getBytes())).block(LONG);
                List<Message<byte[]>> got = take(consumer(c, topic).subscriptionType(SubscriptionType.Shared), 2);
                long late = System.currentTimeMillis() - sent;
                return String.join(", ", Things.data(got)) + ", " + (late > 900 && late < 6000 ? "in time" : late + " ms");
            }
            case "closed in the middle": {
                publish(sender(c, topic).batchingEnabled(false), Things.numbered(20));
                List<Message<byte[]>> got = take(consumer(c, topic).subscriptionType(SubscriptionType.Shared)
                        .acknowledgeAsynchronously(false), 10);      // otherwise close() does not wait for them
                plain.close();
                try (PulsarClient other = Things.client()) {
                    got.addAll(take(consumer(AdaptedReactivePulsarClientFactory.create(other), topic).subscriptionType(SubscriptionType.Shared), 10));
                }
                return said(got, Things.numbered(20));
            }
            case "broker started again": {
                Set<String> got = java.util.Collections.synchronizedSet(new LinkedHashSet<>());
                ReactiveMessagePipeline line = consumer(c, topic).build().messagePipeline().messageHandler(message ->
                        Mono.fromRunnable(() -> got.add(new String(message.getData())))).build().start();
                publish(sender(c, topic), Things.numbered(10));
                Things.please("restart", "", "null");
                sender(c, topic).sendTimeout(Duration.ofSeconds(60)).build().sendMany(Flux.fromIterable(Things.numbered(10, "n"))
                        .map(one -> MessageSpec.of(one.getBytes()))).blockLast(Duration.ofSeconds(60));
                await(() -> got.size() >= 20, 2 * Things.SECONDS);
                line.close();
                List<String> expected = Things.numbered(10);
                expected.addAll(Things.numbered(10, "n"));
                return got.size() + " of 20, " + (new ArrayList<>(got).equals(expected) ? "in order" : "out of order");
            }
            case "properties and times": {
                sender(c, topic).build().sendOne(MessageSpec.builder("x".getBytes()).property("a", "1").property("empty", "").eventTime(12345)
                        .key("k").orderingKey("o".getBytes()).build()).block(LONG);
                Message<byte[]> m = take(consumer(c, topic), 1).get(0);
                String pairs = new java.util.TreeMap<>(m.getProperties()).entrySet().stream()
                        .map(e -> "('" + e.getKey() + "', '" + e.getValue() + "')").collect(Collectors.joining(", "));
                return "[" + pairs + "] " + m.getEventTime() + " " + m.getKey() + " " + new String(m.getOrderingKey());
            }
            case "exclusive producer":
                try (org.apache.pulsar.client.api.Producer<byte[]> held = plain.newProducer().topic(topic)
                        .accessMode(ProducerAccessMode.Exclusive).create()) {
                    publish(sender(c, topic).accessMode(ProducerAccessMode.Exclusive), List.of("x"));
                    return "second admitted";
                } catch (RuntimeException refused) {
                    return refused.getCause() instanceof PulsarClientException ? "second refused" : refused.toString();
                }
            case "non-persistent": {
                String passing = topic.replace("persistent", "non-persistent");
                var got = new ConcurrentLinkedQueue<Message<byte[]>>();
                ReactiveMessagePipeline line = consumer(c, passing).build().messagePipeline().messageHandler(message ->
                        Mono.fromRunnable(() -> got.add(message))).build().start();
                line.untilStarted().block(LONG);
                publish(sender(c, passing), Things.numbered(10));
                await(() -> got.size() >= 10, Things.SECONDS);
                line.close();
                return said(new ArrayList<>(got), Things.numbered(10));
            }
            case "forged token":
                return refusedWith(Things.builder(Things.told.get("service")).authentication(AuthenticationFactory.token(Things.told.get("forged"))));
            case "expired token":
                return refusedWith(Things.builder(Things.told.get("service")).authentication(AuthenticationFactory.token(Things.told.get("expired"))));
            case "token over TLS":
                try (PulsarClient other = Things.builder(Things.told.get("tls")).authentication(AuthenticationFactory.token(Things.told
                        .get("token"))).tlsTrustCertsFilePath(Things.told.get("trusted")).enableTlsHostnameVerification(true).build()) {
                    return roundTrip(other, topic, 10);
                }
            default:
                throw new Things.Lacks("not in this program");
        }
    }

    public static void main(String[] arguments) {
        Things.answerAll(arguments, (name, topic) -> {
            PulsarClient plain = Things.client();
            try {
                return answer(plain, name, topic);
            } finally {
                if (!plain.isClosed()) {
                    plain.close();
                }
            }
        });
    }
}

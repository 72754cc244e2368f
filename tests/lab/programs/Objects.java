import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.time.Instant;
import java.time.LocalDate;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.TreeMap;
import java.util.UUID;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.Schema;

/** Objects of Java with a field of one kind each, written by "write WRITER FORMAT KIND" and read by "read WRITER FORMAT KIND"; main is that of Things. */
public class Objects {
    public enum Color { RED, GREEN }

    public static class Inner { public int a = 1; public String b = "x"; }
    public static class Bool { public int id; public boolean value = true; }
    public static class Int8 { public int id; public byte value = -6; }
    public static class Int32 { public int id; public int value = Integer.MIN_VALUE; }
    public static class Int64 { public int id; public long value = (1L << 53) + 1; }
    public static class Uint64 { public int id; public BigInteger value = new BigInteger("18446744073709551615"); }
    public static class Float { public int id; public float value = 0.25f; }
    public static class Double { public int id; public double value = 0.1; }
    public static class Nan { public int id; public double value = java.lang.Double.NaN; }
    public static class Char { public int id; public char value = '\u00df'; }
    public static class Text { public int id; public String value = "Zo\u00eb \ud83d\ude42 \\ \"q\""; }
    public static class Bytes { public int id; public byte[] value = {0, (byte) 255, 97}; }
    public static class Enum { public int id; public Color value = Color.GREEN; }
    public static class Date { public int id; public LocalDate value = LocalDate.of(2024, 2, 29); }
    public static class Time { public int id; public Instant value = Instant.ofEpochMilli(1_706_696_130_123L); }
    public static class Decimal { public int id; public BigDecimal value = new BigDecimal("12.25"); }
    public static class Uuid { public int id; public UUID value = new UUID(1, 2); }
    public static class List { public int id; public java.util.List<Integer> value = Arrays.asList(1, 2); }
    public static class Map { public int id; public java.util.Map<String, Long> value = new TreeMap<>(java.util.Map.of("a", 1L << 53 | 1)); }
    public static class Nested { public int id; public Inner value = new Inner(); }
    public static class Null { public int id; public Integer value; }
    public static class Optional { public int id; public Integer value = 7; }

    static String text(Object value) throws Exception {
        if (value == null) {
            return "null";
        }
        if (value instanceof byte[] || value instanceof ByteBuffer) {
            StringBuilder all = new StringBuilder("x");
            for (byte one : value instanceof byte[] ? (byte[]) value : ((ByteBuffer) value).array()) {
                all.append(String.format("%02x", one));
            }
            return all.toString();
        }
        if (value instanceof BigDecimal) {
            return ((BigDecimal) value).stripTrailingZeros().toPlainString();
        }
        if (value instanceof Inner) {
            return "{a: " + ((Inner) value).a + ", b: " + ((Inner) value).b + "}";
        }
        if (value instanceof java.util.Map) {
            java.util.List<String> all = new ArrayList<>();
            for (java.util.Map.Entry<?, ?> one : ((java.util.Map<?, ?>) value).entrySet()) {
                all.add(text(one.getKey()) + ": " + text(one.getValue()));
            }
            return "{" + String.join(", ", all) + "}";
        }
        return String.valueOf(value);
    }

    static <T> void install(Class<T> kind) {
        for (String format : new String[] {"JSON", "AVRO"}) {
            for (String writer : new String[] {"Java", "Python", "Go", "Rust"}) {
                String name = writer + " " + format + " " + kind.getSimpleName().toLowerCase();
                Things.Thing write = (c, topic) -> {
                    T made = kind.getDeclaredConstructor().newInstance();
                    try (Producer<T> producer = c.newProducer(schema(format, kind)).topic(topic.replace("-write-", "-")).create()) {
                        producer.send(made);
                    }
                    return "done";
                };
                Things.Thing read = (c, topic) -> {
                    try (Consumer<T> consumer = c.newConsumer(schema(format, kind)).topic(topic.replace("-read-", "-")).subscriptionName("java")
                            .subscriptionInitialPosition(org.apache.pulsar.client.api.SubscriptionInitialPosition.Earliest).subscribe()) {
                        T got = consumer.receive(Things.SECONDS, java.util.concurrent.TimeUnit.SECONDS).getValue();
                        return text(kind.getField("value").get(got));
                    }
                };
                Things.THINGS.put("write " + name, write);
                Things.THINGS.put("read " + name, read);
            }
        }
    }

    static <T> Schema<T> schema(String format, Class<T> kind) {
        return "JSON".equals(format) ? Schema.JSON(kind) : Schema.AVRO(kind);
    }

    public static void main(String[] arguments) throws Exception {
        for (Class<?> kind : Objects.class.getDeclaredClasses()) {
            if (kind != Inner.class && kind != Color.class) {
                install(kind);
            }
        }
        Things.main(arguments);
    }
}

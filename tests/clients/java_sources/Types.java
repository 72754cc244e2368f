import java.math.BigDecimal;
import java.math.BigInteger;
import java.net.URI;
import java.nio.ByteBuffer;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.ZoneOffset;
import java.time.ZonedDateTime;
import java.util.Date;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;

/** Types URL JSON AVRO OPAQUE: publishes an object with a field of each type to each topic. */
public class Types {
    public enum Color { RED, GREEN }

    public static class Inner {
        public int a = 1;
        public String b = "x";
    }

    public static class Everything {
        public boolean truth = true;
        public byte tiny = -6;
        public short small = 5;
        public int number = 7;
        public long large = 1L << 60;
        public Long nothing;
        public float single = Float.POSITIVE_INFINITY;
        public double real = Double.NaN;
        public char letter = 'c';
        public Character boxed = 'x';
        public String text = "t\u00e4";
        public URI place = URI.create("http://a/b");
        public BigDecimal price = new BigDecimal("12.50");
        public BigInteger count = new BigInteger("123456789012345678901234567890");
        public Color color = Color.GREEN;
        public byte[] bytes = {1, 2, (byte) 255};
        public ByteBuffer buffer = ByteBuffer.wrap(new byte[] {1, 2});
        public List<byte[]> pieces = List.of(new byte[] {9});
        public char[] letters = {'a', 'b'};
        public List<Integer> list = List.of(1, 2);
        public Map<String, Integer> named = Map.of("a", 1);
        public Map<Integer, String> numbered = new TreeMap<>(Map.of(1, "one"));
        public Map<Color, Inner> colored = Map.of(Color.RED, new Inner());
        public Inner inner = new Inner();
        public LocalDate date = LocalDate.of(2024, 1, 31);
        public LocalTime time = LocalTime.of(10, 15, 30, 5_000_000);
        public LocalDateTime local = LocalDateTime.of(2024, 1, 31, 10, 15, 30, 123_000_000);
        public Instant instant = Instant.ofEpochSecond(1_700_000_000L, 123_456_000);
        public Instant epoch = Instant.EPOCH;
        public UUID id = new UUID(1, 2);
    }

    /** Classes of which Java's AVRO sends nothing but that they are there. */
    public static class Opaque {
        public Date date = new Date(1_700_000_000_123L);
        public ZonedDateTime zoned = ZonedDateTime.of(2024, 1, 31, 9, 15, 30, 0, ZoneOffset.UTC);
    }

    public static void main(String[] said) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(said[0]).build()) {
            publish(client, said[1], Schema.JSON(Everything.class), new Everything());
            publish(client, said[2], Schema.AVRO(Everything.class), new Everything());
            publish(client, said[3], Schema.JSON(Opaque.class), new Opaque());
        }
    }

    private static <T> void publish(PulsarClient client, String topic, Schema<T> schema, T value) throws Exception {
        try (Producer<T> producer = client.newProducer(schema).topic(topic).create()) {
            producer.send(value);
        }
    }
}

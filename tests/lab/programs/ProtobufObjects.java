import com.google.protobuf.ByteString;
import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.GeneratedMessageV3;
import com.google.protobuf.Message;
import java.util.ArrayList;
import java.util.List;
import lab.Kinds;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

/** Messages of objects.proto with a field of one kind each, written and read as Objects does with classes of its own. */
public class ProtobufObjects {
    static String text(FieldDescriptor field, Object value) {
        if (value instanceof ByteString) {
            StringBuilder all = new StringBuilder("x");
            for (byte one : ((ByteString) value).toByteArray()) {
                all.append(String.format("%02x", one));
            }
            return all.toString();
        }
        if (field.getType() == FieldDescriptor.Type.UINT64) {
            return Long.toUnsignedString((Long) value);
        }
        return String.valueOf(value);      // of an enum its name
    }

    static String text(Message message) {
        FieldDescriptor field = message.getDescriptorForType().findFieldByName("value");
        List<String> parts = new ArrayList<>();
        if (field.isMapField()) {
            for (Object one : (List<?>) message.getField(field)) {
                List<Object> pair = new ArrayList<>(((Message) one).getAllFields().values());
                parts.add(pair.get(0) + ": " + pair.get(1));
            }
            return "{" + String.join(", ", parts) + "}";
        }
        if (field.isRepeated()) {
            return String.valueOf(message.getField(field));
        }
        if (field.hasPresence() && !message.hasField(field)) {
            return "null";
        }
        if (field.getJavaType() == FieldDescriptor.JavaType.MESSAGE) {
            ((Message) message.getField(field)).getAllFields().forEach((its, value) -> parts.add(its.getName() + ": " + text(its, value)));
            return "{" + String.join(", ", parts) + "}";
        }
        return text(field, message.getField(field));
    }

    @SuppressWarnings("unchecked")
    static <T extends GeneratedMessageV3> void install(String kind, T value) {
        Schema<T> schema = Schema.PROTOBUF_NATIVE((Class<T>) value.getClass());
        for (String writer : new String[] {"Java", "Python"}) {
            String name = writer + " PROTOBUF " + kind;
            Things.THINGS.put("write " + name, (c, topic) -> {
                try (Producer<T> producer = c.newProducer(schema).topic(topic.replace("-write-", "-")).create()) {
                    producer.send(value);
                }
                return "done";
            });
            Things.THINGS.put("read " + name, (c, topic) -> {
                try (Consumer<T> consumer = c.newConsumer(schema).topic(topic.replace("-read-", "-")).subscriptionName("java")
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
                    return text(consumer.receive(Things.SECONDS, java.util.concurrent.TimeUnit.SECONDS).getValue());
                }
            });
        }
    }

    public static void main(String[] arguments) throws Exception {
        install("bool", Kinds.BoolBox.newBuilder().setValue(true).build());
        install("int8", Kinds.Int8Box.newBuilder().setValue(-6).build());
        install("int32", Kinds.Int32Box.newBuilder().setValue(Integer.MIN_VALUE).build());
        install("int64", Kinds.Int64Box.newBuilder().setValue((1L << 53) + 1).build());
        install("uint64", Kinds.Uint64Box.newBuilder().setValue(-1).build());
        install("float", Kinds.FloatBox.newBuilder().setValue(0.25f).build());
        install("double", Kinds.DoubleBox.newBuilder().setValue(0.1).build());
        install("nan", Kinds.NanBox.newBuilder().setValue(Double.NaN).build());
        install("text", Kinds.TextBox.newBuilder().setValue("Zo\u00eb \ud83d\ude42 \\ \"q\"").build());
        install("bytes", Kinds.BytesBox.newBuilder().setValue(ByteString.copyFrom(new byte[] {0, (byte) 255, 97})).build());
        install("enum", Kinds.EnumBox.newBuilder().setValue(Kinds.Color.GREEN).build());
        install("list", Kinds.ListBox.newBuilder().addValue(1).addValue(2).build());
        install("map", Kinds.MapBox.newBuilder().putValue("a", 1L << 53 | 1).build());
        install("nested", Kinds.NestedBox.newBuilder().setValue(Kinds.Inner.newBuilder().setA(1).setB("x")).build());
        install("null", Kinds.NullBox.newBuilder().build());
        install("optional", Kinds.OptionalBox.newBuilder().setValue(7).build());
        Things.main(arguments);
    }
}

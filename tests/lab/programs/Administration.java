import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.Collection;
import java.util.Comparator;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.common.policies.data.TenantInfo;

/**
 * Calls everything of Pulsar's library for administration that gets something, and every policy's setter of a number or a word with its
 * getter and remover.  Ground.ask says how it is told; the answer to a thing is a JSON object of each call's answer.
 */
public class Administration {
    static final Map<String, String> told = new TreeMap<>();
    static final Map<String, String> answers = new TreeMap<>();
    // Measured, or of one broker only.
    static final Pattern LEFT_OUT = Pattern.compile(
            ".*(Stats|Metrics|LastMessageId|BacklogSize|InternalInfo|Version|Runtime|InternalConfig|Dynamic|Loads?|Bundle|Mbeans|Offload"
            + "|Allocator|Leader|ActiveBrokers|MessagesById|AllSchemas|SchemaMetadata|Clusters|Cluster|AntiAffinity|Isolation).*");

    public static void main(String[] arguments) throws Exception {
        Matcher pairs = Pattern.compile("\"([^\"]+)\": \"([^\"]*)\"").matcher(arguments[arguments.length - 1]);
        while (pairs.find()) {
            told.put(pairs.group(1), pairs.group(2));
        }
        try (PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(told.get("http")).build()) {
            String tenant = told.get("prefix"), namespace = tenant + "/n", topic = "persistent://" + namespace + "/a b=\u03b1+c";
            admin.tenants().createTenant(tenant, TenantInfo.builder().allowedClusters(Set.of("standalone")).build());
            admin.namespaces().createNamespace(namespace);
            admin.topics().createNonPartitionedTopic(topic);
            admin.topics().createSubscription(topic, "s 1", MessageId.earliest);
            for (String thing : told.get("things").split(",")) {
                answers.clear();
                switch (thing) {
                    case "brokers": call(admin.brokers(), "standalone"); break;
                    case "clusters": call(admin.clusters(), "standalone"); break;
                    case "tenants": call(admin.tenants(), tenant); break;
                    case "namespaces": call(admin.namespaces(), namespace); break;
                    case "topics": call(admin.topics(), topic); break;
                    case "topicPolicies": call(admin.topicPolicies(), topic); break;
                    default: call(admin.schemas(), topic);
                }
                System.out.println("{\"thing\": \"" + thing + "\", \"answer\": " + quoted(answers.entrySet().stream()
                        .map(one -> quoted(one.getKey()) + ": " + quoted(one.getValue())).collect(Collectors.joining(", ", "{", "}"))) + "}");
                System.out.flush();
            }
        }
    }

    static String quoted(String text) {
        StringBuilder made = new StringBuilder("\"");
        for (char one : text.toCharArray()) {
            made.append(one == '"' || one == '\\' ? "\\" + one : one < ' ' || one > '~' ? String.format("\\u%04x", (int) one) : "" + one);
        }
        return made.append('"').toString();
    }

    static void call(Object room, String name) throws Exception {
        Class<?> kind = Arrays.stream(room.getClass().getInterfaces()).filter(one -> one.getName().contains(".admin.")).findFirst().get();
        Method[] methods = kind.getMethods();
        Arrays.sort(methods, Comparator.comparing(Method::toString));
        for (Method method : methods) {
            if (method.getName().matches("(get|list|is)[A-Z].*") && arguments(method, name) != null) {
                answers.put(signature(method), said(() -> method.invoke(room, arguments(method, name))));
            }
        }
        for (Method setter : methods) {
            Class<?>[] types = setter.getParameterTypes();
            if (!setter.getName().startsWith("set") || types.length != 2 || types[0] != String.class || LEFT_OUT.matcher(setter.getName()).matches()) {
                continue;
            }
            Object value = sample(types[1]);
            String policy = setter.getName().substring(3);
            if (value != null) {
                answers.put(signature(setter), said(() -> setter.invoke(room, name, value)));
                answers.put(signature(setter) + " then get", eventually(room, kind, "get" + policy, name, value));
                if (has(kind, "remove" + policy)) {
                    answers.put("remove" + policy, one(room, kind, "remove" + policy, name));
                    answers.put("remove" + policy + " then get", eventually(room, kind, "get" + policy, name, null));
                }
            }
        }
    }

    static String signature(Method method) {
        return method.getName() + Arrays.stream(method.getParameterTypes()).map(Class::getSimpleName).collect(Collectors.joining(" ", "(", ")"));
    }

    static boolean has(Class<?> kind, String method) throws Exception {
        return Arrays.stream(kind.getMethods()).anyMatch(one -> one.getName().equals(method) && one.getParameterCount() == 1);
    }

    static String one(Object room, Class<?> kind, String method, String name) throws Exception {
        return has(kind, method) ? said(() -> kind.getMethod(method, String.class).invoke(room, name)) : "no such method";
    }

    /** The answer of a getter: policies of topics are in force a moment after they were set. */
    static String eventually(Object room, Class<?> kind, String method, String name, Object value) throws Exception {
        String got = one(room, kind, method, name);
        for (int i = 0; i < 40 && value != null && !got.equals(text(value)) && kind.getSimpleName().equals("TopicPolicies"); i++) {
            Thread.sleep(50);
            got = one(room, kind, method, name);
        }
        if (value == null && kind.getSimpleName().equals("TopicPolicies")) {
            Thread.sleep(200);
            got = one(room, kind, method, name);
        }
        return got;
    }

    /** The arguments of a getter, null if it needs others, or if what it gets is measured. */
    static Object[] arguments(Method method, String name) {
        if (LEFT_OUT.matcher(method.getName()).matches() || method.getReturnType().getName().contains("Future")) {
            return null;
        }
        Class<?>[] types = method.getParameterTypes();
        Object[] made = new Object[types.length];
        int texts = 0;
        for (int i = 0; i < types.length; i++) {
            made[i] = types[i] == String.class ? (texts++ == 0 ? name : "s 1") : types[i] == boolean.class ? (Object) false : null;
            if (made[i] == null) {
                return null;
            }
        }
        return made;
    }

    static Object sample(Class<?> type) {
        if (type == int.class || type == Integer.class) {
            return 7;
        }
        if (type == long.class || type == Long.class) {
            return 7L;
        }
        if (type == boolean.class || type == Boolean.class) {
            return true;
        }
        return type.isEnum() ? type.getEnumConstants()[0] : null;
    }

    static String said(Callable<Object> call) throws Exception {
        try {
            return text(call.call());
        } catch (InvocationTargetException wrapped) {
            Throwable error = wrapped.getCause();
            if (error instanceof PulsarAdminException) {
                return error.getClass().getSimpleName() + " " + ((PulsarAdminException) error).getStatusCode();
            }
            return error.toString();
        }
    }

    static String text(Object value) {
        if (value instanceof Set) {
            return ((Set<?>) value).stream().map(Administration::text).sorted().collect(Collectors.joining(", ", "{", "}"));
        }
        if (value instanceof Collection) {
            return ((Collection<?>) value).stream().map(Administration::text).collect(Collectors.joining(", ", "[", "]"));
        }
        if (value instanceof Map) {
            Map<String, String> sorted = new TreeMap<>();
            ((Map<?, ?>) value).forEach((key, one) -> sorted.put(text(key), text(one)));
            return sorted.toString();
        }
        return String.valueOf(value).replaceAll("(localhost|127\\.0\\.0\\.1):\\d+", "HOST").replaceAll("@[0-9a-f]+\\b", "")
                .replaceAll("boundaries=\\[[^]]*\\], numBundles=\\d+", "BUNDLES").replaceAll("\\b1[5-9]\\d{11}\\b", "MILLIS");
    }
}

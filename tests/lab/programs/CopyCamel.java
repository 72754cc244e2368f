import org.apache.camel.builder.RouteBuilder;
import org.apache.camel.component.pulsar.PulsarComponent;
import org.apache.camel.main.Main;
import org.apache.pulsar.client.api.PulsarClient;

/** CopyCamel SERVICE HTTP INPUT OUTPUT FOLDER: a route of Camel copies one topic to another until it is stopped. */
public class CopyCamel {
    public static void main(String[] said) throws Exception {
        Main main = new Main();
        PulsarComponent pulsar = new PulsarComponent();
        pulsar.setPulsarClient(PulsarClient.builder().serviceUrl(said[0]).build());
        main.bind("pulsar", pulsar);
        main.configure().addRoutesBuilder(new RouteBuilder() {
            @Override
            public void configure() {
                from(uri(said[2]) + "?subscriptionName=bridge").to(uri(said[3]));
            }
        });
        main.run();
    }

    private static String uri(String topic) {
        return "pulsar:" + topic.replace("://", "/");
    }
}

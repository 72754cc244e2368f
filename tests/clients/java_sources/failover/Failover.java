import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.ServiceUrlProvider;
import org.apache.pulsar.client.impl.AutoClusterFailover;
import org.apache.pulsar.client.impl.ControlledClusterFailover;

/**
 * Failover URL TOPIC auto OTHER-URL, or Failover URL TOPIC controlled CONTROLLER: a producer and a consumer by a client that goes
 * elsewhere by itself. Each line of its input "FIRST END" has these numbers published and received, and is answered by what came.
 */
public class Failover {
    public static void main(String[] said) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        ServiceUrlProvider provider = said[2].equals("auto")
                ? AutoClusterFailover.builder().primary(said[0]).secondary(List.of(said[3])).failoverDelay(1, TimeUnit.SECONDS)
                        .switchBackDelay(1, TimeUnit.HOURS).checkInterval(500, TimeUnit.MILLISECONDS).build()
                : ControlledClusterFailover.builder().defaultServiceUrl(said[0]).urlProvider(said[3])
                        .checkInterval(500, TimeUnit.MILLISECONDS).build();
        try (PulsarClient client = PulsarClient.builder().serviceUrlProvider(provider).build();
                Consumer<Integer> consumer = client.newConsumer(Schema.INT32).topic(said[1]).subscriptionName("s").subscribe();
                Producer<Integer> producer = client.newProducer(Schema.INT32).topic(said[1])
                        .sendTimeout(60, TimeUnit.SECONDS).create()) {
            System.out.println("open");
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                int first = Integer.parseInt(line.split(" ")[0]);
                int end = Integer.parseInt(line.split(" ")[1]);
                for (int number = first; number < end; number++) {
                    producer.send(number);
                }
                StringBuilder came = new StringBuilder();
                for (int last = first - 1; last < end - 1;) {
                    Message<Integer> message = consumer.receive();
                    consumer.acknowledge(message);
                    last = message.getValue();
                    came.append(last).append(' ');
                }
                System.out.println(came.toString().strip());
            }
        }
        System.exit(0); // threads of a provider would keep the process
    }
}

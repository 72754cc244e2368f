import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.annotation.Configuration;
import org.springframework.pulsar.annotation.PulsarListener;
import org.springframework.pulsar.core.PulsarTemplate;

/** CopySpring SERVICE HTTP INPUT OUTPUT FOLDER: a listener of Spring Boot copies one topic to another until it is stopped. */
@Configuration(proxyBeanMethods = false)
@EnableAutoConfiguration
public class CopySpring {
    @Autowired
    private PulsarTemplate<byte[]> template;
    @Value("${output}")
    private String output;

    @PulsarListener(topics = "${input}", subscriptionName = "bridge")
    public void copy(byte[] payload) {
        template.send(output, payload);
    }

    public static void main(String[] said) throws Exception {
        SpringApplication.run(CopySpring.class, "--spring.pulsar.client.service-url=" + said[0],
                "--spring.pulsar.admin.service-url=" + said[1], "--input=" + said[2], "--output=" + said[3]);
        Thread.currentThread().join();
    }
}

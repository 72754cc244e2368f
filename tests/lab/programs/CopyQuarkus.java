import org.eclipse.microprofile.reactive.messaging.Incoming;
import org.eclipse.microprofile.reactive.messaging.Outgoing;

/** Quarkus copies what comes on the channel `in` to the channel `out`; the command line says which topics these are. */
public class CopyQuarkus {
    @Incoming("in")
    @Outgoing("out")
    public byte[] copy(byte[] payload) {
        return payload;
    }
}

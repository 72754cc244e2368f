import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Scenarios URL HTTP_URL: prints the names of all scenarios, then runs each scenario whose name comes in as a line.
 *
 * The lines that are printed are "has NAME", "ready", "ok", "failed TRACE" and "please DO". After "please DO" the
 * program waits for a line, which says that it was done.
 */
public class Scenarios {
    interface Scenario {
        void run(Rig rig) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Scenario> all = new LinkedHashMap<>();
        Publishing.add(all);
        Acknowledging.add(all);
        Redelivering.add(all);
        Ending.add(all);
        Reading.add(all);
        Failing.add(all);
        all.keySet().forEach(name -> System.out.println("has " + name));
        System.out.println("ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String name = lines.readLine(); name != null; name = lines.readLine()) {
            try (Rig rig = new Rig(arguments[0], arguments[1], lines)) {
                all.get(name).run(rig);
                System.out.println("ok");
            } catch (Throwable failure) {
                StringWriter trace = new StringWriter();
                failure.printStackTrace(new PrintWriter(trace));
                System.out.println("failed " + trace.toString().replace("\n", "\\n"));
            }
        }
        System.exit(0);
    }
}

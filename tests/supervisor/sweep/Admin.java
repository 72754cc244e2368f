import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import org.apache.pulsar.admin.cli.PulsarAdminTool;

/**
 * Runs a pulsar-admin command per line of its input (words split by 0x1f) in one virtual machine, and answers each with a line: exit
 * status, standard output and standard error, the last two in base64.  Its own argument is the tool's configuration file.
 */
public class Admin {
    public static void main(String[] own) throws Exception {
        PrintStream answers = System.out;
        Method allowExit = tool("setAllowSystemExit", boolean.class);
        Method lastStatus = tool("getLastExitCode");
        Method forgetStatus = tool("resetLastExitCode");
        allowExit.invoke(null, false);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = lines.readLine()) != null; ) {
            List<String> words = new ArrayList<>(List.of(own));
            words.addAll(List.of(line.split("\u001f", -1)));
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream err = new ByteArrayOutputStream();
            System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
            forgetStatus.invoke(null);
            try {
                PulsarAdminTool.execute(words.toArray(new String[0]));
            } catch (Throwable problem) {
                problem.printStackTrace();
            }
            System.out.flush();
            System.err.flush();
            Base64.Encoder base64 = Base64.getEncoder();
            answers.println(lastStatus.invoke(null) + " " + base64.encodeToString(out.toByteArray())
                    + " " + base64.encodeToString(err.toByteArray()));
            answers.flush();
        }
        System.exit(0);
    }

    private static Method tool(String name, Class<?>... parameters) throws Exception {
        Method method = PulsarAdminTool.class.getDeclaredMethod(name, parameters);
        method.setAccessible(true);
        return method;
    }
}

package nilometer;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.utils.internals.Exit;

/**
 * {@code tool}: {@code {class, arguments, input?}} runs the main method of one of Kafka's command-line classes here and answers with
 * its exit status and what it printed: the start of a JVM for each would take most of the time.
 */
final class Tool {
    /** A stream that can be pointed elsewhere: Scala's console keeps the one that it met first. */
    private static final class Switch extends OutputStream {
        private OutputStream target;

        private Switch(OutputStream target) {
            this.target = target;
        }

        @Override
        public synchronized void write(int octet) throws java.io.IOException {
            target.write(octet);
        }

        @Override
        public synchronized void write(byte[] octets, int offset, int length) throws java.io.IOException {
            target.write(octets, offset, length);
        }

        private synchronized OutputStream to(OutputStream other) {
            OutputStream before = target;
            target = other;
            return before;
        }
    }

    private static final class Exited extends Error {}

    /** The first exit that the tool asked for: some catch what ends them, print it and exit again. */
    private static Integer status;

    private static String printedAtExit;
    private static ByteArrayOutputStream printed;

    private static final Switch OUT = new Switch(System.out);
    private static final Switch ERR = new Switch(System.err);

    private Tool() {}

    /** Answers must be written to the standard output of before. */
    static void install() {
        System.setOut(new PrintStream(OUT, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(ERR, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure((code, message) -> exit(code));
        Exit.setHaltProcedure((code, message) -> exit(code));
    }

    private static void exit(int code) {
        if (status == null) {
            System.out.flush();
            status = code;
            printedAtExit = printed.toString(StandardCharsets.UTF_8);
        }
        throw new Exited();
    }

    static JsonNode run(JsonNode request) throws Exception {
        String[] arguments = Request.strings(request.path("arguments")).toArray(String[]::new);
        printed = new ByteArrayOutputStream();
        status = null;
        InputStream stdin = System.in;
        System.setIn(new ByteArrayInputStream(request.path("input").asText("").getBytes(StandardCharsets.UTF_8)));
        OutputStream out = OUT.to(printed);
        OutputStream err = ERR.to(printed);
        try {
            Class.forName(request.get("class").asText()).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException raised) {
            if (!(raised.getCause() instanceof Exited)) {
                raised.getCause().printStackTrace();
                status = 1;
                printedAtExit = printed.toString(StandardCharsets.UTF_8);
            }
        } finally {
            System.out.flush();
            OUT.to(out);
            ERR.to(err);
            System.setIn(stdin);
        }
        return status == null
                ? Driver.JSON.createObjectNode().put("status", 0).put("output", printed.toString(StandardCharsets.UTF_8))
                : Driver.JSON.createObjectNode().put("status", status.intValue()).put("output", printedAtExit);
    }
}

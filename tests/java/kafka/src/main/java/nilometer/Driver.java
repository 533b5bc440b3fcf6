package nilometer;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.protocol.Errors;

/**
 * Apache Kafka's Java clients for tests in other languages: one JVM serves many commands, so that its start is paid once.
 *
 * <p>A command is one line of JSON on standard input, {@code {"command": name, …}}; its answer is one line on standard output: {@code
 * {"ok": result}} or {@code {"error": KAFKA_ERROR_NAME, "message": …}}. Keys, values and header values travel as Base64.
 */
public final class Driver {
    static final ObjectMapper JSON = new ObjectMapper();

    interface Command {
        JsonNode run(JsonNode request) throws Exception;
    }

    private static final Map<String, Command> COMMANDS = Map.ofEntries(
            Map.entry("produce", Produce::run),
            Map.entry("transact", Transact::run),
            Map.entry("consume", Consume::run),
            Map.entry("seek_and_read", Consume::seekAndRead),
            Map.entry("offsets_for_times", Consume::offsetsForTimes),
            Map.entry("partition_for_keys", Produce::partitionForKeys),
            Map.entry("create_topics", Admin::createTopics),
            Map.entry("delete_topics", Admin::deleteTopics),
            Map.entry("describe_topics", Admin::describeTopics),
            Map.entry("list_topics", Admin::listTopics),
            Map.entry("create_partitions", Admin::createPartitions),
            Map.entry("describe_cluster", Admin::describeCluster),
            Map.entry("describe_configs", Admin::describeConfigs),
            Map.entry("alter_configs", Admin::alterConfigs),
            Map.entry("list_offsets", Admin::listOffsets),
            Map.entry("delete_records", Admin::deleteRecords),
            Map.entry("describe_log_dirs", Admin::describeLogDirs),
            Map.entry("tool", Tool::run),
            Map.entry("load_start", TransactionalLoad::start),
            Map.entry("load_progress", TransactionalLoad::progress),
            Map.entry("load_stop", TransactionalLoad::stop),
            Map.entry("group_join", GroupMembers::join),
            Map.entry("group_seen", GroupMembers::seen),
            Map.entry("group_leave", GroupMembers::leave));

    private Driver() {}

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        Tool.install();
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            answers.println(answer(line));
        }
    }

    private static String answer(String line) throws Exception {
        ObjectNode answer = JSON.createObjectNode();
        try {
            JsonNode request = JSON.readTree(line);
            Command command = COMMANDS.get(request.path("command").asText());
            if (command == null) {
                throw new IllegalArgumentException("no such command: " + request.path("command"));
            }
            answer.set("ok", command.run(request));
        } catch (Exception raised) {
            Throwable cause = cause(raised);
            answer.put("error", errorName(cause)).put("message", cause.toString());
        }
        return JSON.writeValueAsString(answer);
    }

    /** What a future failed with, rather than that it failed. */
    static Throwable cause(Throwable raised) {
        return raised instanceof ExecutionException && raised.getCause() != null ? raised.getCause() : raised;
    }

    /** The protocol's name of an error, or the class of one that never came over the wire. */
    static String errorName(Throwable cause) {
        Errors known = cause instanceof ApiException ? Errors.forException(cause) : Errors.UNKNOWN_SERVER_ERROR;
        return known == Errors.UNKNOWN_SERVER_ERROR ? cause.getClass().getSimpleName() : known.name();
    }
}

package nilometer;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Members of consumer groups, each a thread that polls, notes what it read and commits: {@code group_join}, {@code group_seen} (what was
 * read since it was last asked), {@code group_leave}.
 */
final class GroupMembers {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final Map<String, Member> MEMBERS = new HashMap<>();

    private GroupMembers() {}

    private static final class Member extends Thread {
        private final KafkaConsumer<String, String> consumer;
        private final List<String> seen = Collections.synchronizedList(new ArrayList<>());
        private volatile boolean leaving;
        private volatile Throwable failure;
        private volatile int assigned;

        Member(JsonNode request) {
            consumer = new KafkaConsumer<>(Request.clientConfig(request), new StringDeserializer(), new StringDeserializer());
            consumer.subscribe(List.of(request.get("topic").asText()));
            setDaemon(true);
        }

        @Override
        public void run() {
            try (consumer) {
                while (!leaving) {
                    List<String> read = new ArrayList<>();
                    for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                        read.add(record.value());
                    }
                    assigned = consumer.assignment().size();
                    seen.addAll(read);
                    if (!read.isEmpty()) {
                        commit();
                    }
                }
            } catch (Throwable raised) {
                failure = raised;
            }
        }

        private void commit() {
            try {
                consumer.commitSync();
            } catch (KafkaException lost) {
                // Another generation has begun, or the coordinator is away: what is not committed is read again.
            }
        }
    }

    /** {@code {member, topic, config}}. */
    static JsonNode join(JsonNode request) {
        Member member = new Member(request);
        MEMBERS.put(request.get("member").asText(), member);
        member.start();
        return Driver.JSON.nullNode();
    }

    /** {@code {member}}: what it read since it was last asked, how many partitions it has, and how it failed. */
    static JsonNode seen(JsonNode request) {
        Member member = MEMBERS.get(request.get("member").asText());
        ObjectNode told = Driver.JSON.createObjectNode();
        ArrayNode values = told.putArray("seen");
        synchronized (member.seen) {
            member.seen.forEach(values::add);
            member.seen.clear();
        }
        return told.put("assigned", member.assigned).put("failure", member.failure == null ? null : member.failure.toString());
    }

    /** {@code {member}}: leaves the group; returns once it has. */
    static JsonNode leave(JsonNode request) throws InterruptedException {
        Member member = MEMBERS.get(request.get("member").asText());
        member.leaving = true;
        member.join(Duration.ofSeconds(30).toMillis());
        return seen(request);
    }
}

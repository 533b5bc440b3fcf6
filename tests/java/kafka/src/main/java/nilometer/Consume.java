package nilometer;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** {@code consume}: every record of a topic up to the end that it has now; {@code seek_and_read}: some records from an offset. */
final class Consume {
    private static final Duration POLL = Duration.ofMillis(200);
    private static final long STALLED_NANOS = Duration.ofSeconds(30).toNanos();

    private Consume() {}

    private static KafkaConsumer<byte[], byte[]> consumer(JsonNode request) {
        return new KafkaConsumer<>(Request.clientConfig(request), new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static List<TopicPartition> partitions(KafkaConsumer<?, ?> consumer, JsonNode request) {
        String topic = request.get("topic").asText();
        return consumer.partitionsFor(topic).stream().map(each -> new TopicPartition(topic, each.partition())).toList();
    }

    static JsonNode run(JsonNode request) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(request)) {
            List<TopicPartition> partitions = partitions(consumer, request);
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            return readTo(consumer, consumer.endOffsets(partitions));
        }
    }

    private static ArrayNode readTo(KafkaConsumer<byte[], byte[]> consumer, Map<TopicPartition, Long> ends) {
        ArrayNode read = Driver.JSON.createArrayNode();
        long progress = System.nanoTime();
        while (ends.entrySet().stream().anyMatch(end -> consumer.position(end.getKey()) < end.getValue())) {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                describe(record, read.addObject());
                progress = System.nanoTime();
            }
            if (System.nanoTime() - progress > STALLED_NANOS) {
                throw new IllegalStateException("no record for 30 s on the way to " + ends + ", got " + read.size());
            }
        }
        return read;
    }

    private static void describe(ConsumerRecord<byte[], byte[]> record, ObjectNode into) {
        into.put("partition", record.partition()).put("offset", record.offset());
        into.put("timestamp", record.timestamp()).put("timestamp_type", record.timestampType().name);
        into.put("key", record.key()).put("value", record.value());
        into.put("leader_epoch", record.leaderEpoch().orElse(null));
        ArrayNode headers = into.putArray("headers");
        for (Header header : record.headers()) {
            headers.addArray().add(header.key()).add(header.value());
        }
    }

    /** {@code {topic, partition, offset, count}}. */
    static JsonNode seekAndRead(JsonNode request) {
        TopicPartition partition = new TopicPartition(request.get("topic").asText(), request.get("partition").asInt());
        long offset = request.get("offset").asLong();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(request)) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, offset);
            return readTo(consumer, Map.of(partition, offset + request.get("count").asLong()));
        }
    }

    /** {@code {topic, timestamp}}: for each partition the first offset at or after that time, or null. */
    static JsonNode offsetsForTimes(JsonNode request) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(request)) {
            Collection<TopicPartition> partitions = partitions(consumer, request);
            Map<TopicPartition, Long> times = new HashMap<>();
            partitions.forEach(partition -> times.put(partition, request.get("timestamp").asLong()));
            ObjectNode found = Driver.JSON.createObjectNode();
            for (Map.Entry<TopicPartition, OffsetAndTimestamp> each : consumer.offsetsForTimes(times).entrySet()) {
                String partition = Integer.toString(each.getKey().partition());
                if (each.getValue() == null) {
                    found.putNull(partition);
                } else {
                    found.putObject(partition).put("offset", each.getValue().offset()).put("timestamp", each.getValue().timestamp());
                }
            }
            return found;
        }
    }
}

package nilometer;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * {@code produce}: {@code {config, records: [{topic, partition?, timestamp?, key?, value?, headers: [[name, value]]}], transaction?:
 * "commit" | "abort"}} answers with partition, offset and timestamp, or the error, of each record.
 */
final class Produce {
    private Produce() {}

    static JsonNode run(JsonNode request) throws Exception {
        Properties config = Request.clientConfig(request);
        String transaction = request.path("transaction").asText("");
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            if (!transaction.isEmpty()) {
                producer.initTransactions();
                producer.beginTransaction();
            }
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonNode record : request.path("records")) {
                sent.add(producer.send(record(record)));
            }
            producer.flush();
            ArrayNode outcomes = outcomes(sent);
            switch (transaction) {
                case "commit" -> producer.commitTransaction();
                case "abort" -> producer.abortTransaction();
                default -> { }
            }
            return outcomes;
        }
    }

    private static ProducerRecord<byte[], byte[]> record(JsonNode record) throws IOException {
        RecordHeaders headers = new RecordHeaders();
        for (JsonNode header : record.path("headers")) {
            headers.add(header.get(0).asText(), Request.bytes(header.get(1)));
        }
        return new ProducerRecord<>(
                record.get("topic").asText(),
                record.hasNonNull("partition") ? record.get("partition").asInt() : null,
                record.hasNonNull("timestamp") ? record.get("timestamp").asLong() : null,
                Request.bytes(record.get("key")),
                Request.bytes(record.get("value")),
                headers);
    }

    private static ArrayNode outcomes(List<Future<RecordMetadata>> sent) throws InterruptedException {
        ArrayNode outcomes = Driver.JSON.createArrayNode();
        for (Future<RecordMetadata> each : sent) {
            ObjectNode outcome = outcomes.addObject();
            try {
                RecordMetadata metadata = each.get();
                outcome.put("partition", metadata.partition());
                outcome.put("offset", metadata.offset());
                outcome.put("timestamp", metadata.timestamp());
            } catch (java.util.concurrent.ExecutionException failed) {
                outcome.put("error", Driver.errorName(Driver.cause(failed)));
                outcome.put("message", Driver.cause(failed).toString());
            }
        }
        return outcomes;
    }

    /** {@code {keys: […], partitions: n}}: where Java's default partitioner puts each key. */
    static JsonNode partitionForKeys(JsonNode request) throws IOException {
        ArrayNode partitions = Driver.JSON.createArrayNode();
        for (JsonNode key : request.path("keys")) {
            partitions.add(BuiltInPartitioner.partitionForKey(Request.bytes(key), request.path("partitions").asInt()));
        }
        return partitions;
    }
}

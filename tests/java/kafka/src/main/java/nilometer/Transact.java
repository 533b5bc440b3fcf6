package nilometer;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * {@code transact}: {@code {config, topic, partitions, transactions: [{value, end: "commit" | "abort", group?, offset?}]}}, one producer
 * for all of them: each writes its value to every partition and, with a group, the group's offset of partition 0.
 */
final class Transact {
    private Transact() {}

    static JsonNode run(JsonNode request) throws Exception {
        Properties config = Request.clientConfig(request);
        ArrayNode ended = Driver.JSON.createArrayNode();
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            for (JsonNode transaction : request.path("transactions")) {
                one(producer, request, transaction);
                ended.add(transaction.get("end").asText());
            }
        }
        return ended;
    }

    private static void one(KafkaProducer<byte[], byte[]> producer, JsonNode request, JsonNode transaction) throws Exception {
        String topic = request.get("topic").asText();
        producer.beginTransaction();
        for (int partition = 0; partition < request.get("partitions").asInt(); partition++) {
            producer.send(new ProducerRecord<>(topic, partition, null, Request.bytes(transaction.get("value"))));
        }
        if (transaction.has("group")) {
            producer.sendOffsetsToTransaction(
                    Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(transaction.get("offset").asLong())),
                    new ConsumerGroupMetadata(transaction.get("group").asText()));
        }
        if (transaction.get("end").asText().equals("commit")) {
            producer.commitTransaction();
        } else {
            producer.abortTransaction();
        }
    }
}

package nilometer;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Clients that run until they are stopped, while brokers die: {@code load_start} starts one, {@code load_progress} tells how far all are,
 * {@code load_stop} stops one and returns what it did or read. Each is a thread.
 *
 * <p>A writer writes transactions and notes the fate of each; a transformer reads a topic and writes each record to another one, with its
 * offset in the same transaction; a reader reads every partition of a topic from its start.
 */
final class TransactionalLoad {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final Map<String, Client> CLIENTS = new LinkedHashMap<>();

    private TransactionalLoad() {}

    /** What a transaction came to; the names are those of the ledger that judges it. */
    private enum Fate {
        OPEN,
        UNKNOWN,
        COMMITTED
    }

    private abstract static class Client extends Thread {
        final JsonNode request;
        volatile boolean stopping;
        volatile long progress;
        private volatile Throwable failure;

        Client(JsonNode request) {
            super(request.get("name").asText());
            this.request = request;
            setDaemon(true);
        }

        abstract void work() throws Exception;

        abstract JsonNode result();

        @Override
        public void run() {
            try {
                work();
            } catch (Throwable raised) {
                raised.printStackTrace();
                failure = raised;
            }
        }

        String failure() {
            return failure == null ? null : failure.toString();
        }
    }

    /** A client with a transactional producer, which it replaces after an error that the producer does not survive. */
    private abstract static class Transactional extends Client {
        private KafkaProducer<String, String> producer;

        Transactional(JsonNode request) {
            super(request);
        }

        KafkaProducer<String, String> producer() {
            while (producer == null) {
                Properties config = Request.clientConfig(request);
                config.put("transactional.id", getName());
                KafkaProducer<String, String> opened = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
                try {
                    opened.initTransactions();
                    producer = opened;
                } catch (KafkaException notYet) { // no coordinator for longer than max.block.ms, or fenced by its own predecessor
                    opened.close(Duration.ZERO);
                }
            }
            return producer;
        }

        /** Leaves the transaction open, if one is, as a process does that dies. */
        void abandon() {
            producer.close(Duration.ZERO);
            producer = null;
        }

        void commit() {
            while (true) {
                try {
                    producer.commitTransaction();
                    return;
                } catch (TimeoutException unanswered) {
                    continue; // the producer allows the same call again, and no other
                }
            }
        }

        void abort() {
            while (producer != null) {
                try {
                    producer.abortTransaction();
                    return;
                } catch (TimeoutException unanswered) {
                    continue;
                } catch (KafkaException fatal) {
                    abandon();
                    return;
                }
            }
        }
    }

    private static final class Writer extends Transactional {
        private final ArrayNode transactions = Driver.JSON.createArrayNode();
        private final Random chance;

        Writer(JsonNode request) {
            super(request);
            chance = new Random(request.get("seed").asLong());
        }

        @Override
        void work() throws Exception {
            while (!stopping) {
                producer();
                transaction();
                Thread.sleep(request.get("pause_ms").asLong());
            }
            producer().close(Duration.ofSeconds(30));
        }

        private void transaction() throws Exception {
            ObjectNode noted = transactions.addObject().put("fate", Fate.OPEN.name());
            ArrayNode writes = noted.putArray("writes");
            try {
                producer().beginTransaction();
                Map<ObjectNode, Future<RecordMetadata>> sent = send(writes);
                double end = chance.nextDouble();
                if (end < request.get("abandoned").asDouble()) {
                    abandon();
                    return;
                }
                if (end > 1 - request.get("aborted").asDouble()) {
                    abort();
                    return;
                }
                producer().flush();
                for (Map.Entry<ObjectNode, Future<RecordMetadata>> each : sent.entrySet()) {
                    each.getKey().put("offset", each.getValue().get().offset());
                }
                noted.put("fate", Fate.UNKNOWN.name());
                commit();
                noted.put("fate", Fate.COMMITTED.name());
                progress++;
            } catch (KafkaException | ExecutionException failed) {
                abort();
            }
        }

        private Map<ObjectNode, Future<RecordMetadata>> send(ArrayNode writes) {
            Map<ObjectNode, Future<RecordMetadata>> sent = new java.util.IdentityHashMap<>();
            int partitions = request.get("partitions").asInt();
            int first = chance.nextInt(partitions);
            int count = 2 + chance.nextInt(2 * partitions); // at least two partitions
            for (int number = 0; number < count; number++) {
                int partition = (first + number) % partitions;
                String value = getName() + "-" + transactions.size() + "-" + number;
                ObjectNode written = writes.addObject().put("partition", partition).put("value", value);
                sent.put(written, producer().send(new ProducerRecord<>(request.get("topic").asText(), partition, null, value)));
            }
            return sent;
        }

        @Override
        JsonNode result() {
            return transactions;
        }
    }

    private static final class Transformer extends Transactional {
        private int number;

        Transformer(JsonNode request) {
            super(request);
        }

        @Override
        void work() {
            while (!stopping) {
                try (KafkaConsumer<String, String> consumer =
                        new KafkaConsumer<>(Request.clientConfig(request.get("reading")), new StringDeserializer(), new StringDeserializer())) {
                    consumer.subscribe(List.of(request.get("topic").asText()));
                    boolean isWhereItWas = true;
                    while (isWhereItWas && !stopping) {
                        ConsumerRecords<String, String> records = consumer.poll(POLL);
                        isWhereItWas = records.isEmpty() || isTransformed(consumer, records);
                    }
                }
            }
            producer().close(Duration.ofSeconds(30));
        }

        /** Otherwise the transaction was aborted, and another consumer has to go on at the committed offsets. */
        private boolean isTransformed(KafkaConsumer<String, String> consumer, ConsumerRecords<String, String> records) {
            producer();
            try {
                transform(consumer, records);
            } catch (KafkaException failed) {
                abort();
                return false;
            }
            progress++;
            return true;
        }

        private void transform(KafkaConsumer<String, String> consumer, ConsumerRecords<String, String> records) {
            number++;
            producer().beginTransaction();
            Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
            for (ConsumerRecord<String, String> record : records) {
                producer().send(new ProducerRecord<>(request.get("output").asText(), 0, null, record.value() + ">" + number));
                ends.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
            }
            producer().sendOffsetsToTransaction(ends, consumer.groupMetadata());
            commit();
        }

        @Override
        JsonNode result() {
            return Driver.JSON.nullNode();
        }
    }

    private static final class Reader extends Client {
        private final List<ArrayNode> polls = new ArrayList<>();

        Reader(JsonNode request) {
            super(request);
        }

        @Override
        void work() {
            try (KafkaConsumer<String, String> consumer =
                    new KafkaConsumer<>(Request.clientConfig(request), new StringDeserializer(), new StringDeserializer())) {
                List<TopicPartition> partitions = new ArrayList<>();
                for (int partition = 0; partition < request.get("partitions").asInt(); partition++) {
                    partitions.add(new TopicPartition(request.get("topic").asText(), partition));
                }
                consumer.assign(partitions);
                partitions.forEach(each -> consumer.seek(each, 0));
                while (!stopping) {
                    ArrayNode poll = Driver.JSON.createArrayNode();
                    for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                        poll.addArray().add(record.partition()).add(record.offset()).add(record.value());
                    }
                    if (!poll.isEmpty()) {
                        polls.add(poll);
                        progress += poll.size();
                    }
                }
            }
        }

        @Override
        JsonNode result() {
            return Driver.JSON.valueToTree(polls);
        }
    }

    /** {@code {kind: "writer" | "transformer" | "reader", name, config, topic, …}}. */
    static JsonNode start(JsonNode request) {
        Client client =
                switch (request.get("kind").asText()) {
                    case "writer" -> new Writer(request);
                    case "transformer" -> new Transformer(request);
                    case "reader" -> new Reader(request);
                    default -> throw new IllegalArgumentException("no such kind: " + request.get("kind"));
                };
        CLIENTS.put(client.getName(), client);
        client.start();
        return Driver.JSON.nullNode();
    }

    /** {@code {}}: for each client the count of its committed transactions or read records, and how it failed. */
    static JsonNode progress(JsonNode request) {
        ObjectNode told = Driver.JSON.createObjectNode();
        CLIENTS.forEach((name, client) -> told.putObject(name).put("progress", client.progress).put("failure", client.failure()));
        return told;
    }

    /** {@code {name, timeout_s}}: what it did, and how it failed. */
    static JsonNode stop(JsonNode request) throws InterruptedException {
        Client client = CLIENTS.remove(request.get("name").asText());
        client.stopping = true;
        client.join(Duration.ofSeconds(request.get("timeout_s").asLong()).toMillis());
        if (client.isAlive()) {
            throw new IllegalStateException(client.getName() + " did not stop");
        }
        return Driver.JSON.createObjectNode().put("failure", client.failure()).set("result", client.result());
    }
}

package nilometer;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.LongSerializer;

/**
 * Queues and their workers, for the benchmark: each worker is a {@code KafkaShareConsumer} with explicit acknowledgements and a thread of
 * its own; a job is the time at which it was due, and its work is to note when it began.
 *
 * <p>Arguments: servers, then {@code topic=workers} for each queue, whose group has the topic's name. A command is a line of standard input,
 * its answer a line of JSON:
 *
 * <ul>
 *   <li>{@code drain TOPIC SECONDS}: put as much as is accepted, with no more than {@code BACKLOG} jobs waiting. A quarter of that time goes
 *       before what counts.
 *   <li>{@code paced TOPIC SECONDS JOBS_PER_S POISON}: put at a constant rate; {@code POISON} is {@code true} if there is one job more, which
 *       is always released until it has been delivered as often as it may be, and then another one.
 * </ul>
 *
 * <p>A play ends when all its jobs are accepted. Workers without a play do not poll.
 */
public final class QueueLoad {
    private static final int BACKLOG = 5_000;
    private static final int DELIVERIES_MAX = 5;
    private static final int SAMPLES_MAX = 1_000_000;
    private static final long PATIENCE_NS = 120_000_000_000L;
    private static final Duration POLL = Duration.ofMillis(200);
    private static final long POISON = -1;

    private QueueLoad() {}

    private static final class Queue {
        final String topic;
        final AtomicLong put = new AtomicLong();
        final AtomicLong accepted = new AtomicLong();
        final AtomicLong failed = new AtomicLong();
        final AtomicLong again = new AtomicLong();
        final AtomicInteger poisonEnds = new AtomicInteger();
        final AtomicInteger sampleCount = new AtomicInteger();
        final long[] samples = new long[SAMPLES_MAX];
        private boolean plays;

        Queue(String topic) {
            this.topic = topic;
        }

        synchronized void waitUntilItPlays() throws InterruptedException {
            while (!plays) {
                wait();
            }
        }

        synchronized void play(boolean plays) {
            this.plays = plays;
            notifyAll();
        }

        void began(long due) {
            int index = sampleCount.getAndIncrement();
            if (index < SAMPLES_MAX) {
                samples[index] = System.nanoTime() - due;
            }
        }
    }

    private static final class Worker extends Thread {
        private final Queue queue;
        private final KafkaShareConsumer<byte[], Long> consumer;

        Worker(Queue queue, Properties config) {
            this.queue = queue;
            this.consumer = new KafkaShareConsumer<>(config);
            setDaemon(true);
        }

        @Override
        public void run() {
            try {
                consumer.subscribe(List.of(queue.topic));
                consumer.poll(POLL); // it joins
                while (true) {
                    queue.waitUntilItPlays();
                    work(consumer.poll(POLL));
                }
            } catch (Throwable raised) {
                raised.printStackTrace();
                System.exit(1);
            }
        }

        private void work(ConsumerRecords<byte[], Long> records) {
            int jobs = 0;
            int poisonEnds = 0;
            for (ConsumerRecord<byte[], Long> record : records) {
                short deliveries = record.deliveryCount().orElse((short) 1);
                if (record.value() == POISON) {
                    consumer.acknowledge(record, AcknowledgeType.RELEASE);
                    poisonEnds += deliveries >= DELIVERIES_MAX ? 1 : 0;
                    continue;
                }
                queue.began(record.value());
                if (deliveries > 1) {
                    queue.again.incrementAndGet();
                }
                consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                jobs++;
            }
            if (records.isEmpty()) {
                return;
            }
            consumer.commitSync().values().forEach(error -> {
                if (error.isPresent()) {
                    queue.failed.incrementAndGet(); // what it stands for is delivered again
                }
            });
            queue.accepted.addAndGet(jobs);
            queue.poisonEnds.addAndGet(poisonEnds);
        }
    }

    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0];
        Map<String, Queue> queues = new HashMap<>();
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            for (String each : Arrays.asList(arguments).subList(1, arguments.length)) {
                String[] parts = each.split("=");
                queues.put(parts[0], new Queue(parts[0]));
                begin(admin, servers, queues.get(parts[0]), Integer.parseInt(parts[1]));
            }
        }
        try (KafkaProducer<byte[], Long> fast = producer(servers, "5");
                KafkaProducer<byte[], Long> prompt = producer(servers, "0")) {
            System.out.println("ready");
            BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = commands.readLine(); line != null; line = commands.readLine()) {
                String[] words = line.split(" ");
                Queue queue = queues.get(words[1]);
                long nanos = (long) (Double.parseDouble(words[2]) * 1e9);
                queue.play(true);
                ObjectNode found =
                        switch (words[0]) {
                            case "drain" -> drain(queue, fast, nanos);
                            case "paced" -> paced(queue, prompt, nanos, Integer.parseInt(words[3]), Boolean.parseBoolean(words[4]));
                            default -> throw new IllegalArgumentException("no such command: " + line);
                        };
                queue.play(false);
                System.out.println(Driver.JSON.writeValueAsString(found));
            }
        }
        System.exit(0); // without the wait of each worker for its leave
    }

    private static void begin(Admin admin, String servers, Queue queue, int workers) throws Exception {
        ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, queue.topic);
        ConfigEntry earliest = new ConfigEntry("share.auto.offset.reset", "earliest");
        admin.incrementalAlterConfigs(Map.of(group, List.of(new AlterConfigOp(earliest, AlterConfigOp.OpType.SET))))
                .all()
                .get();
        Properties config = new Properties();
        config.put("bootstrap.servers", servers);
        config.put("group.id", queue.topic);
        config.put("share.acknowledgement.mode", "explicit");
        config.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        config.put("value.deserializer", LongDeserializer.class.getName());
        for (int number = 0; number < workers; number++) {
            new Worker(queue, config).start();
        }
    }

    private static KafkaProducer<byte[], Long> producer(String servers, String lingerMs) {
        Properties config = new Properties();
        config.put("bootstrap.servers", servers);
        config.put("linger.ms", lingerMs);
        config.put("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        config.put("value.serializer", LongSerializer.class.getName());
        return new KafkaProducer<>(config);
    }

    private static ObjectNode drain(Queue queue, KafkaProducer<byte[], Long> producer, long nanos) throws InterruptedException {
        pour(queue, producer, nanos / 4);
        long began = System.nanoTime();
        long before = queue.accepted.get();
        pour(queue, producer, nanos);
        double seconds = (System.nanoTime() - began) / 1e9;
        long jobs = queue.accepted.get() - before;
        waitUntilAllIsAccepted(queue);
        return result(queue).put("jobs", jobs).put("seconds", seconds);
    }

    private static void pour(Queue queue, KafkaProducer<byte[], Long> producer, long nanos) throws InterruptedException {
        long until = System.nanoTime() + nanos;
        while (System.nanoTime() < until) {
            if (queue.put.get() - queue.accepted.get() < BACKLOG) {
                put(queue, producer, System.nanoTime());
            } else {
                Thread.sleep(1);
            }
        }
    }

    private static ObjectNode paced(Queue queue, KafkaProducer<byte[], Long> producer, long nanos, int perSecond, boolean hasPoison)
            throws InterruptedException {
        queue.sampleCount.set(0);
        long began = System.nanoTime();
        long jobs = Math.max(1, (long) (nanos / 1e9 * perSecond));
        long poisoned = 0;
        int poisonEndsBefore = queue.poisonEnds.get();
        for (long number = 0; number < jobs; number++) {
            long due = began + number * 1_000_000_000L / perSecond;
            long left = due - System.nanoTime();
            if (left > 0) {
                Thread.sleep(left / 1_000_000, (int) (left % 1_000_000));
            }
            if (hasPoison && queue.poisonEnds.get() - poisonEndsBefore == poisoned) {
                poisoned++;
                producer.send(new ProducerRecord<>(queue.topic, POISON));
            }
            put(queue, producer, due);
        }
        waitUntilAllIsAccepted(queue);
        int count = Math.min(queue.sampleCount.get(), SAMPLES_MAX);
        long[] sorted = Arrays.copyOf(queue.samples, count);
        Arrays.sort(sorted);
        return result(queue)
                .put("jobs", jobs)
                .put("p50_ms", sorted[count / 2] / 1e6)
                .put("p99_ms", sorted[count * 99 / 100] / 1e6)
                .put("poisoned", poisoned);
    }

    private static void put(Queue queue, KafkaProducer<byte[], Long> producer, long due) {
        queue.put.incrementAndGet();
        producer.send(new ProducerRecord<>(queue.topic, due), (metadata, error) -> {
            if (error != null) {
                error.printStackTrace();
                System.exit(1);
            }
        });
    }

    /** More than all are accepted if some were done again. */
    private static void waitUntilAllIsAccepted(Queue queue) throws InterruptedException {
        long until = System.nanoTime() + PATIENCE_NS;
        while (queue.accepted.get() < queue.put.get()) {
            if (System.nanoTime() > until) {
                System.err.println(queue.accepted + " of " + queue.put + " jobs of " + queue.topic + " are accepted");
                System.exit(1);
            }
            Thread.sleep(1);
        }
    }

    private static ObjectNode result(Queue queue) {
        return Driver.JSON.createObjectNode().put("failed", queue.failed.getAndSet(0)).put("again", queue.again.getAndSet(0));
    }
}

/* Load on a Kafka broker through librdkafka, with no interpreter in the client's way.
 *
 *   load produce  BOOTSTRAP TOPIC COUNT SIZE BATCH_BYTES ACKS
 *   load keyed    BOOTSTRAP TOPIC COUNT SIZE KEYS
 *   load consume  BOOTSTRAP TOPIC COUNT PARTITIONS
 *   load latency  BOOTSTRAP TOPIC RATE SECONDS SIZE ACKS
 *   load first    BOOTSTRAP TOPIC
 *
 * The first KEYS records of `keyed` have a key each; the others have one of these keys, by chance.
 * Each prints one line of JSON. Times are CLOCK_MONOTONIC seconds. A failed delivery or a stall ends it with status 1. */
#include "client.h"

#define WARM_UP_RECORDS 1000
#define CONSUME_BATCH 10000

static int produce(const char *bootstrap, const char *name, int64_t count, size_t size, const char *batch,
                   const char *acks) {
    rd_kafka_conf_t *config = rd_kafka_conf_new();
    set(config, "batch.size", batch);
    set(config, "batch.num.messages", "100000");
    set(config, "linger.ms", "5");
    set(config, "acks", acks);
    set(config, "queue.buffering.max.messages", "2000000");
    set(config, "queue.buffering.max.kbytes", "262144");
    rd_kafka_conf_set_dr_msg_cb(config, on_delivery);
    rd_kafka_t *client = client_of(RD_KAFKA_PRODUCER, config, bootstrap);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(client, name, NULL);
    char *value = noise(size);
    pthread_t poller;
    pthread_create(&poller, NULL, poll_all, client);
    for (int64_t sent = 0; sent < WARM_UP_RECORDS; sent++) send_record(topic, value, size, NULL);
    wait_delivered(WARM_UP_RECORDS);
    double began = now();
    for (int64_t sent = 0; sent < count; sent++) send_record(topic, value, size, NULL);
    wait_delivered(WARM_UP_RECORDS + count);
    printf("{\"records\": %" PRId64 ", \"seconds\": %.6f}\n", count, last_delivery - began);
    return 0;
}

static int keyed(const char *bootstrap, const char *name, int64_t count, size_t size, int64_t keys) {
    rd_kafka_conf_t *config = rd_kafka_conf_new();
    set(config, "batch.size", "16384");
    set(config, "linger.ms", "5");
    set(config, "acks", "all");
    set(config, "queue.buffering.max.messages", "500000");
    rd_kafka_conf_set_dr_msg_cb(config, on_delivery);
    rd_kafka_t *client = client_of(RD_KAFKA_PRODUCER, config, bootstrap);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(client, name, NULL);
    char *value = noise(size), key[32];
    uint32_t state = 2463534242u;
    pthread_t poller;
    pthread_create(&poller, NULL, poll_all, client);
    double began = now();
    for (int64_t sent = 0; sent < count; sent++) {
        int64_t number = sent < keys ? sent : (int64_t)next_random(&state) % keys;
        int key_size = snprintf(key, sizeof key, "key-%012" PRId64, number);
        send_keyed(topic, value, size, key, (size_t)key_size, NULL);
    }
    wait_delivered(count);
    printf("{\"records\": %" PRId64 ", \"seconds\": %.6f}\n", count, last_delivery - began);
    return 0;
}

static int consume(const char *bootstrap, const char *name, int64_t count, int partitions) {
    rd_kafka_conf_t *config = rd_kafka_conf_new();
    set(config, "check.crcs", "false");
    set(config, "queued.min.messages", "1000000");
    rd_kafka_t *client = client_of(RD_KAFKA_CONSUMER, config, bootstrap);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(client, name, NULL);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(client);
    rd_kafka_message_t **messages = malloc(CONSUME_BATCH * sizeof *messages);
    double began = now(), first = 0, progress = began;
    for (int partition = 0; partition < partitions; partition++)
        if (rd_kafka_consume_start_queue(topic, partition, RD_KAFKA_OFFSET_BEGINNING, queue))
            fail("consume", rd_kafka_err2str(rd_kafka_last_error()));
    int64_t read = 0, bytes = 0;
    while (read < count) {
        ssize_t got = rd_kafka_consume_batch_queue(queue, 100, messages, CONSUME_BATCH);
        if (got > 0) progress = now();
        if (got > 0 && !first) first = progress;
        if (now() - progress > STALL_S) fail("consume", "stalled");
        for (ssize_t index = 0; index < got; index++) {
            if (!messages[index]->err) {
                read++;
                bytes += (int64_t)messages[index]->len;
            } else if (messages[index]->err != RD_KAFKA_RESP_ERR__PARTITION_EOF) {
                fail("consume", rd_kafka_message_errstr(messages[index]));
            }
            rd_kafka_message_destroy(messages[index]);
        }
    }
    double ended = now();
    printf("{\"records\": %" PRId64 ", \"bytes\": %" PRId64 ", \"seconds\": %.6f, \"until_first\": %.6f}\n", read, bytes,
           ended - began, first - began);
    return 0;
}

static int latency(const char *bootstrap, const char *name, int64_t rate, int64_t seconds, size_t size, const char *acks) {
    int64_t warm_up = rate * 2, count = rate * seconds;
    rd_kafka_conf_t *config = rd_kafka_conf_new();
    set(config, "linger.ms", "0");
    set(config, "acks", acks);
    set(config, "socket.nagle.disable", "true");
    rd_kafka_conf_set_dr_msg_cb(config, on_delivery);
    rd_kafka_t *client = client_of(RD_KAFKA_PRODUCER, config, bootstrap);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(client, name, NULL);
    char *value = noise(size);
    double *sent = calloc((size_t)(warm_up + count), sizeof *sent);
    latencies = calloc((size_t)count, sizeof *latencies);
    pthread_t poller;
    pthread_create(&poller, NULL, poll_all, client);
    send_record(topic, value, size, NULL);
    wait_delivered(1);
    struct timespec due;
    clock_gettime(CLOCK_MONOTONIC, &due);
    for (int64_t number = 0; number < warm_up + count; number++) {
        due.tv_nsec += 1000000000 / rate;
        while (due.tv_nsec >= 1000000000) {
            due.tv_nsec -= 1000000000;
            due.tv_sec++;
        }
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
        sent[number] = now();
        send_record(topic, value, size, number < warm_up ? NULL : &sent[number]);
    }
    wait_delivered(1 + warm_up + count);
    qsort(latencies, (size_t)latency_count, sizeof *latencies, ascending);
    printf("{\"records\": %" PRId64 ", \"p50\": %.4f, \"p90\": %.4f, \"p99\": %.4f, \"p999\": %.4f, \"max\": %.4f}\n",
           latency_count, quantile(0.5), quantile(0.9), quantile(0.99), quantile(0.999), quantile(1.0));
    return 0;
}

static int first(const char *bootstrap, const char *name) {
    rd_kafka_conf_t *config = rd_kafka_conf_new();
    set(config, "linger.ms", "0");
    set(config, "acks", "all");
    set(config, "reconnect.backoff.ms", "10");
    set(config, "reconnect.backoff.max.ms", "20");
    set(config, "topic.metadata.refresh.fast.interval.ms", "20");
    set(config, "retry.backoff.ms", "10");
    set(config, "retry.backoff.max.ms", "20");
    rd_kafka_conf_set_dr_msg_cb(config, on_delivery);
    rd_kafka_t *client = client_of(RD_KAFKA_PRODUCER, config, bootstrap);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(client, name, NULL);
    char value[] = "first";
    pthread_t poller;
    pthread_create(&poller, NULL, poll_all, client);
    send_record(topic, value, sizeof value - 1, NULL);
    wait_delivered(1);
    printf("{\"acknowledged_at\": %.6f}\n", last_delivery);
    return 0;
}

int main(int count, char **given) {
    if (count == 8 && !strcmp(given[1], "produce"))
        return produce(given[2], given[3], atoll(given[4]), (size_t)atoll(given[5]), given[6], given[7]);
    if (count == 7 && !strcmp(given[1], "keyed"))
        return keyed(given[2], given[3], atoll(given[4]), (size_t)atoll(given[5]), atoll(given[6]));
    if (count == 6 && !strcmp(given[1], "consume")) return consume(given[2], given[3], atoll(given[4]), atoi(given[5]));
    if (count == 8 && !strcmp(given[1], "latency"))
        return latency(given[2], given[3], atoll(given[4]), atoll(given[5]), (size_t)atoll(given[6]), given[7]);
    if (count == 4 && !strcmp(given[1], "first")) return first(given[2], given[3]);
    fprintf(stderr, "load produce|keyed|consume|latency|first …: see the head of the source\n");
    return 2;
}

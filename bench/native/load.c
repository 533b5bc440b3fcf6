/* Load on a Kafka broker through librdkafka, with no interpreter in the client's way.
 *
 *   load produce  BOOTSTRAP TOPIC SECONDS SIZE [KEY=VALUE ...]
 *   load fill     BOOTSTRAP TOPIC COUNT SIZE [KEY=VALUE ...]
 *   load keyed    BOOTSTRAP TOPIC COUNT SIZE KEYS
 *   load consume  BOOTSTRAP TOPIC COUNT PARTITIONS SECONDS [KEY=VALUE ...]
 *   load latency  BOOTSTRAP TOPIC RATE SECONDS SIZE ACKS
 *   load first    BOOTSTRAP TOPIC
 *
 * `produce` sends as fast as it can for SECONDS and waits until all is acknowledged, `fill` sends COUNT records. KEY=VALUE are settings
 * of librdkafka, or `payload=text` for values that can be compressed. The first KEYS records of `keyed` have a key each; the others have
 * one of these keys, by chance. `latency` counts the time of a record from when it was due, so that a stall counts for all records that
 * were due in it; `sent_late` is how late the client itself was. `consume` reads COUNT records from the start, again until SECONDS are
 * over; the log should have more, or it would wait at its end.
 * Each prints one line of JSON. Times are CLOCK_MONOTONIC seconds. A failed delivery or a stall ends it with status 1. */
#include "client.h"
#include <sys/prctl.h>

#define WARM_UP_RECORDS 1000
#define CONSUME_BATCH 10000
#define RECORDS_PER_LOOK 64

static int is_text;

/* KEY=VALUE, as the command line has it. */
static void set_given(rd_kafka_conf_t *config, const char *given) {
    char key[128];
    const char *sign = strchr(given, '=');
    if (!sign || (size_t)(sign - given) >= sizeof key) fail("setting", given);
    memcpy(key, given, (size_t)(sign - given));
    key[sign - given] = 0;
    if (strcmp(key, "payload"))
        set(config, key, sign + 1);
    else
        is_text = !strcmp(sign + 1, "text");
}

/* As application logs are: a few words again and again, and numbers. */
static char *text(size_t size) {
    static const char *words[] = {"GET /api/orders/", "status=200 ", "user=", "latency_ms=", "region=eu-west ", "INFO "};
    char *value = malloc(size + 64);
    uint32_t state = 2463534242u;
    for (size_t at = 0; at < size;)
        at += (size_t)sprintf(value + at, "%s%u ", words[next_random(&state) % 6], next_random(&state) % 100000);
    return value;
}

/* For `seconds`, or `count` records if that is not 0. */
static int produce(const char *bootstrap, const char *name, double seconds, int64_t count, size_t size, char **given) {
    rd_kafka_conf_t *config = rd_kafka_conf_new();
    set(config, "batch.num.messages", "100000");
    set(config, "linger.ms", "5");
    set(config, "acks", "all");
    set(config, "queue.buffering.max.messages", "2000000");
    set(config, "queue.buffering.max.kbytes", "32768"); /* buffer.memory of Java's producer */
    for (; *given; given++) set_given(config, *given);
    rd_kafka_conf_set_dr_msg_cb(config, on_delivery);
    rd_kafka_t *client = client_of(RD_KAFKA_PRODUCER, config, bootstrap);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(client, name, NULL);
    char *value = is_text ? text(size) : noise(size);
    pthread_t poller;
    pthread_create(&poller, NULL, poll_all, client);
    int64_t sent = count ? 0 : WARM_UP_RECORDS;
    for (int64_t number = 0; number < sent; number++) send_record(topic, value, size, NULL);
    wait_delivered(sent);
    double began = now();
    int64_t ahead = sent;
    while (count ? sent < count : now() - began < seconds)
        for (int number = 0; number < RECORDS_PER_LOOK && (!count || sent < count); number++, sent++)
            send_record(topic, value, size, NULL);
    wait_delivered(sent);
    printf("{\"records\": %" PRId64 ", \"seconds\": %.6f}\n", sent - ahead, last_delivery - began);
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

/* Read `count` records; returns their bytes. */
static int64_t read_records(rd_kafka_queue_t *queue, int64_t count) {
    static rd_kafka_message_t *messages[CONSUME_BATCH];
    double progress = now();
    int64_t read = 0, bytes = 0;
    while (read < count) {
        ssize_t got = rd_kafka_consume_batch_queue(queue, 100, messages, CONSUME_BATCH);
        if (got > 0) progress = now();
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
    return bytes;
}

static int consume(const char *bootstrap, const char *name, int64_t count, int partitions, double seconds, char **given) {
    rd_kafka_conf_t *config = rd_kafka_conf_new();
    set(config, "check.crcs", "false");
    set(config, "queued.min.messages", "1000000");
    for (; *given; given++) set_given(config, *given);
    rd_kafka_t *client = client_of(RD_KAFKA_CONSUMER, config, bootstrap);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(client, name, NULL);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(client);
    double began = now();
    int64_t passes = 0, bytes = 0;
    do {
        for (int partition = 0; partition < partitions; partition++)
            if (rd_kafka_consume_start_queue(topic, partition, RD_KAFKA_OFFSET_BEGINNING, queue))
                fail("consume", rd_kafka_err2str(rd_kafka_last_error()));
        bytes += read_records(queue, count);
        for (int partition = 0; partition < partitions; partition++) rd_kafka_consume_stop(topic, partition);
        passes++;
    } while (now() - began < seconds);
    printf("{\"records\": %" PRId64 ", \"bytes\": %" PRId64 ", \"passes\": %" PRId64 ", \"seconds\": %.6f}\n", passes * count,
           bytes, passes, now() - began);
    return 0;
}

static double seconds_of(struct timespec at) { return (double)at.tv_sec + (double)at.tv_nsec / 1e9; }

static int latency(const char *bootstrap, const char *name, int64_t rate, double seconds, size_t size, const char *acks) {
    int64_t warm_up = rate, count = (int64_t)((double)rate * seconds);
    rd_kafka_conf_t *config = rd_kafka_conf_new();
    set(config, "linger.ms", "0");
    set(config, "acks", acks);
    set(config, "socket.nagle.disable", "true");
    set(config, "queue.buffering.max.messages", "2000000");
    rd_kafka_conf_set_dr_msg_cb(config, on_delivery);
    rd_kafka_t *client = client_of(RD_KAFKA_PRODUCER, config, bootstrap);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(client, name, NULL);
    char *value = noise(size);
    double *due_at = calloc((size_t)(warm_up + count), sizeof *due_at), sent_late = 0;
    latencies = calloc((size_t)count, sizeof *latencies);
    pthread_t poller;
    pthread_create(&poller, NULL, poll_all, client);
    send_record(topic, value, size, NULL);
    wait_delivered(1);
    prctl(PR_SET_TIMERSLACK, 1UL); /* ns: the kernel may wake a thread 50 us late otherwise */
    struct timespec due;
    clock_gettime(CLOCK_MONOTONIC, &due);
    for (int64_t number = 0; number < warm_up + count; number++) {
        due.tv_nsec += 1000000000 / rate;
        while (due.tv_nsec >= 1000000000) {
            due.tv_nsec -= 1000000000;
            due.tv_sec++;
        }
        due_at[number] = seconds_of(due);
        if (due_at[number] > now()) clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
        if (number >= warm_up) sent_late += now() - due_at[number];
        send_record(topic, value, size, number < warm_up ? NULL : &due_at[number]);
    }
    wait_delivered(1 + warm_up + count);
    double took = last_delivery - due_at[warm_up];
    qsort(latencies, (size_t)latency_count, sizeof *latencies, ascending);
    printf("{\"records\": %" PRId64 ", \"per_s\": %.1f, \"sent_late\": %.4f, \"p50\": %.4f, \"p90\": %.4f, \"p99\": %.4f, "
           "\"p999\": %.4f, \"max\": %.4f}\n",
           latency_count, (double)count / took, sent_late / (double)count * 1e3, quantile(0.5), quantile(0.9), quantile(0.99),
           quantile(0.999), quantile(1.0));
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
    if (count >= 6 && !strcmp(given[1], "produce"))
        return produce(given[2], given[3], atof(given[4]), 0, (size_t)atoll(given[5]), given + 6);
    if (count >= 6 && !strcmp(given[1], "fill"))
        return produce(given[2], given[3], 0, atoll(given[4]), (size_t)atoll(given[5]), given + 6);
    if (count == 7 && !strcmp(given[1], "keyed"))
        return keyed(given[2], given[3], atoll(given[4]), (size_t)atoll(given[5]), atoll(given[6]));
    if (count >= 7 && !strcmp(given[1], "consume"))
        return consume(given[2], given[3], atoll(given[4]), atoi(given[5]), atof(given[6]), given + 7);
    if (count == 8 && !strcmp(given[1], "latency"))
        return latency(given[2], given[3], atoll(given[4]), atof(given[5]), (size_t)atoll(given[6]), given[7]);
    if (count == 4 && !strcmp(given[1], "first")) return first(given[2], given[3]);
    fprintf(stderr, "load produce|fill|keyed|consume|latency|first …: see the head of the source\n");
    return 2;
}

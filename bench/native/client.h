/* What the load generators share: librdkafka's client and the thread that serves its callbacks, waiting for
 * deliveries, values, quantiles. Each generator is one source file that includes this once. */
#ifndef NILOMETER_BENCH_CLIENT_H
#define NILOMETER_BENCH_CLIENT_H

#include <inttypes.h>
#include <librdkafka/rdkafka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STALL_S 60.0

static volatile int64_t delivered; /* written by the polling thread alone */
static double last_delivery;
static double *latencies;
static int64_t latency_count;
static volatile int polling = 1;

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void on_delivery(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
    (void)client;
    (void)opaque;
    if (message->err) fail("delivery", rd_kafka_err2str(message->err));
    last_delivery = now();
    if (latencies && message->_private) {
        double *sent = message->_private;
        latencies[latency_count++] = last_delivery - *sent;
    }
    delivered++;
}

static void set(rd_kafka_conf_t *config, const char *key, const char *value) {
    char problem[256];
    if (rd_kafka_conf_set(config, key, value, problem, sizeof problem) != RD_KAFKA_CONF_OK) fail(key, problem);
}

static rd_kafka_t *client_of(rd_kafka_type_t type, rd_kafka_conf_t *config, const char *bootstrap) {
    char problem[256];
    set(config, "bootstrap.servers", bootstrap);
    set(config, "log_level", "2");
    rd_kafka_t *client = rd_kafka_new(type, config, problem, sizeof problem);
    if (!client) fail("client", problem);
    return client;
}

static void *poll_all(void *client) {
    while (polling) rd_kafka_poll(client, 20);
    return NULL;
}

static void send_keyed(rd_kafka_topic_t *topic, char *value, size_t size, const char *key, size_t key_size,
                       void *private) {
    while (rd_kafka_produce(topic, RD_KAFKA_PARTITION_UA, RD_KAFKA_MSG_F_COPY, value, size, key, key_size, private)) {
        if (rd_kafka_last_error() != RD_KAFKA_RESP_ERR__QUEUE_FULL)
            fail("produce", rd_kafka_err2str(rd_kafka_last_error()));
        nanosleep(&(struct timespec){0, 200000}, NULL);
    }
}

static void send_record(rd_kafka_topic_t *topic, char *value, size_t size, void *private) {
    send_keyed(topic, value, size, NULL, 0, private);
}

static void wait_delivered(int64_t count) {
    double began = now();
    int64_t seen = -1;
    while (delivered < count) {
        if (delivered != seen) {
            seen = delivered;
            began = now();
        } else if (now() - began > STALL_S) {
            fail("delivery", "stalled");
        }
        nanosleep(&(struct timespec){0, 500000}, NULL);
    }
}

static uint32_t next_random(uint32_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* Bytes that no layer below could find shorter than they are, and that are the same in every run. */
static char *noise(size_t size) {
    char *value = malloc(size);
    uint32_t state = 2463534242u;
    for (size_t index = 0; index < size; index++) value[index] = (char)(32 + next_random(&state) % 95);
    return value;
}

static int ascending(const void *left, const void *right) {
    double difference = *(const double *)left - *(const double *)right;
    return (difference > 0) - (difference < 0);
}

static double quantile(double share) {
    int64_t index = (int64_t)((double)latency_count * share);
    return latencies[index < latency_count ? index : latency_count - 1] * 1e3;
}

#endif

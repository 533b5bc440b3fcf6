/* Transactions on a Kafka broker through librdkafka: each is committed after 100 ms.
 *
 *   transactions produce    BOOTSTRAP TOPIC SECONDS SIZE RATE
 *   transactions transform  BOOTSTRAP INPUT OUTPUT GROUP SECONDS
 *
 * `produce` sends RATE records a second, or as many as it can if RATE is 0. `transform` reads INPUT from its
 * start as a member of GROUP, changes each record, writes it to OUTPUT, and commits what it read and wrote
 * together; it ends after SECONDS or when INPUT has no more for a second. Each prints one line of JSON: the
 * records of committed transactions, the seconds from the first transaction's start to the last commit, and
 * quantiles of the time that a commit takes, in ms. An error ends it with status 1. */
#include "client.h"

#define COMMIT_EVERY_S 0.1
#define TIMEOUT_MS 60000
#define TRANSACTIONS_MAX 100000
#define POLL_RECORDS 2000
#define END_OF_INPUT_S 1.0

static void require(rd_kafka_error_t *error, const char *what) {
    if (error) fail(what, rd_kafka_error_string(error));
}

static rd_kafka_t *transactional_producer(const char *bootstrap) {
    char id[64];
    snprintf(id, sizeof id, "bench-%.6f", now());
    rd_kafka_conf_t *config = rd_kafka_conf_new();
    set(config, "transactional.id", id);
    set(config, "batch.size", "16384");
    set(config, "linger.ms", "5");
    set(config, "queue.buffering.max.messages", "10000"); /* what a commit waits for first */
    rd_kafka_conf_set_dr_msg_cb(config, on_delivery);
    rd_kafka_t *client = client_of(RD_KAFKA_PRODUCER, config, bootstrap);
    pthread_t poller;
    pthread_create(&poller, NULL, poll_all, client);
    require(rd_kafka_init_transactions(client, TIMEOUT_MS), "init");
    latencies = calloc(TRANSACTIONS_MAX, sizeof *latencies);
    return client;
}

static void commit(rd_kafka_t *producer) {
    double began = now();
    require(rd_kafka_commit_transaction(producer, TIMEOUT_MS), "commit");
    if (latency_count == TRANSACTIONS_MAX) fail("commit", "too many transactions");
    latencies[latency_count++] = now() - began;
}

static int report(int64_t records, double seconds) {
    int64_t transactions = latency_count;
    qsort(latencies, (size_t)transactions, sizeof *latencies, ascending);
    printf("{\"records\": %" PRId64 ", \"seconds\": %.6f, \"transactions\": %" PRId64
           ", \"p50\": %.4f, \"p99\": %.4f, \"max\": %.4f}\n",
           records, seconds, transactions, quantile(0.5), quantile(0.99), quantile(1.0));
    return 0;
}

static void wait_until(double due) {
    double left = due - now();
    if (left > 0) nanosleep(&(struct timespec){(time_t)left, (long)((left - (double)(time_t)left) * 1e9)}, NULL);
}

static int produce(const char *bootstrap, const char *name, double seconds, size_t size, int64_t rate) {
    rd_kafka_t *producer = transactional_producer(bootstrap);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(producer, name, NULL);
    char *value = noise(size);
    int64_t records = 0;
    double began = now();
    while (now() - began < seconds) {
        require(rd_kafka_begin_transaction(producer), "begin");
        double end = now() + COMMIT_EVERY_S;
        while (now() < end) {
            if (rate) wait_until(began + (double)records / (double)rate);
            send_record(topic, value, size, NULL);
            records++;
        }
        commit(producer);
    }
    return report(records, now() - began);
}

static rd_kafka_t *committed_reader(const char *bootstrap, const char *input, const char *group) {
    rd_kafka_conf_t *config = rd_kafka_conf_new();
    set(config, "group.id", group);
    set(config, "auto.offset.reset", "earliest");
    set(config, "enable.auto.commit", "false");
    set(config, "isolation.level", "read_committed");
    rd_kafka_t *consumer = client_of(RD_KAFKA_CONSUMER, config, bootstrap);
    rd_kafka_poll_set_consumer(consumer);
    rd_kafka_topic_partition_list_t *topics = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(topics, input, RD_KAFKA_PARTITION_UA);
    rd_kafka_resp_err_t error = rd_kafka_subscribe(consumer, topics);
    if (error) fail("subscribe", rd_kafka_err2str(error));
    rd_kafka_topic_partition_list_destroy(topics);
    return consumer;
}

static void send_positions(rd_kafka_t *producer, rd_kafka_t *consumer) {
    rd_kafka_topic_partition_list_t *positions;
    rd_kafka_resp_err_t error = rd_kafka_assignment(consumer, &positions);
    if (!error) error = rd_kafka_position(consumer, positions);
    if (error) fail("position", rd_kafka_err2str(error));
    rd_kafka_consumer_group_metadata_t *group = rd_kafka_consumer_group_metadata(consumer);
    require(rd_kafka_send_offsets_to_transaction(producer, positions, group, TIMEOUT_MS), "offsets");
    rd_kafka_consumer_group_metadata_destroy(group);
    rd_kafka_topic_partition_list_destroy(positions);
}

/* What is read is upper case from here on; returns how many records there were. */
static int64_t transform_polled(rd_kafka_queue_t *queue, rd_kafka_topic_t *output) {
    static rd_kafka_message_t *messages[POLL_RECORDS];
    ssize_t got = rd_kafka_consume_batch_queue(queue, 10, messages, POLL_RECORDS);
    int64_t records = 0;
    for (ssize_t index = 0; index < got; index++) {
        rd_kafka_message_t *message = messages[index];
        if (message->err && message->err != RD_KAFKA_RESP_ERR__PARTITION_EOF)
            fail("consume", rd_kafka_message_errstr(message));
        if (!message->err) {
            char *value = message->payload;
            for (size_t at = 0; at < message->len; at++)
                if (value[at] >= 'a' && value[at] <= 'z') value[at] -= 32;
            send_keyed(output, value, message->len, message->key, message->key_len, NULL);
            records++;
        }
        rd_kafka_message_destroy(message);
    }
    return records;
}

static int transform(const char *bootstrap, const char *input, const char *name, const char *group, double seconds) {
    rd_kafka_t *producer = transactional_producer(bootstrap);
    rd_kafka_topic_t *output = rd_kafka_topic_new(producer, name, NULL);
    rd_kafka_t *consumer = committed_reader(bootstrap, input, group);
    rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(consumer);
    int64_t records = 0;
    double joining = now(), began = 0, last_read = 0, last_commit = 0;
    while (!began || (now() - began < seconds && now() - last_read < END_OF_INPUT_S)) {
        if (!began && now() - joining > STALL_S) fail("consume", "nothing is read");
        require(rd_kafka_begin_transaction(producer), "begin");
        double end = now() + COMMIT_EVERY_S;
        int64_t taken = 0;
        do {
            int64_t read = transform_polled(queue, output);
            if (read && !began) {
                began = now();
                end = began + COMMIT_EVERY_S;
            }
            if (read) last_read = now();
            taken += read;
        } while (now() < end);
        if (!taken) {
            require(rd_kafka_abort_transaction(producer, TIMEOUT_MS), "abort");
            continue;
        }
        send_positions(producer, consumer);
        commit(producer);
        records += taken;
        last_commit = now();
    }
    rd_kafka_consumer_close(consumer);
    return report(records, last_commit - began);
}

int main(int count, char **given) {
    if (count == 7 && !strcmp(given[1], "produce"))
        return produce(given[2], given[3], atof(given[4]), (size_t)atoll(given[5]), atoll(given[6]));
    if (count == 7 && !strcmp(given[1], "transform"))
        return transform(given[2], given[3], given[4], given[5], atof(given[6]));
    fprintf(stderr, "transactions produce|transform …: see the head of the source\n");
    return 2;
}

/* Many clients at once: `connections HOST PORT COUNT SECONDS FRAMES ERROR_AT [BATCH_AT RECORDS]`, the frames on its input.
 *
 * COUNT connections send one request each, most often Produce, and the next when the one before is answered: as many applications do
 * that wait for each of their records. Connection number i sends frame i modulo FRAMES; all frames are of one size and hold their length in front.
 * ERROR_AT is where the error code is in a response, after its length. The time of a request counts from when it is handed to the
 * kernel. With BATCH_AT, where a frame has its batch of RECORDS records, each connection is an idempotent producer: its id (8 bytes) is on
 * the input behind the frames, its sequence grows with each request. Prints one line of JSON: requests answered in SECONDS, quantiles in ms. An error code ends it with status 1. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define FRAMES_MAX (8 << 20)
#define RESPONSE_MAX 4096
#define LATENCIES_MAX 20000000
#define EVENTS 512

/* Where a batch has its fields. */
#define LENGTH_AT 8
#define BEHIND_LENGTH 12
#define CRC_AT 17
#define ATTRIBUTES_AT 21
#define PRODUCER_ID_AT 43
#define EPOCH_AT 51
#define SEQUENCE_AT 53

struct connection {
    int socket;
    unsigned char *frame;
    uint32_t sequence;
    double sent_at;
    size_t received;
    unsigned char response[RESPONSE_MAX];
};

static double *latencies;
static int64_t answered;

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static uint32_t get_32(const unsigned char *bytes) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static uint32_t crc_table[256];

static void make_crc_table(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78 : crc >> 1;
        crc_table[byte] = crc;
    }
}

static uint32_t crc32c(const unsigned char *bytes, size_t size) {
    uint32_t crc = 0xffffffff;
    for (size_t at = 0; at < size; at++) crc = crc >> 8 ^ crc_table[(crc ^ bytes[at]) & 0xff];
    return ~crc;
}

static void put_32(unsigned char *bytes, uint32_t value) {
    for (int at = 0; at < 4; at++) bytes[at] = (unsigned char)(value >> (24 - 8 * at));
}

static void number_batch(struct connection *one, size_t batch_at, uint32_t records) {
    unsigned char *batch = one->frame + batch_at;
    size_t size = BEHIND_LENGTH + get_32(batch + LENGTH_AT);
    put_32(batch + SEQUENCE_AT, one->sequence);
    one->sequence += records;
    put_32(batch + CRC_AT, crc32c(batch + ATTRIBUTES_AT, size - ATTRIBUTES_AT));
}

static void send_request(struct connection *one, size_t size, size_t batch_at, uint32_t records) {
    if (records) number_batch(one, batch_at, records);
    one->received = 0;
    one->sent_at = now();
    if (send(one->socket, one->frame, size, MSG_NOSIGNAL) != (ssize_t)size) fail("send");
}

static int connected(const struct sockaddr_in *address) {
    int socket_ = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    if (socket_ < 0 || connect(socket_, (const struct sockaddr *)address, sizeof *address)) fail("connect");
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return socket_;
}

/* Whether the response is complete. */
static int receive(struct connection *one, size_t error_at) {
    ssize_t got = recv(one->socket, one->response + one->received, RESPONSE_MAX - one->received, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (got <= 0) fail("receive");
    one->received += (size_t)got;
    if (one->received < 4) return 0;
    const unsigned char *bytes = one->response;
    size_t size = get_32(bytes);
    if (size + 4 > RESPONSE_MAX || size < error_at + 2) {
        fprintf(stderr, "a response of %zu bytes\n", size);
        exit(1);
    }
    if (one->received < size + 4) return 0;
    int error = bytes[4 + error_at] << 8 | bytes[5 + error_at];
    if (error) {
        fprintf(stderr, "response: error code %d\n", error);
        exit(1);
    }
    return 1;
}

static int ascending(const void *left, const void *right) {
    double difference = *(const double *)left - *(const double *)right;
    return (difference > 0) - (difference < 0);
}

static double quantile(double share) {
    int64_t index = (int64_t)((double)answered * share);
    return latencies[index < answered ? index : answered - 1] * 1e3;
}

static unsigned char *read_frames(size_t *size) {
    unsigned char *frames = malloc(FRAMES_MAX);
    *size = fread(frames, 1, FRAMES_MAX, stdin);
    return frames;
}

int main(int count, char **given) {
    if (count != 7 && count != 9) {
        fprintf(stderr, "connections HOST PORT COUNT SECONDS FRAMES ERROR_AT [BATCH_AT RECORDS]\n");
        return 2;
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(given[2]))};
    if (inet_pton(AF_INET, given[1], &address.sin_addr) != 1) fail(given[1]);
    size_t connections = (size_t)atoll(given[3]), frames = (size_t)atoll(given[5]), error_at = (size_t)atoll(given[6]), size;
    size_t batch_at = count == 9 ? (size_t)atoll(given[7]) : 0;
    uint32_t records = count == 9 ? (uint32_t)atoll(given[8]) : 0;
    double seconds = atof(given[4]);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    unsigned char *requests = read_frames(&size);
    size_t ids = records ? 8 * connections : 0;
    if (size <= ids || (size - ids) % frames) fail("frames");
    const unsigned char *producer_ids = requests + size - ids;
    size = (size - ids) / frames;
    make_crc_table();
    struct connection *all = calloc(connections, sizeof *all);
    latencies = calloc(LATENCIES_MAX, sizeof *latencies);
    int poller = epoll_create1(0);
    for (size_t number = 0; number < connections; number++) {
        all[number].socket = connected(&address);
        all[number].frame = requests + number % frames * size;
        if (records) { /* a frame of its own */
            unsigned char *own = malloc(size);
            memcpy(own, all[number].frame, size);
            memcpy(own + batch_at + PRODUCER_ID_AT, producer_ids + 8 * number, 8);
            memset(own + batch_at + EPOCH_AT, 0, 2);
            all[number].frame = own;
        }
        struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = &all[number]};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, all[number].socket, &wanted)) fail("epoll");
    }
    double began = now();
    for (size_t number = 0; number < connections; number++) send_request(&all[number], size, batch_at, records);
    size_t waiting = connections;
    double ended = 0;
    while (waiting) {
        struct epoll_event events[EVENTS];
        int ready = epoll_wait(poller, events, EVENTS, 30000);
        if (ready <= 0) fail("no response for 30 s");
        for (int index = 0; index < ready; index++) {
            struct connection *one = events[index].data.ptr;
            if (!receive(one, error_at)) continue;
            double at = now();
            int is_over = at - began >= seconds || answered == LATENCIES_MAX;
            if (!is_over) {
                latencies[answered++] = at - one->sent_at;
                ended = at;
                send_request(one, size, batch_at, records);
            } else {
                waiting--;
            }
        }
    }
    if (!answered) {
        fprintf(stderr, "no request was answered in %.1f s\n", seconds);
        return 1;
    }
    qsort(latencies, (size_t)answered, sizeof *latencies, ascending);
    printf("{\"requests\": %" PRId64 ", \"seconds\": %.6f, \"p50\": %.4f, \"p99\": %.4f, \"p999\": %.4f, \"max\": %.4f}\n", answered,
           ended - began, quantile(0.5), quantile(0.99), quantile(0.999), quantile(1.0));
    return 0;
}

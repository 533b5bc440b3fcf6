/* Many clients at once: `connections HOST PORT COUNT SECONDS FRAMES ERROR_AT`, the frames on its input.
 *
 * COUNT connections send one request each, most often Produce, and the next when the one before is answered: as many applications do
 * that wait for each of their records. Connection number i sends frame i modulo FRAMES; all frames are of one size and hold their length in front.
 * ERROR_AT is where the error code is in a response, after its length. The time of a request counts from when it is handed to the
 * kernel. Prints one line of JSON: requests answered in SECONDS, quantiles in ms. An error code ends it with status 1. */
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

struct connection {
    int socket;
    const unsigned char *frame;
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

static void send_request(struct connection *one, size_t size) {
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
    size_t size = (size_t)bytes[0] << 24 | (size_t)bytes[1] << 16 | (size_t)bytes[2] << 8 | bytes[3];
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
    if (count != 7) {
        fprintf(stderr, "connections HOST PORT COUNT SECONDS FRAMES ERROR_AT\n");
        return 2;
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(given[2]))};
    if (inet_pton(AF_INET, given[1], &address.sin_addr) != 1) fail(given[1]);
    size_t connections = (size_t)atoll(given[3]), frames = (size_t)atoll(given[5]), error_at = (size_t)atoll(given[6]), size;
    double seconds = atof(given[4]);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    unsigned char *requests = read_frames(&size);
    if (!size || size % frames) fail("frames");
    size /= frames;
    struct connection *all = calloc(connections, sizeof *all);
    latencies = calloc(LATENCIES_MAX, sizeof *latencies);
    int poller = epoll_create1(0);
    for (size_t number = 0; number < connections; number++) {
        all[number].socket = connected(&address);
        all[number].frame = requests + number % frames * size;
        struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = &all[number]};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, all[number].socket, &wanted)) fail("epoll");
    }
    double began = now();
    for (size_t number = 0; number < connections; number++) send_request(&all[number], size);
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
                send_request(one, size);
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

/* How long a broker leaves a small request without an answer: `probe HOST PORT`, until its input ends.
 *
 * An ApiVersions request is due every millisecond, on one connection, the next when the one before is answered.
 * The time of each counts from when it was due, so that a stall counts for all that were due in it. Prints
 * one line of JSON: quantiles in ms. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define EVERY_S 0.001
#define ANSWERS_MAX 2000000
#define RESPONSE_MAX 65536

static const unsigned char request[] = {0, 0, 0, 15, 0, 18, 0, 0, 0, 0, 0, 1, 0, 5, 'p', 'r', 'o', 'b', 'e'};
/* Its length, ApiVersions (18) version 0, correlation id 1, client id "probe". */

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void receive(int connection, unsigned char *target, size_t size) {
    while (size) {
        ssize_t got = recv(connection, target, size, 0);
        if (got <= 0) fail("receive");
        target += got;
        size -= (size_t)got;
    }
}

static void ask(int connection) {
    static unsigned char response[RESPONSE_MAX];
    if (send(connection, request, sizeof request, 0) != sizeof request) fail("send");
    receive(connection, response, 4);
    size_t size = (size_t)response[0] << 24 | (size_t)response[1] << 16 | (size_t)response[2] << 8 | response[3];
    if (size > RESPONSE_MAX) fail("response");
    receive(connection, response, size);
}

static int ascending(const void *left, const void *right) {
    double difference = *(const double *)left - *(const double *)right;
    return (difference > 0) - (difference < 0);
}

static int is_over(void) {
    struct pollfd input = {STDIN_FILENO, POLLIN, 0};
    return poll(&input, 1, 0) != 0;
}

int main(int count, char **given) {
    if (count != 3) {
        fprintf(stderr, "probe HOST PORT\n");
        return 2;
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(given[2]))};
    if (inet_pton(AF_INET, given[1], &address.sin_addr) != 1) fail(given[1]);
    int connection = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    if (connect(connection, (struct sockaddr *)&address, sizeof address)) fail("connect");
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    double *times = calloc(ANSWERS_MAX, sizeof *times);
    size_t answers = 0;
    double due = now();
    while (answers < ANSWERS_MAX && !is_over()) {
        double left = due - now();
        if (left > 0) nanosleep(&(struct timespec){0, (long)(left * 1e9)}, NULL);
        ask(connection);
        times[answers++] = (now() - due) * 1e3;
        due += EVERY_S;
    }
    if (!answers) return 1;
    qsort(times, answers, sizeof *times, ascending);
    printf("{\"answers\": %zu, \"p50\": %.4f, \"p99\": %.4f, \"p999\": %.4f, \"max\": %.4f}\n", answers, times[answers / 2],
           times[answers * 99 / 100], times[answers * 999 / 1000], times[answers - 1]);
    return 0;
}

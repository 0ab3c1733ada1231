/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/distributed/process_group_socket.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    RETRY_MS = 50,
    UNKNOWN_MS = 20000, /* the name of a machine that has just started may not resolve yet */
    ATTEMPT_MS = 3000,  /* for each address of a host */
};

int64_t process_group_clock_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* A host name rather than a numeric address. */
static bool is_name(const char *address) { return *address != '[' && (*address < '0' || *address > '9'); }

/* The caller frees *found. On failure *patience_ms is how long later tries may still succeed; 0: they will not. */
static bool resolve(const char *address, struct addrinfo **found, int64_t *patience_ms, struct status *status)
{
    char host[256];
    const char *colon = strrchr(address, ':'), *begin = address, *end = colon;
    size_t digits = colon ? strspn(colon + 1, "0123456789") : 0;
    *patience_ms = 0;
    if (!digits || colon == address || digits > 5 || colon[1 + digits] || atoi(colon + 1) < 1 ||
        atoi(colon + 1) > UINT16_MAX)
        return status_fail(status, STATUS_USAGE,
                           "address '%s': expected HOST:PORT with a port from 1 to 65535, the same for all processes",
                           address);
    if (*begin == '[' && end[-1] == ']')
        begin++, end--;
    else if (memchr(begin, ':', (size_t)(end - begin)))
        return status_fail(status, STATUS_USAGE, "address '%s': write an IPv6 address as [ADDRESS]:PORT", address);
    if ((size_t)snprintf(host, sizeof host, "%.*s", (int)(end - begin), begin) >= sizeof host)
        return status_fail(status, STATUS_USAGE, "address '%s': expected a host name of at most 255 bytes", address);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    int error = getaddrinfo(host, colon + 1, &hints, found);
    if (error == EAI_AGAIN) *patience_ms = INT64_MAX;
    if (error == EAI_NONAME && is_name(address)) *patience_ms = UNKNOWN_MS;
    return !error || status_fail(status, STATUS_USAGE, "address '%s': %s: give a host that all processes can resolve",
                                 address, error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error));
}

/* -1 on failure, with errno. */
static int open_socket(const struct addrinfo *at, int option_level, int option)
{
    int one = 1, descriptor = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (descriptor < 0) return -1;
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (option) setsockopt(descriptor, option_level, option, &one, sizeof one);
    return descriptor;
}

static bool is_loopback(const struct addrinfo *at)
{
    if (at->ai_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)at->ai_addr;
        return ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    }
    if (at->ai_family != AF_INET6) return false;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)at->ai_addr)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == IN_LOOPBACKNET);
}

/* -1 on failure, with errno. */
static int listen_at(const struct addrinfo *at)
{
    /* Closed connections of an earlier run must not block the port. */
    int made = open_socket(at, SOL_SOCKET, SO_REUSEADDR);
    if (made < 0 || (!bind(made, at->ai_addr, at->ai_addrlen) && !listen(made, SOMAXCONN))) return made;
    int error = errno;
    close(made);
    errno = error;
    return -1;
}

bool process_group_socket_listen(const char *address, bool has_several_machines, int *descriptor, struct status *status)
{
    struct addrinfo *found;
    int64_t patience_ms;
    *descriptor = -1;
    if (!resolve(address, &found, &patience_ms, status)) return false;
    int error = 0;
    bool has_other = false;
    char host[NI_MAXHOST] = "?";
    /* Loopback addresses come second: Debian's /etc/hosts has one (127.0.1.1) for the machine's own name, often as its
     * only one. */
    for (int loopback = 0; loopback <= !has_several_machines; loopback++)
        for (struct addrinfo *at = found; at && *descriptor < 0; at = at->ai_next) {
            has_other |= !is_loopback(at);
            if (is_loopback(at) != loopback) continue;
            *descriptor = listen_at(at);
            error = errno;
        }
    getnameinfo(found->ai_addr, found->ai_addrlen, host, sizeof host, NULL, 0, NI_NUMERICHOST);
    freeaddrinfo(found);
    if (*descriptor >= 0) return true;
    if (has_several_machines && !has_other)
        return status_fail(
            status, STATUS_USAGE,
            "process 0 cannot listen at '%s' for processes of several machines: it resolves to %s, which "
            "only this machine reaches: set MASTER_ADDR (or the address) to the name or address of a "
            "network interface of this machine, or change the name's line in /etc/hosts",
            address, host);
    return status_fail_errno(status, STATUS_USAGE, error,
                             "process 0 cannot listen at '%s': give an address of this machine and a free port",
                             address);
}

/* A socket connected to itself: possible while no process listens and the system picks the same port as the local
 * one. */
static bool is_own(int descriptor)
{
    struct sockaddr_storage own = {0}, other = {0};
    socklen_t own_bytes = sizeof own, other_bytes = sizeof other;
    return !getsockname(descriptor, (struct sockaddr *)&own, &own_bytes) &&
           !getpeername(descriptor, (struct sockaddr *)&other, &other_bytes) && !memcmp(&own, &other, sizeof own);
}

/* -1 on failure, with errno. */
static int connect_once(const struct addrinfo *at)
{
    int error = 0, descriptor = open_socket(at, 0, 0);
    if (descriptor < 0) return -1;
    if (connect(descriptor, at->ai_addr, at->ai_addrlen)) error = errno;
    if (error == EINPROGRESS || error == EINTR) {
        struct pollfd polled = {descriptor, POLLOUT, 0};
        socklen_t bytes = sizeof error;
        int64_t until = process_group_clock_ms() + ATTEMPT_MS, left = ATTEMPT_MS;
        int ready;
        while ((ready = poll(&polled, 1, (int)left)) < 0 && (left = until - process_group_clock_ms()) > 0) continue;
        error = ETIMEDOUT;
        if (ready > 0) getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &bytes);
    }
    if (!error && is_own(descriptor)) {
        /* Reset, so that the port is free at once. */
        setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
        error = ECONNREFUSED;
    }
    if (!error) return descriptor;
    close(descriptor);
    errno = error;
    return -1;
}

bool process_group_socket_connect(const char *address, int64_t longest_ms, int *descriptor, struct status *status)
{
    const int64_t start = process_group_clock_ms(), until = start + longest_ms;
    struct status failure; /* of the last try */
    *descriptor = -1;
    for (;;) {
        struct addrinfo *found;
        int64_t patience_ms;
        if (resolve(address, &found, &patience_ms, &failure)) {
            for (const struct addrinfo *at = found; at && *descriptor < 0; at = at->ai_next)
                *descriptor = connect_once(at);
            int error = errno;
            freeaddrinfo(found);
            if (*descriptor >= 0) return true;
            status_fail_errno(
                &failure, STATUS_MACHINE, error,
                "cannot connect to process 0 at '%s' within %g s: check that it runs and that the address is its own",
                address, (double)longest_ms / 1000);
        } else if (process_group_clock_ms() - start >= patience_ms) {
            break;
        }
        if (process_group_clock_ms() >= until) break;
        poll(NULL, 0, RETRY_MS);
    }
    *status = failure;
    return false;
}

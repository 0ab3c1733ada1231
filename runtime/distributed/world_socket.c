/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/distributed/world_socket.h"

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
    UNKNOWN_MS = 20000, /* a cluster may not know yet of a machine that has just begun */
    ATTEMPT_MS = 3000,  /* for one address of several */
};

int64_t world_clock_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* A name, not the digits of an address. */
static bool is_name(const char *address) { return *address != '[' && (*address < '0' || *address > '9'); }

/* The caller frees *found. *patience_ms: where it failed, how long later tries may succeed; 0: they will not. */
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
        return status_fail(status, STATUS_USAGE, "address '%s': the name is too long for a host", address);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    int error = getaddrinfo(host, colon + 1, &hints, found);
    if (error == EAI_AGAIN) *patience_ms = INT64_MAX;
    if (error == EAI_NONAME && is_name(address)) *patience_ms = UNKNOWN_MS;
    return !error || status_fail(status, STATUS_USAGE, "address '%s': %s: name a host that all processes can resolve",
                                 address, error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error));
}

/* -1 with errno when there is none. */
static int open_socket(const struct addrinfo *at, int option_level, int option)
{
    int one = 1, descriptor = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (descriptor < 0) return -1;
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (option) setsockopt(descriptor, option_level, option, &one, sizeof one);
    return descriptor;
}

/* Only the machine itself reaches it. */
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

/* -1 with errno when it fails. */
static int listen_at(const struct addrinfo *at)
{
    /* Connections of an earlier run that the kernel still remembers do not keep the port. */
    int made = open_socket(at, SOL_SOCKET, SO_REUSEADDR);
    if (made < 0 || (!bind(made, at->ai_addr, at->ai_addrlen) && !listen(made, SOMAXCONN))) return made;
    int error = errno;
    close(made);
    errno = error;
    return -1;
}

bool world_socket_listen(const char *address, bool has_several_machines, int *descriptor, struct status *status)
{
    struct addrinfo *found;
    int64_t patience_ms;
    *descriptor = -1;
    if (!resolve(address, &found, &patience_ms, status)) return false;
    int error = 0;
    bool has_other = false;
    char host[NI_MAXHOST] = "?";
    /* Debian's /etc/hosts gives a machine's own name one that only the machine itself reaches: then there is no other. */
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
            "only this machine reaches: set MASTER_ADDR (or the address) to a name or number of a "
            "network interface of this machine, or change the name's line in /etc/hosts",
            address, host);
    return status_fail_errno(status, STATUS_USAGE, error,
                             "process 0 cannot listen at '%s': give an address of its machine and a free port",
                             address);
}

/* A port from which connections are made may, while nobody listens there, be connected to itself. */
static bool is_own(int descriptor)
{
    struct sockaddr_storage own = {0}, other = {0};
    socklen_t own_bytes = sizeof own, other_bytes = sizeof other;
    return !getsockname(descriptor, (struct sockaddr *)&own, &own_bytes) &&
           !getpeername(descriptor, (struct sockaddr *)&other, &other_bytes) && !memcmp(&own, &other, sizeof own);
}

/* -1 with errno when it fails. */
static int connect_once(const struct addrinfo *at)
{
    int error = 0, descriptor = open_socket(at, 0, 0);
    if (descriptor < 0) return -1;
    if (connect(descriptor, at->ai_addr, at->ai_addrlen)) error = errno;
    if (error == EINPROGRESS || error == EINTR) {
        struct pollfd polled = {descriptor, POLLOUT, 0};
        socklen_t bytes = sizeof error;
        int64_t until = world_clock_ms() + ATTEMPT_MS, left = ATTEMPT_MS;
        int ready;
        while ((ready = poll(&polled, 1, (int)left)) < 0 && (left = until - world_clock_ms()) > 0) continue;
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

bool world_socket_connect(const char *address, int64_t longest_ms, int *descriptor, struct status *status)
{
    const int64_t start = world_clock_ms(), until = start + longest_ms;
    struct status failure; /* of the last try: it is no failure of all */
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
            status_fail_errno(&failure, STATUS_MACHINE, error,
                              "cannot reach process 0 at '%s' within %g s: see whether it runs and the address is its",
                              address, (double)longest_ms / 1000);
        } else if (world_clock_ms() - start >= patience_ms) {
            break;
        }
        if (world_clock_ms() >= until) break;
        poll(NULL, 0, RETRY_MS);
    }
    *status = failure;
    return false;
}

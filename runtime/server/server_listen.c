/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 1024 };

static int open_socket(const struct addrinfo *info)
{
    const int on = 1;
    int descriptor = socket(info->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (descriptor < 0) return -1;
    /* A server that is started again need not wait for connections of the one before. */
    setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(descriptor, info->ai_addr, info->ai_addrlen) == 0 && listen(descriptor, BACKLOG) == 0) return descriptor;
    int number = errno;
    close(descriptor);
    errno = number;
    return -1;
}

static bool describe(struct server_address *address, struct status *status)
{
    struct sockaddr_storage bound;
    socklen_t size = sizeof bound;
    char name[INET6_ADDRSTRLEN] = "";
    if (getsockname(address->descriptor, (struct sockaddr *)&bound, &size) != 0)
        return status_fail_errno(status, STATUS_MACHINE, errno, "the address of a socket");
    if (bound.ss_family == AF_INET6) {
        const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)&bound;
        inet_ntop(AF_INET6, &six->sin6_addr, name, sizeof name);
        address->is_loopback = IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
        snprintf(address->url, sizeof address->url, "http://[%s]:%u", name, (unsigned)ntohs(six->sin6_port));
    } else {
        const struct sockaddr_in *four = (const struct sockaddr_in *)&bound;
        inet_ntop(AF_INET, &four->sin_addr, name, sizeof name);
        address->is_loopback = ntohl(four->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
        snprintf(address->url, sizeof address->url, "http://%s:%u", name, (unsigned)ntohs(four->sin_port));
    }
    return true;
}

bool server_listen(const char *host, unsigned port, struct server_address *address, struct status *status)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC,
                                   .ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char service[16];
    snprintf(service, sizeof service, "%u", port);
    int failure = getaddrinfo(host, service, &hints, &found);
    if (failure)
        return status_fail(status, STATUS_MACHINE, "--host %s: expected a name or address of this machine: %s", host,
                           gai_strerror(failure));
    address->descriptor = -1;
    for (const struct addrinfo *info = found; info && address->descriptor < 0; info = info->ai_next)
        address->descriptor = open_socket(info);
    int number = errno;
    freeaddrinfo(found);
    if (address->descriptor < 0)
        return status_fail_errno(status, STATUS_MACHINE, number, "cannot listen at %s, port %u%s", host, port,
                                 number == EADDRINUSE ? " (another program does; choose another --port)" : "");
    if (describe(address, status)) return true;
    close(address->descriptor);
    return false;
}

bool server_allow_descriptors(unsigned long descriptors, struct status *status)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return status_fail_errno(status, STATUS_MACHINE, errno, "the limit of open files");
    if (limit.rlim_cur >= descriptors) return true;
    if (limit.rlim_max < descriptors)
        return status_fail(status, STATUS_MACHINE,
                           "--max-connections needs %lu open files, and this process may have %lu; raise the limit "
                           "(ulimit -n) or lower --max-connections",
                           descriptors, (unsigned long)limit.rlim_max);
    limit.rlim_cur = descriptors;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0 ||
           status_fail_errno(status, STATUS_MACHINE, errno, "the limit of open files cannot be raised to %lu",
                             descriptors);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Where process 0 listens, for each thing that a host's name may resolve to. */
#include "runtime/distributed/process_group_socket.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

/* ---- a resolver that knows one more host ---- */

enum { MOST_ADDRESSES = 4 };

static const char *resolved[MOST_ADDRESSES + 1]; /* what machine.test resolves to, in this order */

static struct sockaddr_storage addresses[MOST_ADDRESSES];
static struct addrinfo infos[MOST_ADDRESSES];

int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (!host || strcmp(host, "machine.test") != 0) return real(host, port, hints, found);
    memset(infos, 0, sizeof infos);
    memset(addresses, 0, sizeof addresses);
    for (int i = 0; resolved[i]; i++) {
        struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)&addresses[i];
        struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)&addresses[i];
        bool is_v6 = strchr(resolved[i], ':');
        if (is_v6) {
            v6->sin6_family = AF_INET6;
            v6->sin6_port = htons((uint16_t)atoi(port));
            assert_int_equal(inet_pton(AF_INET6, resolved[i], &v6->sin6_addr), 1);
        } else {
            v4->sin_family = AF_INET;
            v4->sin_port = htons((uint16_t)atoi(port));
            assert_int_equal(inet_pton(AF_INET, resolved[i], &v4->sin_addr), 1);
        }
        infos[i] = (struct addrinfo){.ai_family = is_v6 ? AF_INET6 : AF_INET,
                                     .ai_socktype = SOCK_STREAM,
                                     .ai_addr = (struct sockaddr *)&addresses[i],
                                     .ai_addrlen = is_v6 ? sizeof *v6 : sizeof *v4,
                                     .ai_next = resolved[i + 1] ? &infos[i + 1] : NULL};
    }
    *found = infos;
    return 0;
}

void freeaddrinfo(struct addrinfo *found)
{
    void (*real)(struct addrinfo *) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "freeaddrinfo");
    if (found != infos) real(found);
}

#define RESOLVES_TO(...) memcpy(resolved, (const char * [MOST_ADDRESSES + 1]){__VA_ARGS__}, sizeof resolved)

/* ---- where it listens ---- */

static char interface[INET_ADDRSTRLEN]; /* an address of this machine that others may reach; empty: it has none */

static int find_interface(void **state)
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all)) return -1;
    for (struct ifaddrs *one = all; one && !*interface; one = one->ifa_next)
        if (one->ifa_addr && one->ifa_addr->sa_family == AF_INET && !(one->ifa_flags & IFF_LOOPBACK) &&
            one->ifa_flags & IFF_UP)
            inet_ntop(AF_INET, &((struct sockaddr_in *)(void *)one->ifa_addr)->sin_addr, interface, sizeof interface);
    freeifaddrs(all);
    return 0;
}

static int free_port(void)
{
    struct sockaddr_in any = {.sin_family = AF_INET};
    socklen_t bytes = sizeof any;
    int descriptor = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(descriptor, (struct sockaddr *)&any, sizeof any), 0);
    assert_int_equal(getsockname(descriptor, (struct sockaddr *)&any, &bytes), 0);
    close(descriptor);
    return ntohs(any.sin_port);
}

static void expect_listener(const char *host, bool has_several_machines, const char *expected)
{
    char address[64], found[INET_ADDRSTRLEN];
    struct status status;
    struct sockaddr_in own = {0};
    socklen_t bytes = sizeof own;
    int descriptor;
    snprintf(address, sizeof address, "%s:%d", host, free_port());
    if (!process_group_socket_listen(address, has_several_machines, &descriptor, &status))
        fail_msg("%s", status.message);
    assert_int_equal(getsockname(descriptor, (struct sockaddr *)&own, &bytes), 0);
    assert_int_equal(own.sin_family, AF_INET);
    inet_ntop(AF_INET, &own.sin_addr, found, sizeof found);
    assert_string_equal(found, expected);
    close(descriptor);
}

static void expect_refusal(const char *host, const char *words)
{
    char address[64];
    struct status status = {0};
    int descriptor;
    snprintf(address, sizeof address, "%s:%d", host, free_port());
    test_expect_failure(process_group_socket_listen(address, true, &descriptor, &status), &status, STATUS_USAGE, words);
    assert_int_equal(descriptor, -1);
}

/* As Debian has a machine's own name in /etc/hosts. */
TEST(a_name_of_this_machine_alone)
{
    RESOLVES_TO("127.0.1.1");
    expect_listener("machine.test", false, "127.0.1.1");
    RESOLVES_TO("127.0.0.1");
    expect_listener("machine.test", false, "127.0.0.1");
}

TEST(other_machines_must_reach_it)
{
    static const char words[] =
        "resolves to 127.0.1.1|only this machine reaches|several machines|MASTER_ADDR|/etc/hosts";
    RESOLVES_TO("127.0.1.1");
    expect_refusal("machine.test", words);
    RESOLVES_TO("127.0.1.1", "::1");
    expect_refusal("machine.test", words);
    RESOLVES_TO("::ffff:127.0.0.1");
    expect_refusal("machine.test", "only this machine reaches");
    expect_refusal("localhost", "only this machine reaches|MASTER_ADDR");
    expect_refusal("127.0.0.1", "only this machine reaches|MASTER_ADDR");
}

TEST(what_others_reach_comes_first)
{
    if (!*interface) skip();
    RESOLVES_TO("127.0.1.1", interface);
    expect_listener("machine.test", false, interface);
    expect_listener("machine.test", true, interface);
    RESOLVES_TO(interface);
    expect_listener("machine.test", true, interface);
    expect_listener(interface, true, interface);
}

/* An address of documentation that no machine has. */
TEST(an_address_of_another_machine)
{
    RESOLVES_TO("203.0.113.1");
    expect_refusal("machine.test", "cannot listen at 'machine.test:|address of this machine");
    RESOLVES_TO("203.0.113.1", "127.0.1.1");
    expect_listener("machine.test", false, "127.0.1.1");
    expect_refusal("machine.test", "cannot listen at 'machine.test:");
}

/* Who asks for all interfaces gets them. */
TEST(all_interfaces_when_asked_for)
{
    expect_listener("0.0.0.0", false, "0.0.0.0");
    expect_listener("0.0.0.0", true, "0.0.0.0");
}

int main(void) { return test_run_with(find_interface, NULL, NULL, NULL); }

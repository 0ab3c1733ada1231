/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_thread.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void stop_listening(struct server_thread *thread)
{
    if (!thread->is_listening) return;
    thread->is_listening = false;
    close(MHD_quiesce_daemon(thread->daemon));
}

static int milliseconds_to_wait(struct server_thread *thread)
{
    MHD_UNSIGNED_LONG_LONG wait = 0;
    if (thread->has_room) return 0;
    if (MHD_get_timeout(thread->daemon, &wait) != MHD_YES) return -1;
    return wait < INT_MAX ? (int)wait : INT_MAX;
}

static void wait_for_release(struct server_thread *thread)
{
    struct pollfd entry = {.fd = thread->wakes, .events = POLLIN};
    eventfd_t count;
    while (!atomic_load(&thread->released) && !atomic_load(&thread->stopping)) {
        poll(&entry, 1, -1);
        eventfd_read(thread->wakes, &count);
    }
}

static void *run(void *context)
{
    struct server_thread *thread = context;
    wait_for_release(thread);
    const int events = MHD_get_daemon_info(thread->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    struct pollfd entries[] = {{.fd = events, .events = POLLIN}, {.fd = thread->wakes, .events = POLLIN}};
    eventfd_t count;
    while (!atomic_load(&thread->stopping)) {
        if (atomic_load(&thread->draining)) stop_listening(thread);
        poll(entries, 2, milliseconds_to_wait(thread));
        /* Before the daemon runs: it sees all that was resumed before a wake that is taken here. */
        eventfd_read(thread->wakes, &count);
        thread->has_room = false;
        MHD_run(thread->daemon);
    }
    return NULL;
}

bool server_thread_start(struct server_thread *thread, struct MHD_Daemon *daemon, struct status *status)
{
    thread->daemon = daemon;
    thread->is_listening = true;
    thread->wakes = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    thread->has_wakes = thread->wakes >= 0;
    if (!thread->has_wakes)
        return status_fail_errno(status, STATUS_MACHINE, errno, "the system refuses an event descriptor");
    const int failure = pthread_create(&thread->thread, NULL, run, thread);
    thread->has_thread = !failure;
    return !failure || status_fail_errno(status, STATUS_MACHINE, failure, "the system refuses a thread");
}

void server_thread_wake(struct server_thread *thread) { eventfd_write(thread->wakes, 1); }

void server_thread_release(struct server_thread *thread)
{
    atomic_store(&thread->released, true);
    server_thread_wake(thread);
}

void server_thread_drain(struct server_thread *thread)
{
    atomic_store(&thread->draining, true);
    server_thread_wake(thread);
}

void server_thread_stop(struct server_thread *thread)
{
    if (!thread->daemon) return;
    atomic_store(&thread->stopping, true);
    if (thread->has_thread) {
        server_thread_wake(thread);
        pthread_join(thread->thread, NULL);
    }
    MHD_stop_daemon(thread->daemon);
    if (thread->has_wakes) close(thread->wakes);
}

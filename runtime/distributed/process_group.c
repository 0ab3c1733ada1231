/* SPDX-License-Identifier: Apache-2.0 */
/* One lock guards everything. The monitor thread holds it except while it polls. Sockets never block, so any thread
 * with the lock may use them: urgent frames are sent at once, the others in the monitor's next round.
 *
 * There are no queues. What a peer must still be sent follows from bits (peer.due) and from how many gathers' parts it
 * was sent; payloads stay in place until they have been sent. A part of gather n + 2 overwrites one of gather n. It is
 * accepted only after all parts of n + 1 have arrived, and the sender of each of those had received all of n. */
#include "runtime/distributed/process_group.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "runtime/distributed/process_group_state.h"
#include "runtime/distributed/process_group_socket.h"

/* ---- out ---- */

static bool take_due(struct peer *peer, enum frame_type type)
{
    bool is_due = peer->due & 1u << type;
    peer->due &= ~(1u << type);
    return is_due;
}

/* The process whose part this peer is sent next; group->processes: none. Process 0 forwards the parts of the others:
 * all parts of one gather before any of the next, which receivers require. */
static uint32_t find_part(const struct process_group *group, const struct peer *peer)
{
    uint32_t index = (uint32_t)(peer - group->peers), found = group->processes;
    if (!group->is_joined || index >= group->processes) return found;
    for (uint32_t p = 0; p < group->processes; p++) {
        bool is_its = group->process ? p == group->process : p != index;
        if (!is_its || peer->sent[p] >= group->received[p]) continue;
        if (found == group->processes || peer->sent[p] < peer->sent[found]) found = p;
    }
    return found;
}

/* Fills peer->out with the next frame to send; FRAME_BYE comes last. False: nothing to send. */
static bool compose(struct process_group *group, struct peer *peer)
{
    const struct notes *notes = &group->notes[group->process];
    struct frame *out = &peer->out;
    uint32_t part = find_part(group, peer);
    *out = (struct frame){.magic = MAGIC, .version = PROTOCOL_VERSION, .process = group->process};
    if (peer->was_told_bye) return false;
    if (take_due(peer, FRAME_CHALLENGE)) {
        out->type = FRAME_CHALLENGE;
        out->bytes = PROCESS_GROUP_NONCE_BYTES;
        peer->out_data = peer->nonces.of_first;
    } else if (take_due(peer, FRAME_PROOF)) {
        out->type = FRAME_PROOF;
        out->bytes = group->process ? sizeof peer->answer : PROCESS_GROUP_PROOF_BYTES;
        peer->out_data = peer->answer;
    } else if (take_due(peer, FRAME_HELLO)) {
        struct hello hello;
        process_group_admit_make_hello(group, &hello);
        *out = hello.frame;
        peer->out_data = group->name;
    } else if (take_due(peer, FRAME_FAIL)) {
        const char *message = peer->is_refused ? peer->text : group->failure.message;
        out->type = FRAME_FAIL;
        out->bytes = (uint32_t)strlen(message);
        out->number = peer->is_refused ? peer->refusal_code : group->failure.code;
        peer->out_data = message;
    } else if (part < group->processes) {
        out->type = FRAME_PART;
        out->process = part;
        out->number = peer->sent[part]++;
        out->bytes = group->part_bytes[out->number % 2][part];
        peer->out_data = group->parts[out->number % 2][part];
    } else if (peer->due) {
        out->type = take_due(peer, FRAME_BEAT) ? FRAME_BEAT : FRAME_BYE;
        if (out->type == FRAME_BYE) peer->due = 0;
        const struct note *newest = &notes->ring[(notes->count - 1) % NOTES];
        out->number = notes->count ? newest->step : NO_STEP;
        out->value = notes->count ? newest->digest : 0;
    } else {
        return false;
    }
    peer->out_left = sizeof *out + out->bytes;
    return true;
}

/* Sends until nothing is due or the socket is full. */
static void send_due(struct process_group *group, struct peer *peer)
{
    while (peer->descriptor >= 0 && (peer->out_left || compose(group, peer))) {
        size_t of_data = peer->out_left < peer->out.bytes ? peer->out_left : peer->out.bytes;
        size_t of_frame = peer->out_left - of_data;
        struct iovec vectors[2] = {
            {(uint8_t *)&peer->out + sizeof peer->out - of_frame, of_frame},
            {of_data ? (uint8_t *)(uintptr_t)peer->out_data + peer->out.bytes - of_data : NULL, of_data},
        };
        struct msghdr message = {.msg_iov = vectors, .msg_iovlen = 2};
        ssize_t sent = sendmsg(peer->descriptor, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (sent < 0) {
            /* Frames that the peer sent earlier, such as the reason of its failure, are still read before the end. */
            shutdown(peer->descriptor, SHUT_RDWR);
            peer->was_told_bye = true;
            peer->out_left = 0;
            return;
        }
        peer->out_left -= (size_t)sent;
        if (!peer->out_left && (peer->out.type == FRAME_BYE || peer->is_refused)) {
            /* Not close(): with unread input, it would reset the connection and lose data in flight. */
            shutdown(peer->descriptor, SHUT_WR);
            peer->was_told_bye = true;
        }
    }
}

static void send_all(struct process_group *group)
{
    for (uint32_t i = 0; i < MOST_PEERS; i++) send_due(group, &group->peers[i]);
}

/* ---- in ---- */

static void take_note(struct process_group *group, uint32_t process, uint64_t step, uint64_t digest)
{
    struct notes *notes = &group->notes[process];
    if (step % PROCESS_GROUP_NOTE_STEPS || (notes->count && step <= notes->ring[(notes->count - 1) % NOTES].step))
        return;
    notes->ring[notes->count++ % NOTES] = (struct note){step, digest};
    if (group->process) return;
    for (uint32_t p = process ? process : 1; p < (process ? process + 1 : group->processes); p++) {
        const struct notes *others = &group->notes[process ? 0 : p];
        for (uint64_t i = 0; i < NOTES && i < others->count; i++)
            if (others->ring[i].step == step && others->ring[i].digest != digest)
                process_group_set_failed(group, STATUS_USAGE,
                                         "process %" PRIu32 " was given other inputs than process 0 (step %" PRIu64
                                         "): make the same calls in all processes",
                                         p, step);
    }
}

/* Gathers of which all parts have arrived. Only parts of the next one are accepted. */
static uint64_t gathers_completed(const struct process_group *group)
{
    uint64_t least = group->received[0];
    for (uint32_t p = 1; p < group->processes; p++)
        if (group->received[p] < least) least = group->received[p];
    return least;
}

/* Whether a known peer may send the frame whose header has just arrived. Called before its data is read. */
static bool is_expected(const struct process_group *group, const struct peer *peer)
{
    const struct frame *in = &peer->in;
    uint32_t index = (uint32_t)(peer - group->peers);
    if (in->magic != MAGIC) return false;
    if (group->process && !group->is_joined && !process_group_admit_expects_of_first(group, peer)) return false;
    if (in->type == FRAME_HELLO || in->type == FRAME_CHALLENGE || in->type == FRAME_PROOF)
        return group->process && !group->is_joined;
    if (in->type == FRAME_FAIL) return in->bytes < STATUS_MESSAGE_BYTES;
    if (in->version != PROTOCOL_VERSION) return false;
    if (in->type != FRAME_PART) return (in->type == FRAME_BEAT || in->type == FRAME_BYE) && !in->bytes;
    return group->is_joined && in->process < group->processes && in->bytes <= PROCESS_GROUP_GATHER_BYTES &&
           (group->process ? in->process != group->process : in->process == index) &&
           in->number == group->received[in->process] && in->number == gathers_completed(group);
}

static void handle(struct process_group *group, struct peer *peer)
{
    const struct frame *in = &peer->in;
    uint32_t index = (uint32_t)(peer - group->peers);
    if (!peer->is_known) {
        process_group_admit_take(group, peer);
        return;
    }
    if (in->type != FRAME_FAIL) group->is_admitted = true;
    switch ((enum frame_type)in->type) {
    case FRAME_HELLO: group->is_joined = true; break;
    case FRAME_CHALLENGE:
    case FRAME_PROOF: process_group_admit_take_of_first(group, peer); break;
    case FRAME_FAIL:
        process_group_set_failed(group,
                                 in->number > STATUS_OK && in->number <= STATUS_CANCELLED ? (enum status_code)in->number
                                                                                          : STATUS_MACHINE,
                                 "%.*s", (int)in->bytes, peer->text);
        break;
    case FRAME_PART:
        group->part_bytes[in->number % 2][in->process] = in->bytes;
        group->received[in->process]++;
        pthread_cond_broadcast(&group->changed);
        break;
    case FRAME_BEAT:
    case FRAME_BYE:
        if (index < group->processes) take_note(group, index, in->number, in->value);
        if (in->type == FRAME_BEAT) break;
        peer->has_left = true;
        process_group_close_peer(peer);
    }
}

/* The connection was closed; error: errno of recv, or 0. */
static void lose(struct process_group *group, struct peer *peer, int error)
{
    if (!peer->is_known) {
        process_group_admit_send_away(group, peer, "closed the connection without a hello");
        return;
    }
    process_group_close_peer(peer);
    if (group->is_leaving) return;
    if (group->process && !group->is_admitted) {
        group->unanswered++; /* process 0 may have had no free place: meet() connects again */
        return;
    }
    bool has_ended = !error || error == ECONNRESET || error == EPIPE;
    process_group_set_failed(group, STATUS_MACHINE, "process %d (%s) stopped responding: %s",
                             (int)(peer - group->peers), peer->name,
                             !has_ended         ? strerror(error)
                             : group->is_joined ? "its process has ended; see its own output for the cause"
                                                : "it closed the connection before all processes had joined");
}

/* A known peer sent a frame that the protocol does not allow now. */
static void fail_unexpected(struct process_group *group, const struct peer *peer)
{
    if (!group->process || group->is_joined)
        process_group_set_failed(group, STATUS_INTERNAL,
                                 "process %d (%s) sent an unexpected message (frame type %" PRIu32
                                 "): run the same release of eng in all processes",
                                 (int)(peer - group->peers), peer->name, peer->in.type);
    else if (peer->in.magic == MAGIC && process_group_has_token(group) && !peer->is_proven)
        process_group_set_failed(group, STATUS_USAGE,
                                 "process 0 (%s) did not prove that it has the job token of process %" PRIu32
                                 ": give all processes the same token (ENG_JOB_TOKEN), and check that the address is "
                                 "that of process 0",
                                 peer->name, group->process);
    else
        process_group_set_failed(
            group, STATUS_USAGE,
            "process 0 (%s): the program that answers there is not process 0 of this job: check whether "
            "another program uses this address",
            peer->name);
}

static void receive(struct process_group *group, struct peer *peer, int64_t now)
{
    uint8_t unread[STATUS_MESSAGE_BYTES];
    for (int i = 0; i < MOST_RECEIVES && peer->descriptor >= 0; i++) {
        struct frame *in = &peer->in;
        uint8_t *to = (uint8_t *)in + peer->in_bytes;
        size_t wanted = sizeof *in - peer->in_bytes;
        if (peer->in_bytes >= sizeof *in) {
            size_t have = peer->in_bytes - sizeof *in;
            to = in->type == FRAME_PART ? group->parts[in->number % 2][in->process] : (uint8_t *)peer->text;
            to += have;
            wanted = in->bytes - have;
        }
        if (peer->is_refused) {
            to = unread;
            wanted = sizeof unread;
        }
        ssize_t got = recv(peer->descriptor, to, wanted, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (got <= 0) {
            lose(group, peer, got ? errno : 0);
            return;
        }
        if (peer->is_refused) continue;
        if (peer->is_known) peer->heard_ms = now;
        peer->in_bytes += (size_t)got;
        if (peer->in_bytes == sizeof *in && !peer->is_known && !process_group_admit_expects(group, peer)) return;
        if (peer->in_bytes == sizeof *in && peer->is_known && !is_expected(group, peer)) {
            fail_unexpected(group, peer);
            process_group_close_peer(peer);
            return;
        }
        if (peer->in_bytes < sizeof *in || peer->in_bytes < sizeof *in + in->bytes) continue;
        peer->in_bytes = 0;
        handle(group, peer);
    }
}

/* ---- rounds ---- */

/* Failures that show as the absence of data: silent peers, and gathers of a process that has left. */
static void watch(struct process_group *group, int64_t now)
{
    for (uint32_t p = 0; p < MOST_PEERS; p++) {
        struct peer *peer = &group->peers[p];
        for (uint32_t q = 0; q < group->processes && peer->has_left; q++)
            if (p < group->processes && group->received[q] > group->received[p] && !group->is_leaving)
                process_group_set_failed(group, STATUS_MACHINE,
                                         "process %" PRIu32 " (%s) closed the engine while process %" PRIu32
                                         " waits for it: make the same calls in all processes",
                                         p, peer->name, q);
        if (peer->descriptor < 0 || now - peer->heard_ms < SILENCE_MS) continue;
        if (!peer->is_known)
            process_group_admit_send_away(group, peer,
                                          peer->is_asked ? "did not prove within 5 s that it has the job token"
                                                         : "sent no whole hello within 5 s");
        else if (!group->is_leaving) /* stays connected: if it runs again, it receives the failure */
            process_group_set_failed(group, STATUS_MACHINE,
                                     "process %" PRIu32 " (%s) stopped responding: nothing received for %d s", p,
                                     peer->name, SILENCE_MS / 1000);
    }
}

/* Requires: the lock is held. It is released while polling. */
static void run_round(struct process_group *group, int64_t until_ms)
{
    struct pollfd polls[2 + MOST_PEERS] = {{group->waker, POLLIN, 0}, {group->listener, POLLIN, 0}};
    for (uint32_t i = 0; i < MOST_PEERS; i++) {
        const struct peer *peer = &group->peers[i];
        polls[2 + i] = (struct pollfd){peer->descriptor, (short)(peer->out_left ? POLLIN | POLLOUT : POLLIN), 0};
    }
    int64_t wait_ms = (until_ms < group->beat_ms ? until_ms : group->beat_ms) - process_group_clock_ms();
    pthread_mutex_unlock(&group->lock);
    poll(polls, 2 + MOST_PEERS, wait_ms > 0 ? (int)wait_ms : 0);
    pthread_mutex_lock(&group->lock);

    int64_t now = process_group_clock_ms();
    eventfd_t wakes;
    eventfd_read(group->waker, &wakes);
    if (group->listener >= 0) process_group_admit_accept(group, now);
    /* This process itself did not run (launchers may stop all processes): silence meanwhile says nothing about the
     * peers. */
    for (uint32_t i = 0; i < MOST_PEERS && now - group->round_ms > STOPPED_MS; i++) group->peers[i].heard_ms = now;
    group->round_ms = now;
    /* From all, whatever poll said: the process may have been stopped since, and data that arrived shows that its
     * sender runs. */
    for (uint32_t i = 0; i < MOST_PEERS; i++) receive(group, &group->peers[i], now);
    watch(group, now);
    if (now >= group->beat_ms) {
        /* Before it is admitted, a process sends only its hello and its proof. */
        if (!group->process || group->is_admitted) process_group_add_due(group, FRAME_BEAT);
        group->beat_ms = now + BEAT_MS;
    }
    send_all(group);
}

static bool has_left(const struct process_group *group)
{
    if (!group->is_leaving) return false;
    if (process_group_clock_ms() >= group->leave_ms) return true;
    for (uint32_t i = 0; i < MOST_PEERS; i++)
        if ((group->peers[i].is_known || group->peers[i].is_refused) && group->peers[i].descriptor >= 0) return false;
    return true;
}

static void *run_monitor(void *argument)
{
    struct process_group *group = argument;
    pthread_mutex_lock(&group->lock);
    while (!has_left(group)) run_round(group, group->is_leaving ? group->leave_ms : INT64_MAX);
    pthread_mutex_unlock(&group->lock);
    return NULL;
}

/* The thread blocks all signals: they are for the program's own threads. */
static bool start_monitor(struct process_group *group, struct status *status)
{
    sigset_t all, previous;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &previous);
    int error = pthread_create(&group->monitor, NULL, run_monitor, group);
    pthread_sigmask(SIG_SETMASK, &previous, NULL);
    group->has_monitor = !error;
    return !error || status_fail_errno(status, STATUS_MACHINE, error, "cannot start a thread");
}

/* ---- the interface ---- */

static bool check_options(const struct process_group_options *options, struct status *status)
{
    if (options->processes < 2 || options->processes > PROCESS_GROUP_MOST_PROCESSES ||
        options->process >= options->processes)
        return status_fail(status, STATUS_USAGE,
                           "process %" PRIu32 " of %" PRIu32 ": expected 2 to %d processes, numbered from 0",
                           options->process, options->processes, (int)PROCESS_GROUP_MOST_PROCESSES);
    const double seconds[] = {options->longest_seconds, options->gather_seconds};
    for (int i = 0; i < 2; i++)
        if (!(seconds[i] > 0 && seconds[i] <= 1e6))
            return status_fail(status, STATUS_USAGE,
                               "waiting time: expected more than 0 and at most 1000000 s, found %g s", seconds[i]);
    if (options->token && strlen(options->token) >= PROCESS_GROUP_TOKEN_BYTES)
        return status_fail(status, STATUS_USAGE, "job token: expected at most %d bytes, found %zu",
                           (int)PROCESS_GROUP_TOKEN_BYTES - 1, strlen(options->token));
    return options->address ||
           status_fail(status, STATUS_USAGE, "address of process 0: expected HOST:PORT, found none");
}

static struct process_group *create_group(const struct process_group_options *options, struct status *status)
{
    struct process_group *group = calloc(1, sizeof *group);
    int waker = group ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
    if (waker < 0) {
        status_fail_errno(status, STATUS_MACHINE, errno, "cannot allocate memory for a group of %" PRIu32 " processes",
                          options->processes);
        free(group);
        return NULL;
    }
    group->process = options->process;
    group->processes = options->processes;
    group->fingerprint = options->fingerprint;
    if (options->token) memcpy(group->token, options->token, strlen(options->token) + 1);
    group->longest_ms = (int64_t)(options->longest_seconds * 1000) + 1;
    group->gather_ms = (int64_t)(options->gather_seconds * 1000) + 1;
    group->waker = waker;
    group->listener = -1;
    for (uint32_t i = 0; i < MOST_PEERS; i++) group->peers[i].descriptor = -1;
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    struct status name; /* printable, for messages */
    status_fail(&name, STATUS_OK, "%s, pid %d", host, (int)getpid());
    snprintf(group->name, sizeof group->name, "%.*s", NAME_BYTES - 1, name.message);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&group->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&group->lock, NULL);
    atomic_init(&group->has_failed, false);
    return group;
}

/* Connects to process 0. Requires: this is another process. */
static bool reach_first(struct process_group *group, const char *address, int64_t longest_ms, struct status *status)
{
    struct peer *peer = &group->peers[0];
    *peer = (struct peer){.descriptor = -1};
    if (!process_group_socket_connect(address, longest_ms, &peer->descriptor, status)) return false;
    peer->is_known = true;
    peer->heard_ms = process_group_clock_ms();
    peer->due = 1u << FRAME_HELLO;
    snprintf(peer->name, sizeof peer->name, "%s", address);
    return true;
}

/* Process 0 names the processes that are missing; the others know only whether process 0 has answered. */
static void fail_to_meet(struct process_group *group, const char *address)
{
    char missing[6 * PROCESS_GROUP_MOST_PROCESSES] = "", refused[STATUS_MESSAGE_BYTES];
    double seconds = (double)(group->longest_ms - 1) / 1000;
    process_group_admit_describe(group, refused, sizeof refused);
    for (uint32_t p = 1, used = 0; p < group->processes && !group->process; p++)
        if (!group->peers[p].is_known)
            used += (uint32_t)snprintf(missing + used, sizeof missing - used, "%s%" PRIu32, used ? ", " : " ", p);
    if (group->unanswered && !group->is_admitted)
        process_group_set_failed(group, STATUS_MACHINE,
                                 "process 0 at '%s' did not answer within %g s: it closed %" PRIu32
                                 " connections: check that it still runs and that no other program uses this address",
                                 address, seconds, group->unanswered);
    else
        process_group_set_failed(
            group, STATUS_MACHINE,
            "process%s of %" PRIu32
            " did not connect to '%s' within %g s: check that all run and can reach this address%s",
            group->process ? "es" : missing, group->processes, address, seconds, refused);
}

/* Connects again after process 0 closed the connection without a reason. */
static void connect_again(struct process_group *group, const char *address, int64_t until)
{
    struct status status;
    int64_t left_ms = until - process_group_clock_ms() - AGAIN_MS;
    poll(NULL, 0, AGAIN_MS);
    if (!reach_first(group, address, left_ms > 0 ? left_ms : 0, &status)) fail_to_meet(group, address);
}

/* Runs until all processes have joined or one has failed. Requires: no other thread uses the group yet. */
static void meet(struct process_group *group, const char *address)
{
    /* The others wait longer, so that process 0 can tell them who is missing. */
    int64_t until = process_group_clock_ms() + group->longest_ms + (group->process ? LEAVE_MS : 0);
    pthread_mutex_lock(&group->lock);
    while (!group->is_joined && !atomic_load(&group->has_failed) && process_group_clock_ms() < until) {
        if (group->process && group->peers[0].descriptor < 0)
            connect_again(group, address, until);
        else
            run_round(group, until);
    }
    if (!group->is_joined) fail_to_meet(group, address);
    if (group->listener >= 0) close(group->listener);
    group->listener = -1;
    for (uint32_t i = 0; i < MOST_PEERS; i++) {
        struct peer *peer = &group->peers[i];
        if (peer->descriptor >= 0 && !peer->is_known && !peer->is_refused) process_group_close_peer(peer);
    }
    pthread_mutex_unlock(&group->lock);
}

struct process_group *process_group_join(const struct process_group_options *options, struct status *status)
{
    char names[PROCESS_GROUP_MOST_PROCESSES][NAME_BYTES];
    if (!check_options(options, status)) return NULL;
    struct process_group *group = create_group(options, status);
    if (!group) return NULL;
    bool ok = options->process ? reach_first(group, options->address, group->longest_ms, status)
                               : process_group_socket_listen(options->address, options->has_several_machines,
                                                             &group->listener, status);
    if (ok) {
        meet(group, options->address);
        /* All names, for messages. */
        ok = process_group_ok(group, status) && start_monitor(group, status) &&
             process_group_gather(group, group->name, NAME_BYTES, names, status);
    }
    if (!ok) {
        process_group_leave(&group);
        return NULL;
    }
    pthread_mutex_lock(&group->lock);
    for (uint32_t p = 0; p < group->processes; p++)
        snprintf(group->peers[p].name, NAME_BYTES, "%.*s", NAME_BYTES - 1, names[p]);
    pthread_mutex_unlock(&group->lock);
    return group;
}

bool process_group_gather(struct process_group *group, const void *mine, size_t bytes, void *all, struct status *status)
{
    if (bytes > PROCESS_GROUP_GATHER_BYTES)
        return status_fail(status, STATUS_USAGE, "gather of %zu bytes from each process: expected at most %d", bytes,
                           (int)PROCESS_GROUP_GATHER_BYTES);
    int64_t until = process_group_clock_ms() + group->gather_ms;
    struct timespec time = {.tv_sec = until / 1000, .tv_nsec = until % 1000 * 1000000};
    pthread_mutex_lock(&group->lock);
    uint64_t number = group->received[group->process];
    if (!atomic_load(&group->has_failed)) {
        if (bytes) memcpy(group->parts[number % 2][group->process], mine, bytes);
        group->part_bytes[number % 2][group->process] = (uint32_t)bytes;
        group->received[group->process]++;
        send_all(group);
        eventfd_write(group->waker, 1);
    }
    bool in_time = true;
    while (!atomic_load(&group->has_failed) && gathers_completed(group) <= number && in_time)
        in_time = pthread_cond_timedwait(&group->changed, &group->lock, &time) != ETIMEDOUT;
    for (uint32_t p = 0; p < group->processes; p++) {
        uint32_t found = group->part_bytes[number % 2][p];
        if (group->received[p] <= number)
            process_group_set_failed(group, STATUS_MACHINE, "process %" PRIu32 " (%s) did not answer within %g s", p,
                                     group->peers[p].name, (double)group->gather_ms / 1000);
        else if (found != bytes)
            process_group_set_failed(group, STATUS_INTERNAL,
                                     "process %" PRIu32 " (%s) sent %" PRIu32
                                     " bytes, expected %zu as from process %" PRIu32
                                     ": make the same calls in all processes",
                                     p, group->peers[p].name, found, bytes, group->process);
        else if (bytes && !atomic_load(&group->has_failed))
            memcpy((uint8_t *)all + p * bytes, group->parts[number % 2][p], bytes);
    }
    pthread_mutex_unlock(&group->lock);
    return process_group_ok(group, status);
}

void process_group_fail(struct process_group *group, const char *message)
{
    pthread_mutex_lock(&group->lock);
    process_group_set_failed(group, STATUS_MACHINE, "process %" PRIu32 " (%s): %s", group->process, group->name,
                             message);
    send_all(group); /* now: the process may end next */
    pthread_mutex_unlock(&group->lock);
}

bool process_group_ok(struct process_group *group, struct status *status)
{
    if (!atomic_load_explicit(&group->has_failed, memory_order_acquire)) return true;
    if (status) *status = group->failure;
    return false;
}

void process_group_note(struct process_group *group, uint64_t step, uint64_t digest)
{
    if (step % PROCESS_GROUP_NOTE_STEPS) return;
    pthread_mutex_lock(&group->lock);
    take_note(group, group->process, step, digest);
    pthread_mutex_unlock(&group->lock);
}

void process_group_leave(struct process_group **leaving)
{
    struct process_group *group = *leaving;
    *leaving = NULL;
    if (!group) return;
    pthread_mutex_lock(&group->lock);
    group->is_leaving = true;
    group->leave_ms = process_group_clock_ms() + LEAVE_MS;
    process_group_add_due(group, FRAME_BYE);
    send_all(group);
    eventfd_write(group->waker, 1);
    pthread_mutex_unlock(&group->lock);
    if (group->has_monitor)
        pthread_join(group->monitor, NULL);
    else
        run_monitor(group);
    for (uint32_t i = 0; i < MOST_PEERS; i++)
        if (group->peers[i].descriptor >= 0) process_group_close_peer(&group->peers[i]);
    if (group->listener >= 0) close(group->listener);
    close(group->waker);
    pthread_mutex_destroy(&group->lock);
    pthread_cond_destroy(&group->changed);
    free(group);
}

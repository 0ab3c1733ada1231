/* SPDX-License-Identifier: Apache-2.0 */
/* One lock guards everything. The monitor holds it except while it polls, and sockets never block, so whoever has the lock
 * may use them: what is urgent leaves at once, the rest with the monitor's next round.
 *
 * There are no queues. What a peer is still to be sent follows from bits (struct peer, due) and from how many gathers' parts
 * it was sent; payloads lie where they stay until they have been sent. A part of gather n + 2 takes the place of one of
 * gather n: it is accepted only when all parts of n + 1 have arrived, and whoever sent one of those had received all of n. */
#include "runtime/distributed/world_state.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "runtime/distributed/world_socket.h"

void world_add_due(struct world *world, enum frame_type type)
{
    for (uint32_t i = 0; i < MOST_PEERS; i++)
        if (world->peers[i].is_known) world->peers[i].due |= 1u << type;
}

void world_set_failed(struct world *world, enum status_code code, const char *format, ...)
{
    if (atomic_load(&world->has_failed)) return;
    char message[STATUS_MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    status_fail(&world->failure, code, "%s", message); /* replaces control characters */
    atomic_store(&world->has_failed, true);
    world_add_due(world, FRAME_FAIL);
    pthread_cond_broadcast(&world->changed);
    eventfd_write(world->waker, 1);
}

/* ---- out ---- */

static bool take_due(struct peer *peer, enum frame_type type)
{
    bool is_due = peer->due & 1u << type;
    peer->due &= ~(1u << type);
    return is_due;
}

/* Whose part comes next; world->processes: none's. The others' go through process 0, all of a gather before any of the
 * next, which is not expected sooner. */
static uint32_t find_part(const struct world *world, const struct peer *peer)
{
    uint32_t index = (uint32_t)(peer - world->peers), found = world->processes;
    if (!world->is_joined || index >= world->processes) return found;
    for (uint32_t p = 0; p < world->processes; p++) {
        bool is_its = world->process ? p == world->process : p != index;
        if (!is_its || peer->sent[p] >= world->received[p]) continue;
        if (found == world->processes || peer->sent[p] < peer->sent[found]) found = p;
    }
    return found;
}

/* What to send next; goodbye last. */
static bool compose(struct world *world, struct peer *peer)
{
    const struct notes *notes = &world->notes[world->process];
    struct frame *out = &peer->out;
    uint32_t part = find_part(world, peer);
    *out = (struct frame){.magic = MAGIC, .version = PROTOCOL_VERSION, .process = world->process};
    if (peer->was_told_bye) return false;
    if (take_due(peer, FRAME_CHALLENGE)) {
        out->type = FRAME_CHALLENGE;
        out->bytes = WORLD_NONCE_BYTES;
        peer->out_data = peer->nonces.of_first;
    } else if (take_due(peer, FRAME_PROOF)) {
        out->type = FRAME_PROOF;
        out->bytes = world->process ? sizeof peer->answer : WORLD_PROOF_BYTES;
        peer->out_data = peer->answer;
    } else if (take_due(peer, FRAME_HELLO)) {
        struct hello hello;
        world_admit_make_hello(world, &hello);
        *out = hello.frame;
        peer->out_data = world->name;
    } else if (take_due(peer, FRAME_FAIL)) {
        const char *message = peer->is_refused ? peer->text : world->failure.message;
        out->type = FRAME_FAIL;
        out->bytes = (uint32_t)strlen(message);
        out->number = peer->is_refused ? peer->refusal_code : world->failure.code;
        peer->out_data = message;
    } else if (part < world->processes) {
        out->type = FRAME_PART;
        out->process = part;
        out->number = peer->sent[part]++;
        out->bytes = world->part_bytes[out->number % 2][part];
        peer->out_data = world->parts[out->number % 2][part];
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

/* As much as the socket takes. */
static void send_due(struct world *world, struct peer *peer)
{
    while (peer->descriptor >= 0 && (peer->out_left || compose(world, peer))) {
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
            /* What the peer had said before, perhaps why it goes, is still to be read; behind it stands the end. */
            shutdown(peer->descriptor, SHUT_RDWR);
            peer->was_told_bye = true;
            peer->out_left = 0;
            return;
        }
        peer->out_left -= (size_t)sent;
        if (!peer->out_left && (peer->out.type == FRAME_BYE || peer->is_refused)) {
            /* Not closed: with something unread, that would also destroy what is on its way to the peer. */
            shutdown(peer->descriptor, SHUT_WR);
            peer->was_told_bye = true;
        }
    }
}

static void send_all(struct world *world)
{
    for (uint32_t i = 0; i < MOST_PEERS; i++) send_due(world, &world->peers[i]);
}

/* ---- in ---- */

static void close_peer(struct peer *peer)
{
    close(peer->descriptor);
    peer->descriptor = -1;
}

static void take_note(struct world *world, uint32_t process, uint64_t step, uint64_t digest)
{
    struct notes *notes = &world->notes[process];
    if (step % WORLD_NOTE_STEPS || (notes->count && step <= notes->ring[(notes->count - 1) % NOTES].step)) return;
    notes->ring[notes->count++ % NOTES] = (struct note){step, digest};
    if (world->process) return;
    for (uint32_t p = process ? process : 1; p < (process ? process + 1 : world->processes); p++) {
        const struct notes *others = &world->notes[process ? 0 : p];
        for (uint64_t i = 0; i < NOTES && i < others->count; i++)
            if (others->ring[i].step == step && others->ring[i].digest != digest)
                world_set_failed(world, STATUS_USAGE,
                                 "process %" PRIu32 " was given other inputs than process 0 (step %" PRIu64
                                 "): all must make the same calls",
                                 p, step);
    }
}

/* Parts of the next gather wait for this number to grow. */
static uint64_t gathers_completed(const struct world *world)
{
    uint64_t least = world->received[0];
    for (uint32_t p = 1; p < world->processes; p++)
        if (world->received[p] < least) least = world->received[p];
    return least;
}

/* Whether the peer, no stranger, may send the frame that has just come, before anything of its data is read. */
static bool is_expected(const struct world *world, const struct peer *peer)
{
    const struct frame *in = &peer->in;
    uint32_t index = (uint32_t)(peer - world->peers);
    if (in->magic != MAGIC) return false;
    if (world->process && !world->is_joined && !world_admit_expects_of_first(world, peer)) return false;
    if (in->type == FRAME_HELLO || in->type == FRAME_CHALLENGE || in->type == FRAME_PROOF)
        return world->process && !world->is_joined;
    if (in->type == FRAME_FAIL) return in->bytes < STATUS_MESSAGE_BYTES;
    if (in->version != PROTOCOL_VERSION) return false;
    if (in->type != FRAME_PART) return (in->type == FRAME_BEAT || in->type == FRAME_BYE) && !in->bytes;
    return world->is_joined && in->process < world->processes && in->bytes <= WORLD_GATHER_BYTES &&
           (world->process ? in->process != world->process : in->process == index) &&
           in->number == world->received[in->process] && in->number == gathers_completed(world);
}

static void handle(struct world *world, struct peer *peer)
{
    const struct frame *in = &peer->in;
    uint32_t index = (uint32_t)(peer - world->peers);
    if (!peer->is_known) {
        world_admit_take(world, peer);
        return;
    }
    if (in->type != FRAME_FAIL) world->is_admitted = true;
    switch ((enum frame_type)in->type) {
    case FRAME_HELLO: world->is_joined = true; break;
    case FRAME_CHALLENGE:
    case FRAME_PROOF: world_admit_take_of_first(world, peer); break;
    case FRAME_FAIL:
        world_set_failed(world,
                         in->number > STATUS_OK && in->number <= STATUS_NOT_FINITE ? (enum status_code)in->number
                                                                                   : STATUS_MACHINE,
                         "%.*s", (int)in->bytes, peer->text);
        break;
    case FRAME_PART:
        world->part_bytes[in->number % 2][in->process] = in->bytes;
        world->received[in->process]++;
        pthread_cond_broadcast(&world->changed);
        break;
    case FRAME_BEAT:
    case FRAME_BYE:
        if (index < world->processes) take_note(world, index, in->number, in->value);
        if (in->type == FRAME_BEAT) break;
        peer->has_left = true;
        close_peer(peer);
    }
}

/* The connection has come to its end. */
static void lose(struct world *world, struct peer *peer, int error)
{
    if (!peer->is_known) {
        world_admit_send_away(world, peer, "closed the connection without a hello");
        return;
    }
    close_peer(peer);
    if (world->is_leaving) return;
    if (world->process && !world->is_admitted) {
        world->unanswered++; /* for want of room, perhaps: meet() comes again */
        return;
    }
    bool has_ended = !error || error == ECONNRESET || error == EPIPE;
    world_set_failed(world, STATUS_MACHINE, "process %d (%s): %s", (int)(peer - world->peers), peer->name,
                     !has_ended         ? strerror(error)
                     : world->is_joined ? "has ended"
                                        : "closed the connection before all processes had come");
}

/* What process 0 has sent is nothing that it says at this time. */
static void fail_unexpected(struct world *world, const struct peer *peer)
{
    if (!world->process || world->is_joined)
        world_set_failed(world, STATUS_INTERNAL,
                         "process %d (%s): sent what is not expected of it (frame type %" PRIu32 ")",
                         (int)(peer - world->peers), peer->name, peer->in.type);
    else if (peer->in.magic == MAGIC && world_has_token(world) && !peer->is_proven)
        world_set_failed(world, STATUS_USAGE,
                         "process 0 (%s): did not prove that it has the job token of process %" PRIu32
                         ": give all processes the same token, and see whether the address is that of process 0",
                         peer->name, world->process);
    else
        world_set_failed(world, STATUS_USAGE,
                         "process 0 (%s): what answers there is not process 0 of this job: see whether another program "
                         "has this address",
                         peer->name);
}

static void receive(struct world *world, struct peer *peer, int64_t now)
{
    uint8_t unread[STATUS_MESSAGE_BYTES];
    for (int i = 0; i < MOST_RECEIVES && peer->descriptor >= 0; i++) {
        struct frame *in = &peer->in;
        uint8_t *to = (uint8_t *)in + peer->in_bytes;
        size_t wanted = sizeof *in - peer->in_bytes;
        if (peer->in_bytes >= sizeof *in) {
            size_t have = peer->in_bytes - sizeof *in;
            to = in->type == FRAME_PART ? world->parts[in->number % 2][in->process] : (uint8_t *)peer->text;
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
            lose(world, peer, got ? errno : 0);
            return;
        }
        if (peer->is_refused) continue;
        if (peer->is_known) peer->heard_ms = now;
        peer->in_bytes += (size_t)got;
        if (peer->in_bytes == sizeof *in && !peer->is_known && !world_admit_expects(world, peer)) return;
        if (peer->in_bytes == sizeof *in && peer->is_known && !is_expected(world, peer)) {
            fail_unexpected(world, peer);
            close_peer(peer);
            return;
        }
        if (peer->in_bytes < sizeof *in || peer->in_bytes < sizeof *in + in->bytes) continue;
        peer->in_bytes = 0;
        handle(world, peer);
    }
}

/* ---- rounds ---- */

/* What shows by something not coming. */
static void watch(struct world *world, int64_t now)
{
    for (uint32_t p = 0; p < MOST_PEERS; p++) {
        struct peer *peer = &world->peers[p];
        for (uint32_t q = 0; q < world->processes && peer->has_left; q++)
            if (p < world->processes && world->received[q] > world->received[p] && !world->is_leaving)
                world_set_failed(world, STATUS_MACHINE,
                                 "process %" PRIu32 " (%s): has left, but process %" PRIu32 " waits for it", p,
                                 peer->name, q);
        if (peer->descriptor < 0 || now - peer->heard_ms < SILENCE_MS) continue;
        if (!peer->is_known)
            world_admit_send_away(world, peer,
                                  peer->is_asked ? "did not prove within 5 s that it has the job token"
                                                 : "sent no whole hello within 5 s");
        else if (!world->is_leaving) /* stays connected: should it wake up, it hears what became of the others */
            world_set_failed(world, STATUS_MACHINE, "process %" PRIu32 " (%s): does not answer", p, peer->name);
    }
}

/* With the lock held, which others may take while it waits. */
static void run_round(struct world *world, int64_t until_ms)
{
    struct pollfd polls[2 + MOST_PEERS] = {{world->waker, POLLIN, 0}, {world->listener, POLLIN, 0}};
    for (uint32_t i = 0; i < MOST_PEERS; i++) {
        const struct peer *peer = &world->peers[i];
        polls[2 + i] = (struct pollfd){peer->descriptor, (short)(peer->out_left ? POLLIN | POLLOUT : POLLIN), 0};
    }
    int64_t wait_ms = (until_ms < world->beat_ms ? until_ms : world->beat_ms) - world_clock_ms();
    pthread_mutex_unlock(&world->lock);
    poll(polls, 2 + MOST_PEERS, wait_ms > 0 ? (int)wait_ms : 0);
    pthread_mutex_lock(&world->lock);

    int64_t now = world_clock_ms();
    eventfd_t wakes;
    eventfd_read(world->waker, &wakes);
    if (world->listener >= 0) world_admit_accept(world, now);
    /* This process was stopped, perhaps with all others, as launchers do: they get their time anew. */
    for (uint32_t i = 0; i < MOST_PEERS && now - world->round_ms > LATE_MS; i++) world->peers[i].heard_ms = now;
    world->round_ms = now;
    /* Of all, whatever poll said: it may have been stopped since, and what the others sent meanwhile shows that they live. */
    for (uint32_t i = 0; i < MOST_PEERS; i++) receive(world, &world->peers[i], now);
    watch(world, now);
    if (now >= world->beat_ms) {
        /* What a process says before it is let in is its hello and its proof. */
        if (!world->process || world->is_admitted) world_add_due(world, FRAME_BEAT);
        world->beat_ms = now + BEAT_MS;
    }
    send_all(world);
}

static bool has_left(const struct world *world)
{
    if (!world->is_leaving) return false;
    if (world_clock_ms() >= world->leave_ms) return true;
    for (uint32_t i = 0; i < MOST_PEERS; i++)
        if ((world->peers[i].is_known || world->peers[i].is_refused) && world->peers[i].descriptor >= 0) return false;
    return true;
}

static void *run_monitor(void *argument)
{
    struct world *world = argument;
    pthread_mutex_lock(&world->lock);
    while (!has_left(world)) run_round(world, world->is_leaving ? world->leave_ms : INT64_MAX);
    pthread_mutex_unlock(&world->lock);
    return NULL;
}

/* Threads of a library must not take the signals that are meant for the program's own. */
static bool start_monitor(struct world *world, struct status *status)
{
    sigset_t all, previous;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &previous);
    int error = pthread_create(&world->monitor, NULL, run_monitor, world);
    pthread_sigmask(SIG_SETMASK, &previous, NULL);
    world->has_monitor = !error;
    return !error || status_fail_errno(status, STATUS_MACHINE, error, "cannot start a thread");
}

/* ---- the interface ---- */

static bool check_options(const struct world_options *options, struct status *status)
{
    if (options->processes < 2 || options->processes > WORLD_MOST_PROCESSES || options->process >= options->processes)
        return status_fail(status, STATUS_USAGE,
                           "process %" PRIu32 " of %" PRIu32 ": expected 2 to %d processes, numbered from 0",
                           options->process, options->processes, (int)WORLD_MOST_PROCESSES);
    const double seconds[] = {options->longest_seconds, options->gather_seconds};
    for (int i = 0; i < 2; i++)
        if (!(seconds[i] > 0 && seconds[i] <= 1e6))
            return status_fail(status, STATUS_USAGE, "waiting for %g s: expected more than 0 and at most a million",
                               seconds[i]);
    if (options->token && strlen(options->token) >= WORLD_TOKEN_BYTES)
        return status_fail(status, STATUS_USAGE, "the job token: expected at most %d bytes, found %zu",
                           (int)WORLD_TOKEN_BYTES - 1, strlen(options->token));
    return options->address || status_fail(status, STATUS_USAGE, "the address of process 0 is missing: give HOST:PORT");
}

static struct world *create_world(const struct world_options *options, struct status *status)
{
    struct world *world = calloc(1, sizeof *world);
    int waker = world ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
    if (waker < 0) {
        status_fail_errno(status, STATUS_MACHINE, errno, "cannot make room for %" PRIu32 " processes",
                          options->processes);
        free(world);
        return NULL;
    }
    world->process = options->process;
    world->processes = options->processes;
    world->fingerprint = options->fingerprint;
    if (options->token) memcpy(world->token, options->token, strlen(options->token) + 1);
    world->longest_ms = (int64_t)(options->longest_seconds * 1000) + 1;
    world->gather_ms = (int64_t)(options->gather_seconds * 1000) + 1;
    world->waker = waker;
    world->listener = -1;
    for (uint32_t i = 0; i < MOST_PEERS; i++) world->peers[i].descriptor = -1;
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    struct status name; /* as text that may stand in messages */
    status_fail(&name, STATUS_OK, "%s, pid %d", host, (int)getpid());
    snprintf(world->name, sizeof world->name, "%.*s", NAME_BYTES - 1, name.message);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&world->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&world->lock, NULL);
    atomic_init(&world->has_failed, false);
    return world;
}

/* The connection of another process than 0 to it. */
static bool reach_first(struct world *world, const char *address, int64_t longest_ms, struct status *status)
{
    struct peer *peer = &world->peers[0];
    *peer = (struct peer){.descriptor = -1};
    if (!world_socket_connect(address, longest_ms, &peer->descriptor, status)) return false;
    peer->is_known = true;
    peer->heard_ms = world_clock_ms();
    peer->due = 1u << FRAME_HELLO;
    snprintf(peer->name, sizeof peer->name, "%s", address);
    return true;
}

/* Process 0 knows who is missing, the others only whether it has answered. */
static void fail_late(struct world *world, const char *address)
{
    char missing[6 * WORLD_MOST_PROCESSES] = "", refused[STATUS_MESSAGE_BYTES];
    double seconds = (double)(world->longest_ms - 1) / 1000;
    world_admit_describe(world, refused, sizeof refused);
    for (uint32_t p = 1, used = 0; p < world->processes && !world->process; p++)
        if (!world->peers[p].is_known)
            used += (uint32_t)snprintf(missing + used, sizeof missing - used, "%s%" PRIu32, used ? ", " : " ", p);
    if (world->unanswered && !world->is_admitted)
        world_set_failed(world, STATUS_MACHINE,
                         "process 0 at '%s' did not answer within %g s: it closed %" PRIu32
                         " connections: see whether it still runs and no other program has this address",
                         address, seconds, world->unanswered);
    else
        world_set_failed(world, STATUS_MACHINE,
                         "process%s of %" PRIu32
                         " did not come to '%s' within %g s: see whether all run and reach this address%s",
                         world->process ? "es" : missing, world->processes, address, seconds, refused);
}

/* Process 0 has closed the connection and said nothing. */
static void come_again(struct world *world, const char *address, int64_t until)
{
    struct status status;
    int64_t left_ms = until - world_clock_ms() - AGAIN_MS;
    poll(NULL, 0, AGAIN_MS);
    if (!reach_first(world, address, left_ms > 0 ? left_ms : 0, &status)) fail_late(world, address);
}

/* Until all have come, or one has failed. No other thread knows this world yet. */
static void meet(struct world *world, const char *address)
{
    /* The others give process 0 the time to say who is missing. */
    int64_t until = world_clock_ms() + world->longest_ms + (world->process ? LEAVE_MS : 0);
    pthread_mutex_lock(&world->lock);
    while (!world->is_joined && !atomic_load(&world->has_failed) && world_clock_ms() < until) {
        if (world->process && world->peers[0].descriptor < 0)
            come_again(world, address, until);
        else
            run_round(world, until);
    }
    if (!world->is_joined) fail_late(world, address);
    if (world->listener >= 0) close(world->listener);
    world->listener = -1;
    for (uint32_t i = 0; i < MOST_PEERS; i++) {
        struct peer *peer = &world->peers[i];
        if (peer->descriptor >= 0 && !peer->is_known && !peer->is_refused) close_peer(peer);
    }
    pthread_mutex_unlock(&world->lock);
}

struct world *world_join(const struct world_options *options, struct status *status)
{
    char names[WORLD_MOST_PROCESSES][NAME_BYTES];
    if (!check_options(options, status)) return NULL;
    struct world *world = create_world(options, status);
    if (!world) return NULL;
    bool ok = options->process
                  ? reach_first(world, options->address, world->longest_ms, status)
                  : world_socket_listen(options->address, options->has_several_machines, &world->listener, status);
    if (ok) {
        meet(world, options->address);
        /* Everybody gets everybody's name, for messages. */
        ok = world_ok(world, status) && start_monitor(world, status) &&
             world_gather(world, world->name, NAME_BYTES, names, status);
    }
    if (!ok) {
        world_leave(&world);
        return NULL;
    }
    pthread_mutex_lock(&world->lock);
    for (uint32_t p = 0; p < world->processes; p++)
        snprintf(world->peers[p].name, NAME_BYTES, "%.*s", NAME_BYTES - 1, names[p]);
    pthread_mutex_unlock(&world->lock);
    return world;
}

bool world_gather(struct world *world, const void *mine, size_t bytes, void *all, struct status *status)
{
    if (bytes > WORLD_GATHER_BYTES)
        return status_fail(status, STATUS_USAGE, "gathering %zu bytes of each process: expected at most %d", bytes,
                           (int)WORLD_GATHER_BYTES);
    int64_t until = world_clock_ms() + world->gather_ms;
    struct timespec time = {.tv_sec = until / 1000, .tv_nsec = until % 1000 * 1000000};
    pthread_mutex_lock(&world->lock);
    uint64_t number = world->received[world->process];
    if (!atomic_load(&world->has_failed)) {
        if (bytes) memcpy(world->parts[number % 2][world->process], mine, bytes);
        world->part_bytes[number % 2][world->process] = (uint32_t)bytes;
        world->received[world->process]++;
        send_all(world);
        eventfd_write(world->waker, 1);
    }
    bool in_time = true;
    while (!atomic_load(&world->has_failed) && gathers_completed(world) <= number && in_time)
        in_time = pthread_cond_timedwait(&world->changed, &world->lock, &time) != ETIMEDOUT;
    for (uint32_t p = 0; p < world->processes; p++) {
        uint32_t found = world->part_bytes[number % 2][p];
        if (world->received[p] <= number)
            world_set_failed(world, STATUS_MACHINE, "process %" PRIu32 " (%s): waited for in vain, for %g s", p,
                             world->peers[p].name, (double)world->gather_ms / 1000);
        else if (found != bytes)
            world_set_failed(world, STATUS_INTERNAL,
                             "process %" PRIu32 " (%s): gathers %" PRIu32 " bytes, but process %" PRIu32
                             " %zu: the processes have parted",
                             p, world->peers[p].name, found, world->process, bytes);
        else if (bytes && !atomic_load(&world->has_failed))
            memcpy((uint8_t *)all + p * bytes, world->parts[number % 2][p], bytes);
    }
    pthread_mutex_unlock(&world->lock);
    return world_ok(world, status);
}

void world_fail(struct world *world, const char *message)
{
    pthread_mutex_lock(&world->lock);
    world_set_failed(world, STATUS_MACHINE, "process %" PRIu32 " (%s): %s", world->process, world->name, message);
    send_all(world); /* now: the caller may be about to end */
    pthread_mutex_unlock(&world->lock);
}

bool world_ok(struct world *world, struct status *status)
{
    if (!atomic_load_explicit(&world->has_failed, memory_order_acquire)) return true;
    if (status) *status = world->failure;
    return false;
}

void world_note(struct world *world, uint64_t step, uint64_t digest)
{
    if (step % WORLD_NOTE_STEPS) return;
    pthread_mutex_lock(&world->lock);
    take_note(world, world->process, step, digest);
    pthread_mutex_unlock(&world->lock);
}

void world_leave(struct world **leaving)
{
    struct world *world = *leaving;
    *leaving = NULL;
    if (!world) return;
    pthread_mutex_lock(&world->lock);
    world->is_leaving = true;
    world->leave_ms = world_clock_ms() + LEAVE_MS;
    world_add_due(world, FRAME_BYE);
    send_all(world);
    eventfd_write(world->waker, 1);
    pthread_mutex_unlock(&world->lock);
    if (world->has_monitor)
        pthread_join(world->monitor, NULL);
    else
        run_monitor(world);
    for (uint32_t i = 0; i < MOST_PEERS; i++)
        if (world->peers[i].descriptor >= 0) close_peer(&world->peers[i]);
    if (world->listener >= 0) close(world->listener);
    close(world->waker);
    pthread_mutex_destroy(&world->lock);
    pthread_cond_destroy(&world->changed);
    free(world);
}

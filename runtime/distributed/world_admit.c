/* SPDX-License-Identifier: Apache-2.0 */
/* Who may join. Anybody who reaches the port of process 0 can connect: a connection is a stranger's until its hello is
 * right and, where there is a token, until it has proved that it has it. A stranger never makes the world fail, it is
 * sent away, counted and named should a process be missing in the end.
 *
 * With a token: hello -> challenge (nonce of process 0) -> the other's nonce and proof -> proof of process 0. The joining
 * process proves first, so that scanning the port yields nothing from which a weak token can be guessed. */
#include "runtime/distributed/world_state.h"

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { DETAIL_BYTES = 32 };

static void close_stranger(struct peer *stranger)
{
    close(stranger->descriptor);
    stranger->descriptor = -1;
}

/* ---- what the time-out tells ---- */

static void note_refusal(struct world *world, const struct peer *stranger, bool is_process, const char *why,
                         const char *detail)
{
    char *note = is_process ? world->last_process : world->last_other;
    snprintf(note, STRANGER_BYTES, "%s: %.*s%s", stranger->origin, STRANGER_BYTES - ORIGIN_BYTES - DETAIL_BYTES, why,
             detail);
    world->refusals++;
}

void world_admit_send_away(struct world *world, struct peer *stranger, const char *why)
{
    if (!stranger->is_refused) note_refusal(world, stranger, stranger->is_asked, why, "");
    close_stranger(stranger);
}

void world_admit_describe(const struct world *world, char *text, size_t bytes)
{
    *text = '\0';
    if (!world->refusals) return;
    snprintf(text, bytes, "; %" PRIu32 " connection%s refused, last: %s%s%s", world->refusals,
             world->refusals > 1 ? "s were" : " was", world->last_process,
             world->last_process[0] && world->last_other[0] ? "; " : "", world->last_other);
}

/* ---- process 0 ---- */

/* Tells the stranger what is wrong, without `detail`, which is for this process alone. One that has proved to be of the job
 * is no stranger: its mistake is the job's, and nobody waits for longer. */
__attribute__((format(printf, 5, 6))) static void
refuse(struct world *world, struct peer *stranger, enum status_code code, const char *detail, const char *format, ...)
{
    char message[STATUS_MESSAGE_BYTES];
    struct status flat;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    status_fail(&flat, code, "%s", message); /* replaces control characters */
    note_refusal(world, stranger, true, flat.message, detail);
    if (stranger->is_proven) world_set_failed(world, code, "%s%s", flat.message, detail);
    stranger->is_refused = true;
    stranger->refusal_code = code;
    memcpy(stranger->text, flat.message, sizeof stranger->text);
    stranger->due = 1u << FRAME_FAIL;
}

/* The stranger becomes the peer of its number, if all it said is right. */
static void admit(struct world *world, struct peer *stranger)
{
    const struct frame *hello = &stranger->hello.frame;
    const char *name = stranger->name;
    uint32_t number = hello->process;
    uint64_t count = hello->number & ~HAS_TOKEN;
    if (atomic_load(&world->has_failed)) {
        refuse(world, stranger, world->failure.code, "", "%s", world->failure.message);
    } else if (count != world->processes) {
        refuse(world, stranger, STATUS_USAGE, "",
               "process %" PRIu32 " (%s): started as one of %" PRIu64 " processes, but process 0 as one of %" PRIu32
               ": give all the same count",
               number, name, count, world->processes);
    } else if (number >= world->processes) {
        refuse(world, stranger, STATUS_USAGE, "",
               "process %" PRIu32 " (%s): the number is out of range: of %" PRIu32 " processes the last is %" PRIu32,
               number, name, world->processes, world->processes - 1);
    } else if (!number || world->peers[number].is_known) {
        refuse(world, stranger, STATUS_USAGE, "",
               "process %" PRIu32 " is there twice (%s; %s): give every process a number of its own", number,
               number ? world->peers[number].name : world->name, name);
    } else if (hello->value != world->fingerprint) {
        char expected[DETAIL_BYTES]; /* a stranger that knew it could join */
        snprintf(expected, sizeof expected, ", expected %016" PRIx64, world->fingerprint);
        refuse(world, stranger, STATUS_USAGE, expected,
               "process %" PRIu32 " has another engine file than process 0 (%s): give all the same file: found "
               "fingerprint %016" PRIx64,
               number, name, hello->value);
    } else {
        /* Nothing is on its way to it from where it stood: who has read the challenge has read all. */
        struct peer *member = &world->peers[number];
        *member = *stranger;
        *stranger = (struct peer){.descriptor = -1};
        member->is_known = true;
        member->due = 1u << (member->is_proven ? FRAME_PROOF : FRAME_BEAT); /* that it is in */
        uint32_t others = 0;
        for (uint32_t p = 1; p < world->processes; p++) others += world->peers[p].is_known;
        world->is_joined = others + 1 == world->processes;
        if (world->is_joined) world_add_due(world, FRAME_HELLO);
    }
}

static void take_hello(struct world *world, struct peer *stranger)
{
    const struct frame *hello = &stranger->in;
    struct status flat;
    bool has_token = hello->number & HAS_TOKEN;
    snprintf(stranger->name, sizeof stranger->name, "%.*s", (int)hello->bytes, stranger->text);
    stranger->hello.frame = *hello;
    memcpy(stranger->hello.name, stranger->text, hello->bytes);
    status_fail(&flat, STATUS_OK, "%s", stranger->name);
    if (hello->version != PROTOCOL_VERSION) {
        refuse(world, stranger, STATUS_VERSION, "",
               "process %" PRIu32 " (%s): found version %" PRIu32
               " of the protocol, expected %d: run the same release of eng in all processes",
               hello->process, stranger->name, hello->version, (int)PROTOCOL_VERSION);
    } else if (strlen(stranger->name) != hello->bytes || strcmp(flat.message, stranger->name) != 0) {
        refuse(world, stranger, STATUS_USAGE, "", "process %" PRIu32 ": the name that it gives (%s) is not text",
               hello->process, stranger->name);
    } else if (has_token != world_has_token(world)) {
        refuse(world, stranger, STATUS_USAGE, "",
               "process %" PRIu32 " (%s) was started %s a job token, but process 0 (%s) %s one: give all processes "
               "the same token (ENG_JOB_TOKEN), or none",
               hello->process, stranger->name, has_token ? "with" : "without", world->name,
               has_token ? "without" : "with");
    } else if (!has_token) {
        admit(world, stranger);
    } else if (!world_token_draw_nonce(stranger->nonces.of_first, &flat)) {
        world_set_failed(world, flat.code, "process 0 (%s): %s", world->name, flat.message);
    } else {
        stranger->is_asked = true;
        stranger->due = 1u << FRAME_CHALLENGE;
    }
}

static void take_proof(struct world *world, struct peer *stranger)
{
    const struct hello *hello = &stranger->hello;
    const size_t bytes = sizeof hello->frame + hello->frame.bytes;
    const uint8_t *proof = (const uint8_t *)stranger->text + WORLD_NONCE_BYTES;
    memcpy(stranger->nonces.of_other, stranger->text, WORLD_NONCE_BYTES);
    if (!world_token_check(world->token, WORLD_SIDE_OTHER, &stranger->nonces, hello, bytes, proof)) {
        refuse(world, stranger, STATUS_USAGE, "",
               "process %" PRIu32 " (%s) has another job token than process 0 (%s): give all processes the same token "
               "(ENG_JOB_TOKEN), and each job one of its own",
               hello->frame.process, stranger->name, world->name);
        return;
    }
    world_token_prove(world->token, WORLD_SIDE_FIRST, &stranger->nonces, hello, bytes, stranger->answer);
    stranger->is_proven = true;
    admit(world, stranger);
}

void world_admit_take(struct world *world, struct peer *stranger)
{
    if (stranger->in.type == FRAME_HELLO)
        take_hello(world, stranger);
    else
        take_proof(world, stranger);
}

bool world_admit_expects(struct world *world, struct peer *stranger)
{
    const struct frame *in = &stranger->in;
    const char *why = NULL;
    if (in->magic != MAGIC || in->type != (stranger->is_asked ? FRAME_PROOF : FRAME_HELLO))
        why = stranger->is_asked ? "sent no proof that it has the job token" : "sent no hello of this library";
    else if (stranger->is_asked ? in->bytes != sizeof stranger->answer : in->bytes >= NAME_BYTES)
        why = stranger->is_asked ? "sent a proof of a wrong size" : "sent a hello of a wrong size";
    if (why) world_admit_send_away(world, stranger, why);
    return !why;
}

static void describe_origin(const struct sockaddr *address, socklen_t bytes, char *origin)
{
    char host[46] = "an unknown address", port[8] = "";
    bool is_known = !getnameinfo(address, bytes, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(origin, ORIGIN_BYTES, is_known && strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, is_known ? port : "?");
}

/* A free place for a stranger, else that of the one that has been there for longest. */
static struct peer *find_room(struct world *world)
{
    struct peer *room = &world->peers[WORLD_MOST_PROCESSES];
    for (uint32_t p = WORLD_MOST_PROCESSES; p < MOST_PEERS && room->descriptor >= 0; p++) {
        struct peer *peer = &world->peers[p];
        if (peer->descriptor < 0 || peer->heard_ms < room->heard_ms) room = peer;
    }
    return room;
}

/* At most as many in a round as there are places, so that what has come with a connection is read before the place is
 * another's. A process whose hello comes later than that connects again. */
void world_admit_accept(struct world *world, int64_t now)
{
    for (int i = 0; i < MOST_STRANGERS; i++) {
        struct sockaddr_storage from;
        socklen_t bytes = sizeof from;
        int descriptor = accept4(world->listener, (struct sockaddr *)&from, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (descriptor < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
                world_set_failed(world, STATUS_MACHINE, "process 0 (%s): cannot take a connection: %s", world->name,
                                 strerror(errno));
            return;
        }
        struct peer *room = find_room(world);
        if (room->descriptor >= 0)
            world_admit_send_away(world, room, "sent no hello before many other connections came");
        *room = (struct peer){.descriptor = descriptor, .heard_ms = now};
        describe_origin((const struct sockaddr *)&from, bytes, room->origin);
    }
}

/* ---- the others ---- */

void world_admit_make_hello(const struct world *world, struct hello *hello)
{
    *hello = (struct hello){.frame = {.magic = MAGIC,
                                      .version = PROTOCOL_VERSION,
                                      .type = FRAME_HELLO,
                                      .process = world->process,
                                      .bytes = (uint32_t)strlen(world->name),
                                      .number = world->processes | (world_has_token(world) ? HAS_TOKEN : 0),
                                      .value = world->fingerprint}};
    memcpy(hello->name, world->name, hello->frame.bytes);
}

bool world_admit_expects_of_first(const struct world *world, const struct peer *first)
{
    const struct frame *in = &first->in;
    if (in->type == FRAME_FAIL) return true;
    if (in->version != PROTOCOL_VERSION) return false;
    if (in->type == FRAME_CHALLENGE)
        return world_has_token(world) && !first->is_asked && in->bytes == WORLD_NONCE_BYTES;
    if (in->type == FRAME_PROOF) return first->is_asked && !first->is_proven && in->bytes == WORLD_PROOF_BYTES;
    if (world_has_token(world) && !first->is_proven) return false;
    return in->type != FRAME_HELLO || in->bytes < NAME_BYTES;
}

void world_admit_take_of_first(struct world *world, struct peer *first)
{
    struct hello hello;
    struct status status;
    world_admit_make_hello(world, &hello);
    const size_t bytes = sizeof hello.frame + hello.frame.bytes;
    if (first->in.type == FRAME_PROOF) {
        first->is_proven = world_token_check(world->token, WORLD_SIDE_FIRST, &first->nonces, &hello, bytes,
                                             (const uint8_t *)first->text);
        if (!first->is_proven)
            world_set_failed(world, STATUS_USAGE,
                             "process 0 (%s): its proof that it has the job token is wrong: see whether the address is "
                             "that of process 0",
                             first->name);
        return;
    }
    first->is_asked = true;
    memcpy(first->nonces.of_first, first->text, WORLD_NONCE_BYTES);
    if (!world_token_draw_nonce(first->nonces.of_other, &status)) {
        world_set_failed(world, status.code, "process %" PRIu32 " (%s): %s", world->process, world->name,
                         status.message);
        return;
    }
    memcpy(first->answer, first->nonces.of_other, WORLD_NONCE_BYTES);
    world_token_prove(world->token, WORLD_SIDE_OTHER, &first->nonces, &hello, bytes, first->answer + WORLD_NONCE_BYTES);
    first->due |= 1u << FRAME_PROOF;
}

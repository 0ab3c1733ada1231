/* SPDX-License-Identifier: Apache-2.0 */
/* Admission to a process group. Any program that reaches the port of process 0 can connect. A connection is a stranger
 * until its hello is correct and, with a token, until it has proved that it has the token. A stranger never makes the
 * group fail: it is disconnected, counted, and named if a process is missing when the time is up.
 *
 * With a token: hello -> challenge (nonce of process 0) -> the other's nonce and proof -> proof of process 0. The
 * joining process proves first, so that scanning the port yields nothing from which a weak token can be guessed. */
#include "runtime/distributed/process_group_state.h"

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum { DETAIL_BYTES = 32 };

/* ---- refusals, for the message of a time-out ---- */

static void note_refusal(struct process_group *group, const struct peer *stranger, bool is_process, const char *why,
                         const char *detail)
{
    char *note = is_process ? group->last_process : group->last_other;
    snprintf(note, STRANGER_BYTES, "%s: %.*s%s", stranger->origin, STRANGER_BYTES - ORIGIN_BYTES - DETAIL_BYTES, why,
             detail);
    group->refusals++;
}

void process_group_admit_send_away(struct process_group *group, struct peer *stranger, const char *why)
{
    if (!stranger->is_refused) note_refusal(group, stranger, stranger->is_asked, why, "");
    process_group_close_peer(stranger);
}

void process_group_admit_describe(const struct process_group *group, char *text, size_t bytes)
{
    *text = '\0';
    if (!group->refusals) return;
    snprintf(text, bytes, "; %" PRIu32 " connection%s refused, last: %s%s%s", group->refusals,
             group->refusals > 1 ? "s were" : " was", group->last_process,
             group->last_process[0] && group->last_other[0] ? "; " : "", group->last_other);
}

/* ---- process 0 ---- */

/* Refuses the stranger and sends it the reason, without `detail`, which only this process sees. If it has proved that
 * it belongs to the job, the whole group fails with that reason. */
__attribute__((format(printf, 5, 6))) static void refuse(struct process_group *group, struct peer *stranger,
                                                         enum status_code code, const char *detail, const char *format,
                                                         ...)
{
    char message[STATUS_MESSAGE_BYTES];
    struct status flat;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    status_fail(&flat, code, "%s", message); /* replaces control characters */
    note_refusal(group, stranger, true, flat.message, detail);
    if (stranger->is_proven) process_group_set_failed(group, code, "%s%s", flat.message, detail);
    stranger->is_refused = true;
    stranger->refusal_code = code;
    memcpy(stranger->text, flat.message, sizeof stranger->text);
    stranger->due = 1u << FRAME_FAIL;
}

/* Makes the stranger the peer of its number if its hello is correct, else refuses it. */
static void admit(struct process_group *group, struct peer *stranger)
{
    const struct frame *hello = &stranger->hello.frame;
    const char *name = stranger->name;
    uint32_t number = hello->process;
    uint64_t count = hello->number & ~HAS_TOKEN;
    if (atomic_load(&group->has_failed)) {
        refuse(group, stranger, group->failure.code, "", "%s", group->failure.message);
    } else if (count != group->processes) {
        refuse(group, stranger, STATUS_USAGE, "",
               "process %" PRIu32 " (%s) was started as one of %" PRIu64 " processes, process 0 as one of %" PRIu32
               ": give all processes the same count",
               number, name, count, group->processes);
    } else if (number >= group->processes) {
        refuse(group, stranger, STATUS_USAGE, "",
               "process %" PRIu32 " (%s): the number is out of range: the last of %" PRIu32 " processes is %" PRIu32,
               number, name, group->processes, group->processes - 1);
    } else if (!number || group->peers[number].is_known) {
        refuse(group, stranger, STATUS_USAGE, "",
               "process %" PRIu32 " exists twice (%s; %s): give every process a number of its own", number,
               number ? group->peers[number].name : group->name, name);
    } else if (hello->value != group->fingerprint) {
        char expected[DETAIL_BYTES]; /* not sent: a stranger that knows it could join */
        snprintf(expected, sizeof expected, ", expected %016" PRIx64, group->fingerprint);
        refuse(group, stranger, STATUS_USAGE, expected,
               "process %" PRIu32
               " has another engine file than process 0 (%s): give all processes the same file: found "
               "fingerprint %016" PRIx64,
               number, name, hello->value);
    } else {
        /* Safe to move: nothing is being sent, since the proof shows that the challenge was read. */
        struct peer *member = &group->peers[number];
        *member = *stranger;
        *stranger = (struct peer){.descriptor = -1};
        member->is_known = true;
        member->due = 1u << (member->is_proven ? FRAME_PROOF : FRAME_BEAT); /* confirms its admission */
        uint32_t others = 0;
        for (uint32_t p = 1; p < group->processes; p++) others += group->peers[p].is_known;
        group->is_joined = others + 1 == group->processes;
        if (group->is_joined) process_group_add_due(group, FRAME_HELLO);
    }
}

static void take_hello(struct process_group *group, struct peer *stranger)
{
    const struct frame *hello = &stranger->in;
    struct status flat;
    bool has_token = hello->number & HAS_TOKEN;
    snprintf(stranger->name, sizeof stranger->name, "%.*s", (int)hello->bytes, stranger->text);
    stranger->hello.frame = *hello;
    memcpy(stranger->hello.name, stranger->text, hello->bytes);
    status_fail(&flat, STATUS_OK, "%s", stranger->name);
    if (hello->version != PROTOCOL_VERSION) {
        refuse(group, stranger, STATUS_VERSION, "",
               "process %" PRIu32 " (%s): protocol: expected version %d, found version %" PRIu32
               ": run the same release of eng in all processes",
               hello->process, stranger->name, (int)PROTOCOL_VERSION, hello->version);
    } else if (strlen(stranger->name) != hello->bytes || strcmp(flat.message, stranger->name) != 0) {
        refuse(group, stranger, STATUS_USAGE, "", "process %" PRIu32 ": its name (%s) is not printable text",
               hello->process, stranger->name);
    } else if (has_token != process_group_has_token(group)) {
        refuse(group, stranger, STATUS_USAGE, "",
               "process %" PRIu32 " (%s) was started %s a job token, but process 0 (%s) %s one: give all processes "
               "the same token (ENG_JOB_TOKEN), or none",
               hello->process, stranger->name, has_token ? "with" : "without", group->name,
               has_token ? "without" : "with");
    } else if (!has_token) {
        admit(group, stranger);
    } else if (!process_group_token_draw_nonce(stranger->nonces.of_first, &flat)) {
        process_group_set_failed(group, flat.code, "process 0 (%s): %s", group->name, flat.message);
    } else {
        stranger->is_asked = true;
        stranger->due = 1u << FRAME_CHALLENGE;
    }
}

static void take_proof(struct process_group *group, struct peer *stranger)
{
    const struct hello *hello = &stranger->hello;
    const size_t bytes = sizeof hello->frame + hello->frame.bytes;
    const uint8_t *proof = (const uint8_t *)stranger->text + PROCESS_GROUP_NONCE_BYTES;
    memcpy(stranger->nonces.of_other, stranger->text, PROCESS_GROUP_NONCE_BYTES);
    if (!process_group_token_check(group->token, PROCESS_GROUP_SIDE_OTHER, &stranger->nonces, hello, bytes, proof)) {
        refuse(group, stranger, STATUS_USAGE, "",
               "process %" PRIu32 " (%s) has another job token than process 0 (%s): give all processes the same token "
               "(ENG_JOB_TOKEN), and each job one of its own",
               hello->frame.process, stranger->name, group->name);
        return;
    }
    process_group_token_prove(group->token, PROCESS_GROUP_SIDE_FIRST, &stranger->nonces, hello, bytes,
                              stranger->answer);
    stranger->is_proven = true;
    admit(group, stranger);
}

void process_group_admit_take(struct process_group *group, struct peer *stranger)
{
    if (stranger->in.type == FRAME_HELLO)
        take_hello(group, stranger);
    else
        take_proof(group, stranger);
}

bool process_group_admit_expects(struct process_group *group, struct peer *stranger)
{
    const struct frame *in = &stranger->in;
    const char *why = NULL;
    if (in->magic != MAGIC || in->type != (stranger->is_asked ? FRAME_PROOF : FRAME_HELLO))
        why = stranger->is_asked ? "sent no proof that it has the job token" : "sent no hello of this library";
    else if (stranger->is_asked ? in->bytes != sizeof stranger->answer : in->bytes >= NAME_BYTES)
        why = stranger->is_asked ? "sent a proof of a wrong size" : "sent a hello of a wrong size";
    if (why) process_group_admit_send_away(group, stranger, why);
    return !why;
}

static void describe_origin(const struct sockaddr *address, socklen_t bytes, char *origin)
{
    char host[46] = "an unknown address", port[8] = "";
    bool is_known = !getnameinfo(address, bytes, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(origin, ORIGIN_BYTES, is_known && strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, is_known ? port : "?");
}

/* A free place for a stranger, else the place of the oldest one. */
static struct peer *find_room(struct process_group *group)
{
    struct peer *room = &group->peers[PROCESS_GROUP_MOST_PROCESSES];
    for (uint32_t p = PROCESS_GROUP_MOST_PROCESSES; p < MOST_PEERS && room->descriptor >= 0; p++) {
        struct peer *peer = &group->peers[p];
        if (peer->descriptor < 0 || peer->heard_ms < room->heard_ms) room = peer;
    }
    return room;
}

/* Accepts at most MOST_STRANGERS in a round, so that what arrived with a connection is read before its place is reused.
 * A process whose hello arrives later connects again. */
void process_group_admit_accept(struct process_group *group, int64_t now)
{
    for (int i = 0; i < MOST_STRANGERS; i++) {
        struct sockaddr_storage from;
        socklen_t bytes = sizeof from;
        int descriptor = accept4(group->listener, (struct sockaddr *)&from, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (descriptor < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
                process_group_set_failed(group, STATUS_MACHINE, "process 0 (%s): cannot accept a connection: %s",
                                         group->name, strerror(errno));
            return;
        }
        struct peer *room = find_room(group);
        if (room->descriptor >= 0)
            process_group_admit_send_away(group, room, "sent no hello before many other connections came");
        *room = (struct peer){.descriptor = descriptor, .heard_ms = now};
        describe_origin((const struct sockaddr *)&from, bytes, room->origin);
    }
}

/* ---- the others ---- */

void process_group_admit_make_hello(const struct process_group *group, struct hello *hello)
{
    *hello = (struct hello){.frame = {.magic = MAGIC,
                                      .version = PROTOCOL_VERSION,
                                      .type = FRAME_HELLO,
                                      .process = group->process,
                                      .bytes = (uint32_t)strlen(group->name),
                                      .number = group->processes | (process_group_has_token(group) ? HAS_TOKEN : 0),
                                      .value = group->fingerprint}};
    memcpy(hello->name, group->name, hello->frame.bytes);
}

bool process_group_admit_expects_of_first(const struct process_group *group, const struct peer *first)
{
    const struct frame *in = &first->in;
    if (in->type == FRAME_FAIL) return true;
    if (in->version != PROTOCOL_VERSION) return false;
    if (in->type == FRAME_CHALLENGE)
        return process_group_has_token(group) && !first->is_asked && in->bytes == PROCESS_GROUP_NONCE_BYTES;
    if (in->type == FRAME_PROOF) return first->is_asked && !first->is_proven && in->bytes == PROCESS_GROUP_PROOF_BYTES;
    if (process_group_has_token(group) && !first->is_proven) return false;
    return in->type != FRAME_HELLO || in->bytes < NAME_BYTES;
}

void process_group_admit_take_of_first(struct process_group *group, struct peer *first)
{
    struct hello hello;
    struct status status;
    process_group_admit_make_hello(group, &hello);
    const size_t bytes = sizeof hello.frame + hello.frame.bytes;
    if (first->in.type == FRAME_PROOF) {
        first->is_proven = process_group_token_check(group->token, PROCESS_GROUP_SIDE_FIRST, &first->nonces, &hello,
                                                     bytes, (const uint8_t *)first->text);
        if (!first->is_proven)
            process_group_set_failed(group, STATUS_USAGE,
                                     "process 0 (%s): its proof that it has the job token is wrong: check that the "
                                     "address is that of process 0",
                                     first->name);
        return;
    }
    first->is_asked = true;
    memcpy(first->nonces.of_first, first->text, PROCESS_GROUP_NONCE_BYTES);
    if (!process_group_token_draw_nonce(first->nonces.of_other, &status)) {
        process_group_set_failed(group, status.code, "process %" PRIu32 " (%s): %s", group->process, group->name,
                                 status.message);
        return;
    }
    memcpy(first->answer, first->nonces.of_other, PROCESS_GROUP_NONCE_BYTES);
    process_group_token_prove(group->token, PROCESS_GROUP_SIDE_OTHER, &first->nonces, &hello, bytes,
                              first->answer + PROCESS_GROUP_NONCE_BYTES);
    first->due |= 1u << FRAME_PROOF;
}

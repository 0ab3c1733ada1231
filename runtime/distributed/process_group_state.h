/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of a process group: wire frames, peers, and the state under the group's lock. process_group.c has the
 * rounds and the public functions. */
#ifndef RUNTIME_DISTRIBUTED_PROCESS_GROUP_STATE_H
#define RUNTIME_DISTRIBUTED_PROCESS_GROUP_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/base/status.h"
#include "runtime/distributed/process_group_limits.h"
#include "runtime/distributed/process_group_token.h"

enum {
    PROTOCOL_VERSION = 2,
    BEAT_MS = 500,
    STOPPED_MS = 2000, /* a longer gap between rounds shows that this process itself was stopped */
    SILENCE_MS = 5000, /* without data: a process is taken for dead, a stranger is disconnected */
    LEAVE_MS = 1000,
    AGAIN_MS = 50, /* pause before connecting to process 0 again */
    MOST_STRANGERS = 32,
    MOST_PEERS = PROCESS_GROUP_MOST_PROCESSES + MOST_STRANGERS,
    MOST_RECEIVES = 64, /* of one peer in a round, so that no peer starves the others */
    NOTES = 64,
    NAME_BYTES = 96,
    ORIGIN_BYTES = 64,
    STRANGER_BYTES = 320,
};

#define MAGIC     UINT64_C(0x31646c726f776e65) /* the bytes "enworld1"; the same in every version */
#define NO_STEP   UINT64_MAX                   /* not a multiple of PROCESS_GROUP_NOTE_STEPS */
#define HAS_TOKEN UINT64_C(0x100000000)

enum frame_type { FRAME_HELLO = 1, FRAME_FAIL, FRAME_PART, FRAME_BEAT, FRAME_BYE, FRAME_CHALLENGE, FRAME_PROOF };

/* On the wire, little endian, followed by `bytes` bytes of data. The layout and the meaning of FRAME_HELLO and
 * FRAME_FAIL are the same in every version, so that processes of different versions can report the difference. */
struct frame {
    uint64_t magic;
    uint32_t version;
    uint32_t type;    /* enum frame_type */
    uint32_t process; /* sender of the hello, or owner of the part */
    /* Data: hello: the name; fail: the message; part: at most PROCESS_GROUP_GATHER_BYTES; challenge: the nonce of
     * process 0; proof: from process 0 its proof, from another its nonce and proof; else none */
    uint32_t bytes;
    /* hello: count of processes, plus HAS_TOKEN; fail: enum status_code; part: number of the gather; beat, bye: newest
     * step */
    uint64_t number;
    uint64_t value; /* hello: fingerprint; beat and bye: the step's digest */
};
_Static_assert(sizeof(struct frame) == 40 && offsetof(struct frame, value) == 32, "encoding");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "frames are sent as laid out in memory");

struct hello {
    struct frame frame;
    char name[NAME_BYTES]; /* frame.bytes of it are sent */
};

struct peer {
    int descriptor;  /* -1: none */
    bool is_known;   /* a member: its failure is the failure of the group */
    bool is_refused; /* a stranger that is sent the reason (text, refusal_code) and must then close */
    bool is_asked;   /* was sent a challenge; peers[0] elsewhere: has sent one */
    bool is_proven;  /* has proved that it has the token */
    bool has_left, was_told_bye;
    int64_t heard_ms; /* when data last arrived; of a stranger: when it connected */
    char name[NAME_BYTES];
    char origin[ORIGIN_BYTES]; /* address and port */
    enum status_code refusal_code;
    struct hello hello; /* of a peer with is_asked: covered by its proof */
    struct process_group_nonces nonces;
    uint8_t answer[PROCESS_GROUP_NONCE_BYTES + PROCESS_GROUP_PROOF_BYTES]; /* data of FRAME_PROOF */
    struct frame in;
    char text[STATUS_MESSAGE_BYTES]; /* data after `in`, except parts */
    size_t in_bytes;                 /* of frame and data, received so far */
    struct frame out;
    const void *out_data;
    size_t out_left;                             /* of frame and data, still to send; 0: idle */
    unsigned due;                                /* bits 1 << enum frame_type */
    uint64_t sent[PROCESS_GROUP_MOST_PROCESSES]; /* [p]: gathers for which it was sent the part of process p */
};

struct notes {
    struct note {
        uint64_t step, digest;
    } ring[NOTES];
    uint64_t count; /* ever */
};

struct process_group {
    uint32_t process, processes;
    uint64_t fingerprint;
    char token[PROCESS_GROUP_TOKEN_BYTES]; /* empty: none */
    int64_t longest_ms, gather_ms;
    char name[NAME_BYTES];
    pthread_mutex_t lock;
    pthread_cond_t changed; /* the group has failed, or parts have arrived */
    pthread_t monitor;
    bool is_joined, is_leaving, has_monitor;
    bool is_admitted;    /* not on process 0: process 0 has answered, so that losing it is a failure */
    uint32_t unanswered; /* not on process 0: connections that it closed before answering */
    uint32_t refusals;   /* process 0: refused connections; below: the last with and without a hello */
    char last_process[STRANGER_BYTES], last_other[STRANGER_BYTES];
    atomic_bool has_failed;
    struct status failure;               /* written once, before has_failed */
    int listener, waker;                 /* listener: process 0 until all have joined, else -1 */
    int64_t beat_ms, leave_ms, round_ms; /* time of the next beat, of the end of leaving, of the last round */
    struct peer peers[MOST_PEERS];       /* process 0: by number, then strangers; others: only [0] is connected */
    uint64_t received[PROCESS_GROUP_MOST_PROCESSES]; /* [p]: gathers for which the part of process p has arrived */
    uint32_t part_bytes[2][PROCESS_GROUP_MOST_PROCESSES];
    uint8_t parts[2][PROCESS_GROUP_MOST_PROCESSES]
                 [PROCESS_GROUP_GATHER_BYTES];        /* [gather % 2]; unused pages take no memory */
    struct notes notes[PROCESS_GROUP_MOST_PROCESSES]; /* process 0: of all; others: only their own */
};

static inline bool process_group_has_token(const struct process_group *group) { return group->token[0] != '\0'; }

/* Requires, for these functions: the lock is held. */

void process_group_close_peer(struct peer *peer);

/* Makes the group fail, unless it has already, and sends the failure to all known peers. */
__attribute__((format(printf, 3, 4))) void process_group_set_failed(struct process_group *group, enum status_code code,
                                                                    const char *format, ...);
void process_group_add_due(struct process_group *group, enum frame_type type);

/* Admission, which decides what connections become members (process_group_admit.c). Requires, for all functions: the lock
 * is held. */

/* The first frame of a process; process 0 sends it when all have joined. */
void process_group_admit_make_hello(const struct process_group *group, struct hello *hello);

/* Process 0: accepts pending connections. */
void process_group_admit_accept(struct process_group *group, int64_t now);
/* Process 0: whether a stranger may send the frame whose header has arrived; if not, it is disconnected. */
bool process_group_admit_expects(struct process_group *group, struct peer *stranger);
/* Process 0: handles a hello or a proof. The stranger becomes the peer of its number, is sent a challenge, or is sent
 * the reason of its refusal. */
void process_group_admit_take(struct process_group *group, struct peer *stranger);
/* Process 0: disconnects a stranger and, unless it was refused with a message, notes the reason. */
void process_group_admit_send_away(struct process_group *group, struct peer *stranger, const char *why);
/* Text "; 2 connections were refused, last: ...", or empty. */
void process_group_admit_describe(const struct process_group *group, char *text, size_t bytes);

/* Other processes: whether process 0 may send this frame now; handling of its challenge or proof. */
bool process_group_admit_expects_of_first(const struct process_group *group, const struct peer *first);
void process_group_admit_take_of_first(struct process_group *group, struct peer *first);

#endif

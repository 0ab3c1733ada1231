/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of a world share: the frames on the wire, the peers, and who may change what under the world's lock.
 * world.c runs the rounds and is the interface; world_admit.c decides who comes in. */
#ifndef RUNTIME_DISTRIBUTED_WORLD_STATE_H
#define RUNTIME_DISTRIBUTED_WORLD_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/distributed/world.h"
#include "runtime/distributed/world_token.h"

enum {
    PROTOCOL_VERSION = 2,
    BEAT_MS = 500,
    LATE_MS = 2000,    /* a round that comes later than this shows that the process did not run */
    SILENCE_MS = 5000, /* after which a process is taken for dead, and a stranger is sent away */
    LEAVE_MS = 1000,
    AGAIN_MS = 50, /* before another connection to process 0 */
    MOST_STRANGERS = 32,
    MOST_PEERS = WORLD_MOST_PROCESSES + MOST_STRANGERS,
    MOST_RECEIVES = 64, /* of one peer in a round: none keeps the others waiting */
    NOTES = 64,
    NAME_BYTES = 96,
    ORIGIN_BYTES = 64,
    STRANGER_BYTES = 320,
};

#define MAGIC     UINT64_C(0x31646c726f776e65) /* "enworld1" */
#define NO_STEP   UINT64_MAX                   /* no multiple of WORLD_NOTE_STEPS */
#define HAS_TOKEN UINT64_C(0x100000000)

enum frame_type { FRAME_HELLO = 1, FRAME_FAIL, FRAME_PART, FRAME_BEAT, FRAME_BYE, FRAME_CHALLENGE, FRAME_PROOF };

/* On the wire, little endian, with `bytes` of data behind it. This and the meaning of FRAME_HELLO and FRAME_FAIL are the same
 * in every version, so that processes of different versions can tell each other that they are. */
struct frame {
    uint64_t magic;
    uint32_t version;
    uint32_t type;    /* enum frame_type */
    uint32_t process; /* whose hello or part */
    /* hello: its name; fail: the message; part: at most WORLD_GATHER_BYTES; challenge: the nonce of process 0; proof: of
     * process 0 its proof, of another its nonce and its proof; else none */
    uint32_t bytes;
    /* hello: of processes, and HAS_TOKEN; fail: enum status_code; part: of the gather; beat and bye: the newest step */
    uint64_t number;
    uint64_t value; /* hello: fingerprint; beat and bye: the step's digest */
};
_Static_assert(sizeof(struct frame) == 40 && offsetof(struct frame, value) == 32, "encoding");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "frames are sent as they lie in memory");

struct hello {
    struct frame frame;
    char name[NAME_BYTES]; /* frame.bytes of it are sent */
};

struct peer {
    int descriptor;  /* -1: none */
    bool is_known;   /* no stranger: its failure is the world's */
    bool is_refused; /* a stranger that is told why, in `text`, with refusal_code; then it is only waited for its end */
    bool is_asked;   /* to prove that it has the token; of process 0: it has asked */
    bool is_proven;  /* that it has the token */
    bool has_left, was_told_bye;
    int64_t heard_ms; /* of a stranger: when it came */
    char name[NAME_BYTES];
    char origin[ORIGIN_BYTES]; /* address and port */
    enum status_code refusal_code;
    struct hello hello; /* of a peer that was asked: what its proof is about */
    struct world_nonces nonces;
    uint8_t answer[WORLD_NONCE_BYTES + WORLD_PROOF_BYTES]; /* data of FRAME_PROOF */
    struct frame in;
    char text[STATUS_MESSAGE_BYTES]; /* data behind `in`, unless it is a part */
    size_t in_bytes;                 /* of frame and data, so far */
    struct frame out;
    const void *out_data;
    size_t out_left;                     /* of frame and data; 0: nothing is on its way */
    unsigned due;                        /* bits 1 << enum frame_type */
    uint64_t sent[WORLD_MOST_PROCESSES]; /* gathers for which it was sent that process's part */
};

struct notes {
    struct note {
        uint64_t step, digest;
    } ring[NOTES];
    uint64_t count; /* ever */
};

struct world {
    uint32_t process, processes;
    uint64_t fingerprint;
    char token[WORLD_TOKEN_BYTES]; /* empty: none */
    int64_t longest_ms, gather_ms;
    char name[NAME_BYTES];
    pthread_mutex_t lock;
    pthread_cond_t changed; /* the world failed, or parts arrived */
    pthread_t monitor;
    bool is_joined, is_leaving, has_monitor;
    bool is_admitted;    /* other than process 0: it has answered, so that an end of the connection is its failure */
    uint32_t unanswered; /* other than process 0: connections that ended before */
    uint32_t refusals;   /* process 0: connections that were sent away, and the last one with and without a hello */
    char last_process[STRANGER_BYTES], last_other[STRANGER_BYTES];
    atomic_bool has_failed;
    struct status failure;                   /* written once, before has_failed */
    int listener, waker;                     /* listener: of process 0 until all have come, else -1 */
    int64_t beat_ms, leave_ms, round_ms;     /* of the next beat; of the end of leaving; of the last round */
    struct peer peers[MOST_PEERS];           /* process 0: by number, then strangers; others: [0] alone is connected */
    uint64_t received[WORLD_MOST_PROCESSES]; /* gathers for which that process's part is here */
    uint32_t part_bytes[2][WORLD_MOST_PROCESSES];
    uint8_t parts[2][WORLD_MOST_PROCESSES][WORLD_GATHER_BYTES]; /* [gather % 2]; what is not used takes no memory */
    struct notes notes[WORLD_MOST_PROCESSES];                   /* process 0: of all; others: their own */
};

static inline bool world_has_token(const struct world *world) { return world->token[0] != '\0'; }

/* All with the lock held. */

/* The world fails, unless it has already: all known peers are told. */
__attribute__((format(printf, 3, 4))) void world_set_failed(struct world *world, enum status_code code,
                                                            const char *format, ...);
void world_add_due(struct world *world, enum frame_type type);

/* What this process says first, or process 0 when all have come. */
void world_admit_make_hello(const struct world *world, struct hello *hello);

/* Process 0: takes the connections that wait. */
void world_admit_accept(struct world *world, int64_t now);
/* Process 0: whether a stranger may send the frame whose header has come; if not, it is sent away. */
bool world_admit_expects(struct world *world, struct peer *stranger);
/* Process 0: a hello or a proof has come: the stranger becomes the peer of its number, is asked for a proof, or is told
 * what is wrong. */
void world_admit_take(struct world *world, struct peer *stranger);
/* Process 0: closes the connection of a stranger that was not refused with a message before, and notes why. */
void world_admit_send_away(struct world *world, struct peer *stranger, const char *why);
/* "; 2 connections were refused, last ...", or nothing. */
void world_admit_describe(const struct world *world, char *text, size_t bytes);

/* The others: whether process 0 may send this now; and its challenge or its proof has come. */
bool world_admit_expects_of_first(const struct world *world, const struct peer *first);
void world_admit_take_of_first(struct world *world, struct peer *first);

#endif

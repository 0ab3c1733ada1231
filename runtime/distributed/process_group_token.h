/* SPDX-License-Identifier: Apache-2.0 */
/* Proof that a process has the job token, a secret text, without sending it: HMAC-SHA-256 over fresh nonces of both
 * sides and the hello of the joining process. */
#ifndef RUNTIME_DISTRIBUTED_PROCESS_GROUP_TOKEN_H
#define RUNTIME_DISTRIBUTED_PROCESS_GROUP_TOKEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/base/status.h"

enum { PROCESS_GROUP_NONCE_BYTES = 32, PROCESS_GROUP_PROOF_BYTES = 32, PROCESS_GROUP_TOKEN_BYTES = 256 };

/* The side that proves. The proofs of the two sides differ, so that neither can be reflected. */
enum process_group_side {
    PROCESS_GROUP_SIDE_FIRST,
    PROCESS_GROUP_SIDE_OTHER
}; /* process 0; the process that joins it */

struct process_group_nonces {
    uint8_t of_first[PROCESS_GROUP_NONCE_BYTES], of_other[PROCESS_GROUP_NONCE_BYTES];
};

/* Fills the nonce with random bytes from the kernel. */
bool process_group_token_draw_nonce(uint8_t nonce[PROCESS_GROUP_NONCE_BYTES], struct status *status);

/* hello: [hello_bytes], as the joining process sent it: struct frame and name. */
void process_group_token_prove(const char *token, enum process_group_side side,
                               const struct process_group_nonces *nonces, const void *hello, size_t hello_bytes,
                               uint8_t proof[PROCESS_GROUP_PROOF_BYTES]);

/* Whether `proof` is correct for that side. Compares in constant time. */
bool process_group_token_check(const char *token, enum process_group_side side,
                               const struct process_group_nonces *nonces, const void *hello, size_t hello_bytes,
                               const uint8_t proof[PROCESS_GROUP_PROOF_BYTES]);

#endif
